"""Start a program that ends with whoever started it, even by kill -9. Linux; `python -I bound.py PID program ...`.

A process that is killed can stop nothing: a sweep's Triton and its clients would go on and load the cores under
whatever is measured next.
"""

import ctypes
import os
import signal
import sys

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>; it outlives the change of program, and no fork.


def bound(command: list[str]) -> list[str]:
    """The command line that starts this one so. Call it in the process, and start it in the thread, it ends with."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    """Become the program."""
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
