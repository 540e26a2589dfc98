"""Metrics of a fit while it goes on: gathered for a moment, sent together, and never a reason to stop the fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# Points sent at once at most; MLflow takes 1000.
BATCH = 500


@dataclass
class Training:
    """An open run of MLflow. send: [(step, metrics, instant in ms)] to MLflow; clock: seconds, for the pauses between.

    A fit is worth more than its curve: what cannot be sent is dropped, counted, and no more is tried.
    """

    run_id: str
    send: Callable[[list[tuple[int, dict[str, float], int]]], None]
    clock: Callable[[], float]
    every_s: float = 1.0
    dropped: int = 0
    sent: int = 0
    why: str = ""
    _held: list[tuple[int, dict[str, float], int]] = field(default_factory=list)
    _last_s: float | None = None

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        """One report of a fit. Seldom more than a note: it is sent with those of the same second."""
        now_s = self.clock()
        self._held.append((step, dict(metrics), int(now_s * 1000)))
        if self._last_s is None:
            self._last_s = now_s
        if now_s - self._last_s >= self.every_s or sum(len(item[1]) for item in self._held) >= BATCH:
            self.flush()
            self._last_s = now_s

    def flush(self) -> None:
        """Send what is held."""
        held, self._held = self._held, []
        if not held:
            return
        if self.why:
            self.dropped += len(held)
            return
        try:
            self.send(held)
        except Exception as error:  # whatever it is, the fit goes on
            self.why = f"{type(error).__name__}: {error}"
            self.dropped += len(held)
        else:
            self.sent += len(held)
