"""A command run beside this process: its lines as they come, and how it ended."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

# The kernel's count of processes ended for want of memory in our container: cgroup 2, then 1.
COUNTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
SAID = 4000


@dataclass(frozen=True, slots=True)
class Ended:
    """code: as `subprocess` gives it, -N for signal N. said: the end of standard error. oom_kills: while it ran."""

    code: int
    said: str
    oom_kills: int


def run(command: Sequence[str], on_line: Callable[[str], None], counts: Sequence[Path] = COUNTS) -> Ended:
    """Run to the end, whatever that is. on_line: called with each line of standard output as it comes.

    An error of on_line, or an interrupt of this process, ends the command too.
    """
    before = oom_kills(counts)
    with (
        TemporaryFile() as errors,
        subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                on_line(line.rstrip("\n"))
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        errors.seek(max(errors.seek(0, 2) - SAID, 0))
        said = errors.read().decode(errors="replace").strip()
    return Ended(code, said, max(oom_kills(counts) - before, 0))


def oom_kills(counts: Sequence[Path] = COUNTS) -> int:
    """Processes that the kernel ended in this container so far; 0 where it does not tell."""
    for file in counts:
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
    return 0
