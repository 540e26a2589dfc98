"""What the stack commands show: progress while parts start, a table of their health, where to look next."""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pipelines.parts import Addresses
from resources.local.stack import Health

COLOURS = {"waiting": "dim", "starting": "yellow", "ready": "green", "running": "green", "failed": "red"}
HEALTH_COLOURS = {"healthy": "green", "unhealthy": "red", "stopped": "dim"}
DONE = ("ready", "running", "failed", "stopped")


class Progress:
    """A table that changes in place on a terminal, a line for each change elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.start = time.monotonic()
        self.rows: dict[str, tuple[str, float, float]] = {}
        self._lock = threading.Lock()
        tty = self.console.is_terminal and not quiet
        self.live = Live(get_renderable=self._table, console=self.console, refresh_per_second=8) if tty else None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()
        if kind is None and not self.quiet and self.rows:
            self.console.print(f"done in {time.monotonic() - self.start:.1f} s", highlight=False)

    def report(self, part: str, state: str, seconds: float) -> None:
        """The stack's `Report`; any thread may call it."""
        with self._lock:
            self.rows[part] = (state, seconds, time.monotonic())
            if not self.quiet and not self.live and state != "waiting":
                took = f"  {seconds:.1f} s" if seconds else ""
                print(f"{time.monotonic() - self.start:6.1f}  {part:18} {state}{took}", file=sys.stderr, flush=True)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        with self._lock:
            for part, (state, seconds, since) in self.rows.items():
                shown = seconds if state in DONE else time.monotonic() - since
                style = COLOURS.get(state, "yellow")
                table.add_row(part, f"[{style}]{state}[/]", "" if state == "running" else f"{shown:5.1f} s")
        return table


def table(health: Sequence[Health]) -> None:
    """One line a part, the sum of memory below."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("part", "health", "address"):
        shown.add_column(title, no_wrap=True)
    shown.add_column("memory", justify="right", no_wrap=True)
    shown.add_column("up", justify="right", no_wrap=True)
    shown.add_column("why")
    for part in health:
        colour = HEALTH_COLOURS[part.state]
        memory = f"{part.memory_mb:,.0f} MB" if part.pid else ""
        uptime = _span(part.uptime_s) if part.pid else ""
        shown.add_row(
            part.name,
            f"[{colour}]{part.state}[/]",
            part.address,
            memory,
            uptime,
            "; ".join(filter(None, (part.reason, part.note))),
        )
    shown.add_row("", "", "", f"{sum(part.memory_mb for part in health):,.0f} MB", "", "")
    # A pipe has no width of its own; reasons must not be cut in logs.
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(shown, highlight=False)


def summary(addresses: Addresses, home: Path) -> None:
    """Where people and clients go next."""
    console = Console()
    for label, address in (
        ("Dagster", addresses.url("dagster-webserver")),
        ("MLflow", addresses.url("mlflow")),
        ("Inference (HTTP and gRPC)", addresses.gateway),
        ("Logs", str(home / "logs")),
    ):
        console.print(f"{label:26} {address}", highlight=False, soft_wrap=True)


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    for first, second, units in ((days, hours, "dh"), (hours, minutes, "hm"), (minutes, rest, "ms")):
        if first:
            return f"{first}{units[0]} {second}{units[1]}"
    return f"{rest}s"
