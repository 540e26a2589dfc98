"""Processes of the stack: alive or not, found again, ended with all their children."""

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "TRIMTAB_STACK"
"""Every process of a stack carries its absolute home under this name, so that it is found without a record."""

# The kernel counts ticks since boot; the boot instant moves a little when the clock is corrected.
SAME_START_S = 2.0


@dataclass(frozen=True, slots=True)
class Ending:
    """A process to end: ask with `signal`, wait, then kill it and its children.

    session_only: children that lead sessions of their own are other parts, and stay.
    """

    process: psutil.Process
    signal: int
    grace_s: float
    session_only: bool = False

    def tree(self) -> list[psutil.Process]:
        found = tree(self.process)
        return members(found, {self.process.pid}) if self.session_only else found


def find(pid: int, created: float) -> psutil.Process | None:
    """The living process with this id AND start (seconds since the epoch): ids are reused."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < SAME_START_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def marked(home: Path) -> list[psutil.Process]:
    """All processes that carry the home's mark, without this one and its ancestors."""
    mine = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in mine and process.environ().get(MARK) == str(home):
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, OSError):
            continue
    return found


def leads_session(process: psutil.Process) -> bool:
    """Parts are started in sessions of their own; what they start themselves is not."""
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def members(processes: Iterable[psutil.Process], sessions: Collection[int]) -> list[psutil.Process]:
    """Those that belong to one of these sessions."""
    found = []
    for process in processes:
        try:
            if os.getsid(process.pid) in sessions:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def tree(process: psutil.Process) -> list[psutil.Process]:
    """The process and all that descend from it."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory_bytes(process: psutil.Process) -> int:
    """Resident memory of the process's tree; pages shared between processes count in each."""
    total = 0
    for member in tree(process):
        try:
            total += member.memory_info().rss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def end(endings: Iterable[Ending]) -> None:
    """End all of them at once; returns when they and their children are gone."""
    trees = [(ending, ending.tree()) for ending in endings]
    start = time.monotonic()
    for ending, _ in trees:
        _send(ending.process, ending.signal)
    for ending, doomed in trees:
        left_s = max(0.0, start + ending.grace_s - time.monotonic())
        alive = _wait(doomed, left_s)
        # Children born while we waited belong to it too.
        late = {m.pid: m for root in alive for m in ([root] if ending.session_only else tree(root))}
        for member in late.values():
            _send(member, 9)
        _wait(list(late.values()), 5)


def remove(files: Iterable[str]) -> None:
    """What ended processes left behind."""
    for file in files:
        Path(file).unlink(missing_ok=True)


def _wait(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still live after the timeout. A zombie is dead, whether or not its parent ever asks for it."""
    deadline = time.monotonic() + timeout_s
    while True:
        _, alive = psutil.wait_procs(processes, timeout=0.05)
        processes = [process for process in alive if _lives(process)]
        if not processes or time.monotonic() > deadline:
            return processes


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, signal: int) -> None:
    try:
        process.send_signal(signal)
    except psutil.NoSuchProcess:
        return
