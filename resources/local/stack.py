"""All parts together: up, down, status, and the return of single parts. Nothing that was started is ever lost.

`up` starts what is not healthy, in parallel where `Part.after` allows, and stops all it started when one part fails.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from resources.errors import PortTaken, StackError
from resources.local import ports as ports_of
from resources.local.launch import Launch, Report
from resources.local.ledger import Contents, Ledger, Record
from resources.local.part import Part
from resources.local.probes import TIMEOUT_S, reason
from resources.local.processes import Ending, end, find, leads_session, marked, members, memory_bytes, remove, tree
from resources.local.supervisor import NAME as SUPERVISOR
from resources.local.supervisor import Journal, Restarts

NEEDED_BYTES = 2 * 1024**3
# Stacks that start at the same moment want the same ports.
PORT_TRIES = 4
# A restart by the supervisor ends by itself, and soon: people wait for it rather than being sent away.
SUPERVISOR_WAIT_S = 120.0


class Busy(StackError):
    """Another process changes this stack right now."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a stack is made of. preferred: port of every `part.port`; build: the parts on the ports chosen."""

    servers: Path
    preferred: Mapping[str, int]
    build: Callable[[Mapping[str, int]], Sequence[Part]]


@dataclass(frozen=True, slots=True)
class Health:
    """One part as it is now. state: healthy, unhealthy or stopped; note: what the supervisor did for it."""

    name: str
    state: str
    reason: str
    address: str
    pid: int | None
    memory_mb: float
    uptime_s: float
    note: str = ""

    @property
    def healthy(self) -> bool:
        return self.state == "healthy"


def silent(part: str, state: str, seconds: float) -> None:
    """A report that nobody reads."""


def up(
    home: Path,
    blueprint: Blueprint,
    explicit: Mapping[str, int] | None = None,
    report: Report = silent,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> Contents:
    """Bring every part up and return what runs; parts that are healthy already stay as they are. `StackError`.

    A port that somebody takes between the choice and the start falls to the next free one, unless it was asked for.
    """
    home, asked = home.resolve(), explicit or {}
    for folder in (home, home / "logs", home / "data"):
        folder.mkdir(parents=True, exist_ok=True)
    _check_disk(home, free_bytes(home))
    with _alone(home):
        for _ in range(PORT_TRIES - 1):
            try:
                return _bring_up(home, blueprint, asked, report)
            except PortTaken as error:
                if error.port in asked.values():
                    raise
        return _bring_up(home, blueprint, asked, report)


def _bring_up(home: Path, blueprint: Blueprint, explicit: Mapping[str, int], report: Report) -> Contents:
    ledger = Ledger(home)
    contents = ledger.read()
    _end_unrecorded(home, contents)
    alive = {name for name, record in contents.parts.items() if record.process()}
    pinned = {name: port for name, port in contents.ports.items() if name.partition(".")[0] in alive}
    known = {**blueprint.preferred, **{k: p for k, p in contents.ports.items() if k in blueprint.preferred}}
    chosen = ports_of.choose(known, explicit, pinned)
    parts = blueprint.build(chosen)
    kept = _healthy(parts, contents)
    _end_strays(parts, kept)
    replaced = [record for name, record in contents.parts.items() if name not in kept]
    _end_records(replaced)
    _end_orphans(home, replaced)
    ledger.place(str(blueprint.servers), chosen)
    Launch(home, parts, kept, ledger, report).run()
    return ledger.read()


def revive(home: Path, blueprint: Blueprint, names: Sequence[str], report: Report = silent) -> list[str]:
    """Start those of the named parts whose process is gone, on the ports they had; the names started.

    Whatever else runs stays as it is, healthy or not. `Busy` while `up` or `down` is at work, else `StackError`.
    """
    home = home.resolve()
    with _alone(home, SUPERVISOR):
        ledger = Ledger(home)
        contents = ledger.read()
        alive = {name for name, record in contents.parts.items() if record.process()}
        parts = blueprint.build(contents.ports)
        dead = [part for part in parts if part.name in names and part.name not in alive]
        others = frozenset(part.name for part in parts if part not in dead)
        _end_strays(dead, frozenset())
        records = [record for name, record in contents.parts.items() if name not in alive and name not in others]
        _end_orphans(home, records)
        for record in records:
            remove(record.leftovers)
        Launch(home, parts, others, ledger, report).run()
        return [part.name for part in dead]


def down(home: Path, strays: Sequence[Callable[[], int | None]] = (), report: Report = silent) -> list[str]:
    """End everything of this home, also what a killed `up` left behind; the names that were running. Repeatable."""
    home = home.resolve()
    if not (home / "lock").exists():
        return []  # no `up` ever ran here: leave no trace in somebody's folder
    # First of all, also in the middle of a restart: it would bring back what ends here.
    first = _end_supervisor(home)
    with _alone(home):
        ledger = Ledger(home)
        try:
            records = ledger.read().parts
        except StackError:
            records = {}
        stopped = _end_records(list(records.values()), report)
        lost = [process for stray in strays if (process := _process(stray()))]
        end([Ending(process, 2, 5) for process in lost])
        end([Ending(process, 15, 2) for process in marked(home)])
        ledger.clear()
        return first + stopped


def status(home: Path, parts: Sequence[Part], now: datetime, timeout_s: float = TIMEOUT_S) -> list[Health]:
    """Ask every part by its real probe, all at the same time."""
    home = home.resolve()
    records = Ledger(home).read().parts
    restarts = Journal(home).read()[1] if records else {}

    def ask(part: Part) -> Health:
        note = restarts.get(part.name, Restarts()).told(now)
        return _health(part, records.get(part.name), now, timeout_s, note)

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(ask, parts))


