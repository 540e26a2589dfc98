"""Start a program that ends with whoever started it, even by kill -9, and leaves nothing behind. Linux;
`python -I -S bound.py PID program ...`.

A process that is killed can stop nothing: a sweep's Triton and its clients would go on and load the cores under
whatever is measured next. Nor does ending Triton end all: a backend process whose Triton dies while it starts waits
for it for ever. So this process stays beside the program, adopts what it leaves, and ends it.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

SET_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # of <sys/prctl.h>; neither is inherited by a fork.
# What wakes this process: its starter's end, the program's, and what is sent to the whole group, which is not for it.
WAKING = {signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def bound(command: list[str]) -> list[str]:
    """The command line that starts this one so. Call it in the process that it ends with."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> int:
    """Run the program and end as it does. Its exit status as `os.waitpid` gives it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)
    _prctl(SET_CHILD_SUBREAPER, 1)
    _prctl(SET_DEATH_SIGNAL, signal.SIGUSR1)
    if os.getppid() != parent:  # it died before the kernel was told
        return 1 << 8
    program = os.fork()
    if not program:
        _become(command)
    status = None
    while status is None and os.getppid() == parent:
        signal.sigtimedwait(WAKING, 1.0)
        status = _reaped().get(program)
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)
        os.waitpid(-1, 0)  # their children are ours next
    return signal.SIGKILL if status is None else status


def _become(command: list[str]) -> None:
    _prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAKING)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} does not start: {error}", file=sys.stderr)
        os._exit(127)


def _reaped() -> dict[int, int]:
    """Status by process of the children that have ended."""
    found: dict[int, int] = {}
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    except ChildProcessError:
        pass
    return found


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # PID (NAME) STATE PARENT ...: a name may hold anything, so it is cut off at its last bracket.
            state_and_parent = stat.read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it has ended
        if int(state_and_parent[1]) == os.getpid():
            found.append(int(stat.parent.name))
    return found


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _end_as(status: int) -> None:
    """Whoever waits for this process is told what became of the program."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    _end_as(main(int(sys.argv[1]), sys.argv[2:]))
