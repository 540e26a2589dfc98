"""Small real processes that stand for servers: they start in milliseconds and misbehave on demand."""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from resources.local.part import Part, inherited
from resources.local.ports import HOST
from resources.local.probes import fetch
from resources.local.stack import Blueprint

STUBBORN = "trap '' TERM; sleep 600 & while :; do sleep 1; done"


def at_once(_started: datetime) -> None:
    """Ready as soon as it runs."""


def sleeper(
    name: str,
    after: tuple[str, ...] = (),
    ready: Callable[[datetime], None] = at_once,
    command: Sequence[str] = ("sleep", "600"),
    patience_s: float = 20,
    grace_s: float = 2,
) -> Part:
    return Part(
        name, tuple(command), ready, after=after, environment=inherited(), patience_s=patience_s, grace_s=grace_s
    )


def web(name: str, port: int) -> Part:
    """A real HTTP server that answers a real probe."""
    url = f"http://{HOST}:{port}"
    return Part(
        name,
        (sys.executable, "-m", "http.server", str(port), "--bind", HOST),
        lambda _started: void(fetch(url)),
        address=url,
        ports={"http": port},
        environment=inherited(),
    )


def void(_value: object) -> None:
    """Throws a value away."""


def plan(*parts: Part) -> Blueprint:
    """These parts, whatever the ports."""
    return Blueprint(Path("servers"), {}, lambda _ports: parts)


def web_plan(preferred: Mapping[str, int]) -> Blueprint:
    """One web server on `web.http`."""
    return Blueprint(Path("servers"), preferred, lambda ports: [web("web", ports["web.http"])])
