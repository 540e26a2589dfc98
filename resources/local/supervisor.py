"""The supervisor: starts a part that died again, after a growing pause, and tells `status` what it did.

It holds no part itself: each restart is a short process of its own (`stack.revive`), so that what that process starts
outlives it, is noted in the ledger and carries the home's mark. A killed supervisor therefore orphans nothing.
"""

import json
import logging
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from resources.errors import StackError
from resources.local.ledger import Ledger, Record

log = logging.getLogger("trimtab.supervisor")
NAME = "supervisor"
BUSY = 75
"""Exit code of a restart that found `up` or `down` at work: no failure, it is tried again."""
TICK_S = 1.0
HEARTBEAT = timedelta(seconds=5)
STEADY = timedelta(minutes=1)
MAX_PAUSE = timedelta(minutes=1)
BUSY_PAUSE = timedelta(seconds=2)
NOW = timedelta(0)


@dataclass(frozen=True, slots=True)
class Restarts:
    """What became of one part. deaths: since it last lived for a minute; next_at: due then, None while it lives."""

    restarts: int = 0
    deaths: int = 0
    last_at: datetime | None = None
    next_at: datetime | None = None
    why: str = ""

    def died(self, now: datetime, why: str) -> "Restarts":
        """Its process is gone: the first time it is due at once, then after 2, 4, 8 s, up to a minute.

        >>> from datetime import UTC
        >>> now, part = datetime(2013, 1, 1, tzinfo=UTC), Restarts()
        >>> [int((part := part.died(now, "")).pause(now).total_seconds()) for _ in range(8)]
        [0, 2, 4, 8, 16, 32, 60, 60]
        """
        steady = self.next_at is None and self.last_at is not None and now - self.last_at >= STEADY
        deaths = 1 if steady else self.deaths + 1
        pause = min(MAX_PAUSE, timedelta(seconds=2.0 ** min(deaths - 1, 10))) if deaths > 1 else NOW
        return replace(self, deaths=deaths, next_at=now + pause, why=why)

    def revived(self, now: datetime) -> "Restarts":
        return replace(self, restarts=self.restarts + 1, last_at=now, next_at=None)

    def pause(self, now: datetime) -> timedelta:
        return NOW if self.next_at is None else self.next_at - now

    def told(self, now: datetime) -> str:
        """For people, '' when nothing ever happened to it."""
        if self.next_at is not None:
            return f"{self.why}; next start in {max(0.0, self.pause(now).total_seconds()):.0f} s"
        if self.last_at is None:
            return ""
        times = f"{self.restarts} times" if self.restarts > 1 else "once"
        return f"restarted {times}, last {(now - self.last_at).total_seconds():.0f} s ago: {self.why}"


class Journal:
    """`supervisor.json`: what the supervisor did, replaced whole. It doubles as its sign of life."""

    def __init__(self, home: Path) -> None:
        self.file = home / "supervisor.json"

    def read(self) -> tuple[datetime | None, dict[str, Restarts]]:
        """When the supervisor last wrote, and every part it had to do with; nothing without a readable file."""
        try:
            found = json.loads(self.file.read_text())
            parts = {name: Restarts(**{**body, **_instants(body)}) for name, body in found["parts"].items()}
            return datetime.fromisoformat(found["seen_at"]), parts
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None, {}

    def write(self, now: datetime, parts: Mapping[str, Restarts]) -> None:
        body = {"seen_at": now, "parts": {name: asdict(part) for name, part in parts.items()}}
        partial = self.file.with_suffix(".part")
        partial.write_text(json.dumps(body, default=datetime.isoformat, indent=1) + "\n")
        partial.replace(self.file)


def _instants(body: Mapping[str, str | None]) -> dict[str, datetime | None]:
    return {name: datetime.fromisoformat(at) if (at := body[name]) else None for name in ("last_at", "next_at")}


class Supervisor:
    """Looks every second which recorded processes are gone. revival: command that starts the parts named after it."""

    def __init__(self, home: Path, revival: Sequence[str], clock: Callable[[], datetime]) -> None:
        self.home = home
        self.revival = revival
        self.clock = clock
        self.ledger = Ledger(home)
        self.journal = Journal(home)
        self.wanted: dict[str, Record] = {}
        self.parts: dict[str, Restarts] = {}
        self.written_at: datetime | None = None

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; a restart that goes on then is asked to undo itself."""
        while not stop.is_set():
            due = self.look()
            if due:
                self.revive(due, stop)
            self.beat()
            stop.wait(TICK_S)

    def look(self) -> list[str]:
        """Note who died; the names whose restart is due."""
        try:
            records = {n: r for n, r in self.ledger.read().parts.items() if n != NAME}
        except StackError as error:
            log.warning("%s", error)
            return []
        self.wanted |= records
        now = self.clock()
        for name, record in self.wanted.items():
            known = self.parts.get(name, Restarts())
            if name in records and record.process():
                if known.next_at is not None:  # somebody else brought it up
                    self.parts[name] = known.revived(now)
            elif known.next_at is None:
                why = f"process {record.pid} was gone"
                log.warning("%s: %s", name, why)
                self.parts[name] = known.died(now, why)
                self.written_at = None
        due = {name: part for name, part in self.parts.items() if part.next_at is not None and part.pause(now) <= NOW}
        # First deaths are mended together; what dies again and again, alone: its failure would undo the others.
        return [name for name, part in due.items() if part.deaths == 1] or sorted(due)[:1]

    def revive(self, names: list[str], stop: threading.Event) -> None:
        """Run one restart to its end and note what came of it."""
        self.beat()
        with subprocess.Popen([*self.revival, *names], stderr=subprocess.PIPE, text=True) as process:
            asked = False
            while True:
                try:
                    _, said = process.communicate(timeout=TICK_S)
                    break
                except subprocess.TimeoutExpired:
                    self.beat()
                    if stop.is_set() and not asked:
                        process.terminate()
                        asked = True
        now = self.clock()
        if process.returncode == BUSY:
            self.parts |= {name: replace(self.parts[name], next_at=now + BUSY_PAUSE) for name in names}
            return
        for name in names:
            if process.returncode == 0:
                self.parts[name] = self.parts[name].revived(now)
                log.info("%s: started again", name)
            else:
                why = f"start failed: {said.strip().splitlines()[0] if said.strip() else process.returncode}"
                self.parts[name] = self.parts[name].died(now, why)
                log.warning("%s: %s", name, self.parts[name].told(now))
        self.written_at = None

    def beat(self) -> None:
        """Write the journal when something changed, and every few seconds as a sign of life."""
        now = self.clock()
        if self.written_at is None or now - self.written_at >= HEARTBEAT:
            self.journal.write(now, self.parts)
            self.written_at = now
