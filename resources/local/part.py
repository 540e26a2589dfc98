"""A part of the stack: how one server starts, when it is ready, what it needs first."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from resources.libraries import SILENT

Probe = Callable[[datetime], None]
"""Raises with a reason until the part works. Gets the instant the process started: older signs of life don't count."""

# A caller's own credentials, profiles and servers would win over the stack's.
FOREIGN = ("AWS_", "DAGSTER_", "MLFLOW_", "PG")


def _nothing() -> None: ...


def _nobody() -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Part:
    """One server: data only, and the functions that know it. `address` is for people and clients."""

    name: str
    command: tuple[str, ...]
    ready: Probe
    address: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Complete: nothing else is inherited."""
    prepare: Callable[[], None] = _nothing
    """Before the start: files and folders. Safe to repeat."""
    settle: Callable[[], None] = _nothing
    """After the first readiness: databases, buckets. Safe to repeat."""
    prime: Callable[[], object] = _nothing
    """What the probe imports and builds once; its time limit doesn't count this."""
    stray: Callable[[], int | None] = _nobody
    """Its process's id when its environment can't be read from outside."""
    patience_s: float = 90
    stop_signal: int = signal.SIGTERM
    grace_s: float = 5
    leftovers: tuple[str, ...] = ()
    """Files outside the home that a killed server leaves behind."""


def inherited(environ: Mapping[str, str] | None = None, **extra: str) -> dict[str, str]:
    """A child's environment: the caller's without foreign settings, loopback past any proxy, and `extra`."""
    environ = os.environ if environ is None else environ
    kept = {key: value for key, value in environ.items() if not key.startswith(FOREIGN)}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(filter(None, [environ.get(name, ""), "127.0.0.1,localhost"]))
    return kept | SILENT | {"AWS_EC2_METADATA_DISABLED": "true", "PYTHONUNBUFFERED": "1"} | extra
