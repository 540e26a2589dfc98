"""Start a program with arguments that `ps` does not show. Linux; run as a script: `python -I hidden.py program ...`

Triton takes the key of its model control as an argument and in no other way, and everyone on a machine may read
everyone's arguments. What a process was started with in its environment, its own user alone may read. So the hidden
arguments travel there, as `TRIMTAB_HIDDEN_<n>`, and `@hidden<n>@` stands for them on the command line. In the moment
between the kernel's loading of the program and its first instruction a tracer points each placeholder at the true
text: the program reads that, the kernel goes on showing the placeholder.
"""

import ctypes
import os
import signal
import struct
import sys

VARIABLE, PLACEHOLDER = "TRIMTAB_HIDDEN_{}", "@hidden{}@"
OPEN = "WARNING: started without its hidden arguments, open to everyone on this machine"
# From <sys/ptrace.h> and <sys/prctl.h>.
SEIZE, CONTINUE, DETACH, LISTEN_EXEC, EVENT_EXEC = 0x4206, 7, 17, 0x10, 4
SET_PTRACER, WALL = 0x59616D61, 0x40000000


def hidden(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Placeholders for a command line, and the environment that carries what they stand for."""
    count = range(len(arguments))
    return [PLACEHOLDER.format(n) for n in count], {VARIABLE.format(n): arguments[n] for n in count}


def patches(
    stack: bytes, base: int, arguments: list[str], arg_start: int, environment: bytes, env_start: int
) -> dict[int, int]:
    """Where in the memory of a program just loaded which pointer has to lie, by address. Pure.

    stack: its bytes from base on, up to the first argument's text at arg_start; environment: its bytes from env_start.
    The stack holds the count of the arguments, then a pointer to each.
    """
    at = stack.find(struct.pack("<QQ", len(arguments), arg_start))
    if at < 0:
        raise OSError("its arguments are not where they should lie")
    places, found, start = {}, dict[str, int](), env_start
    for entry in environment.split(b"\0"):
        name, _, _ = entry.partition(b"=")
        found[name.decode(errors="replace")] = start + len(name) + 1
        start += len(entry) + 1
    for number, argument in enumerate(arguments):
        for n in range(len(arguments)):
            if argument == PLACEHOLDER.format(n):
                places[base + at + 8 * (number + 1)] = found[VARIABLE.format(n)]
    return places


def _call(request: int, pid: int, address: int, data: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, pid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace is refused: {os.strerror(number)}")


def _place(pid: int, arguments: list[str]) -> None:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arg_start, env_start, env_end = int(fields[45]), int(fields[47]), int(fields[48])
    with open(f"/proc/{pid}/maps") as file:
        spans = [line.split()[0].split("-") for line in file if line.rstrip().endswith("[stack]")]
    base = int(spans[0][0], 16)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(base)
        stack = memory.read(arg_start - base)
        memory.seek(env_start)
        environment = memory.read(env_end - env_start)
        for address, pointer in patches(stack, base, arguments, arg_start, environment, env_start).items():
            memory.seek(address)
            memory.write(struct.pack("<Q", pointer))


def _trace(pid: int, arguments: list[str], asked: int, answer: int) -> None:
    """Follow the process to its next program, place the arguments there, let it go. What fails ends it."""
    os.write(answer, struct.pack("<q", os.getpid()))
    os.read(asked, 1)
    try:
        _call(SEIZE, pid, 0, LISTEN_EXEC)
    except OSError as error:
        os.write(answer, str(error).encode())
        return
    os.write(answer, b"+")
    while True:
        _, status = os.waitpid(pid, WALL)
        if not os.WIFSTOPPED(status):
            return
        if status >> 8 == signal.SIGTRAP | EVENT_EXEC << 8:
            break
        _call(CONTINUE, pid, 0, os.WSTOPSIG(status))
    try:
        _place(pid, arguments)
    except BaseException:
        # Never with placeholders for a key: everyone would know it.
        os.kill(pid, signal.SIGKILL)
        raise
    _call(DETACH, pid, 0, 0)


def traced(arguments: list[str]) -> str:
    """Have the next program of this process get its hidden arguments; '', or why that can't be."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent, (asked, ask), (answered, answer) = os.getpid(), os.pipe(), os.pipe()
    middle = os.fork()
    if middle == 0:
        # Twice, so that the program does not inherit a child that it never asks for.
        if os.fork() == 0:
            os.setsid()
            try:
                _trace(parent, arguments, asked, answer)
            finally:
                os._exit(0)
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(answer)
    (tracer,) = struct.unpack("<q", os.read(answered, 8))
    # Where only ancestors may trace, this one may as well, until it ends.
    libc.prctl(SET_PTRACER, ctypes.c_ulong(tracer), 0, 0, 0)
    os.write(ask, b"?")
    told = os.read(answered, 200).decode(errors="replace")
    return "" if told == "+" else told or "the tracer died"


def main(arguments: list[str]) -> None:
    """Become the program. Without leave to trace it starts without what was to be hidden, and its log says so."""
    why = traced(arguments)
    if why:
        placeholders = {PLACEHOLDER.format(n) for n in range(len(arguments))}
        arguments = [argument for argument in arguments if argument not in placeholders]
        print(f"{OPEN}: {why}", file=sys.stderr, flush=True)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
