"""What others take of this machine's cores while something of ours is measured."""

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds, at an instant `at`. all: of every core in use, a hypervisor's theft included; ours: of this process,
    all that it ran to the end, and all that runs below it."""

    at: float
    all: float
    ours: float


def spent() -> Spent:
    """Read now. Interrupts belong to nobody: those of our own requests would look like somebody else's work."""
    times = psutil.cpu_times()
    me = psutil.Process()
    ours = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            ours += sum(process.cpu_times()[:4])  # its own and of children that it saw end, user and system
        except psutil.NoSuchProcess:
            continue
    return Spent(time.monotonic(), times.user + times.nice + times.system + times.steal, ours)


def others_percent(before: Spent, after: Spent, cores: int) -> float:
    """Share of all cores that was taken by what is not ours, in percent.

    >>> others_percent(Spent(0.0, 100.0, 5.0), Spent(10.0, 112.0, 12.0), 2)
    25.0
    """
    whole = cores * (after.at - before.at)
    return max(0.0, 100 * ((after.all - before.all) - (after.ours - before.ours)) / whole) if whole > 0 else 0.0
