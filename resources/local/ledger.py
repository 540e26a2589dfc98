"""`stack.json`: what runs, where it listens, which process it is. Replaced whole, never half written."""

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from resources.errors import StackError
from resources.local.processes import find


@dataclass(frozen=True, slots=True)
class Record:
    """One started part. created: the process's start in seconds since the epoch; started_at: ISO 8601, UTC."""

    name: str
    pid: int
    created: float
    started_at: str
    address: str
    ports: Mapping[str, int]
    after: tuple[str, ...]
    stop_signal: int
    grace_s: float
    leftovers: tuple[str, ...] = ()

    def process(self) -> psutil.Process | None:
        """Its process while it lives."""
        return find(self.pid, self.created)

    @property
    def started(self) -> datetime:
        return datetime.fromisoformat(self.started_at)


@dataclass(frozen=True, slots=True)
class Contents:
    """All that the file says. ports: `part.port` of the last start, kept through `down` so that addresses stay."""

    servers: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Record] = field(default_factory=dict)


class Ledger:
    """Reads and writes `<home>/stack.json`; safe to share between threads."""

    def __init__(self, home: Path) -> None:
        self.file = home / "stack.json"
        self._lock = threading.Lock()

    def read(self) -> Contents:
        """The contents, empty without a file. `StackError` when somebody broke it."""
        try:
            found = json.loads(self.file.read_text())
            parts = {name: _record(body) for name, body in found["parts"].items()}
            return Contents(found["servers"], found["ports"], parts)
        except FileNotFoundError:
            return Contents()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StackError(
                f"{self.file} can't be read ({error!r}): `trimtab down` ends what runs; then delete the file"
            ) from error

    def place(self, servers: str, ports: Mapping[str, int]) -> None:
        """Note where everything will listen."""
        with self._lock:
            self._write(Contents(servers, dict(ports), self.read().parts))

    def add(self, record: Record) -> None:
        with self._lock:
            now = self.read()
            self._write(Contents(now.servers, now.ports, {**now.parts, record.name: record}))

    def remove(self, name: str) -> None:
        with self._lock:
            now = self.read()
            parts = {key: record for key, record in now.parts.items() if key != name}
            self._write(Contents(now.servers, now.ports, parts))

    def clear(self) -> None:
        """Nothing runs; the ports stay noted. Also mends a broken file."""
        with self._lock:
            try:
                now = self.read()
            except StackError:
                now = Contents()
            if self.file.exists():
                self._write(Contents(now.servers, now.ports, {}))

    def _write(self, contents: Contents) -> None:
        partial = self.file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(contents), indent=2) + "\n")
        partial.replace(self.file)


def _record(body: Mapping[str, Any]) -> Record:
    return Record(**{**body, "after": tuple(body["after"]), "leftovers": tuple(body.get("leftovers", ()))})