def _health(part: Part, record: Record | None, now: datetime, timeout_s: float, note: str) -> Health:
    process = record.process() if record else None
    if record is None or process is None:
        why = "not started" if record is None else f"process {record.pid} is gone: see logs/{part.name}.log"
        return Health(part.name, "stopped", why, part.address, None, 0.0, 0.0, note)
    part.prime()
    why = reason(lambda: part.ready(record.started), timeout_s) or ""
    return Health(
        part.name,
        "unhealthy" if why else "healthy",
        why,
        record.address,
        record.pid,
        round(memory_bytes(process) / 1024**2, 1),
        round((now - record.started).total_seconds(), 1),
        note,
    )


def _check_disk(home: Path, free: int) -> None:
    if free < NEEDED_BYTES:
        raise StackError(
            f"{home}: {free / 1024**3:.1f} GB free, {NEEDED_BYTES / 1024**3:.0f} GB needed: "
            "make room or choose another folder with --home"
        )


@contextmanager
def _alone(home: Path, who: str = "command") -> Iterator[None]:
    """One process changes a stack at a time. The lock ends with its process, however that dies."""
    with (home / "lock").open("a+") as file:
        deadline = time.monotonic() + SUPERVISOR_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                file.seek(0)
                pid, _, holder = file.read().strip().partition(" ")
                # Nobody named yet: taken a moment ago.
                if holder not in ("", SUPERVISOR) or time.monotonic() > deadline:
                    raise Busy(
                        f"{home}: another `trimtab up` or `down` (process {pid}) is at work: wait for it"
                    ) from error
                time.sleep(0.1)
        file.truncate(0)
        file.write(f"{os.getpid()} {who}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _healthy(parts: Sequence[Part], contents: Contents) -> frozenset[str]:
    def check(part: Part) -> str | None:
        record = contents.parts.get(part.name)
        if record is None or record.process() is None:
            return "not running"
        part.prime()
        return reason(lambda: part.ready(record.started), TIMEOUT_S)

    with ThreadPoolExecutor(max(1, len(parts))) as pool:
        return frozenset(p.name for p, why in zip(parts, pool.map(check, parts), strict=True) if why is None)


def _end_unrecorded(home: Path, contents: Contents) -> None:
    """A killed `up` may have started a part without noting it. Children of parts are not ours to end."""
    alive = filter(None, (record.process() for record in contents.parts.values()))
    noted = {member.pid for process in alive for member in tree(process)}
    lost = [process for process in marked(home) if leads_session(process) and process.pid not in noted]
    end([Ending(process, 15, 5) for process in lost])


def _ending(record: Record, process: psutil.Process) -> Ending:
    # What the supervisor is just starting belongs to the stack, and ends as its record says.
    return Ending(process, record.stop_signal, record.grace_s, session_only=record.name == SUPERVISOR)


def _end_orphans(home: Path, records: Sequence[Record]) -> None:
    """Children that outlived their part still lead no session of their own: they keep its number, and its ports."""
    sessions = {record.pid for record in records if record.process() is None}
    end([Ending(process, 15, 2) for process in members(marked(home), sessions)] if sessions else [])


def _end_supervisor(home: Path) -> list[str]:
    try:
        record = Ledger(home).read().parts.get(SUPERVISOR)
    except StackError:
        return []
    return _end_records([record]) if record else []


def _end_strays(parts: Sequence[Part], kept: frozenset[str]) -> None:
    lost = [process for part in parts if part.name not in kept if (process := _process(part.stray()))]
    end([Ending(process, 2, 5) for process in lost])


def _end_records(records: Sequence[Record], report: Report = silent) -> list[str]:
    """End parts, those that others need last. Returns the names that were still alive."""
    alive = {record.name: (record, process) for record in records if (process := record.process())}
    stopped: list[str] = []
    while waiting := [name for name in alive if name not in stopped]:
        needed = {dependency for name in waiting for dependency in alive[name][0].after}
        wave = [name for name in waiting if name not in needed]
        for name in wave:
            report(name, "stopping", 0)
        end([_ending(*alive[name]) for name in wave])
        for name in wave:
            remove(alive[name][0].leftovers)
            report(name, "stopped", 0)
        stopped += wave
    return stopped


def _process(pid: int | None) -> psutil.Process | None:
    if pid is None:
        return None
    try:
        return find(pid, psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None
