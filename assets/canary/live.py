"""While a rollout runs, its page is written beside it: whoever writes must neither delay a look nor end a rollout."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from assets.canary.rollout import Phase, Rollout

EVERY_S = 5.0


@dataclass
class Live:
    """Called with every state of a rollout. write: puts its page where people look, in a thread of its own, every few
    seconds and at each rung; one that is not done makes the next ones be left out. tell: at each rung, at once.

    Nothing is shown of a rollout that is rolling back: the weights come first. What either raises is kept for `close`.
    """

    write: Callable[[Rollout], None]
    tell: Callable[[Rollout], None]
    clock: Callable[[], float] = time.monotonic
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="page"))
    _last: "Future[None] | None" = None
    _place: tuple[Phase, int] | None = None
    _at: float = 0.0
    _trouble: str | None = None

    def __call__(self, rollout: Rollout) -> None:
        if rollout.first_release or rollout.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK):
            return
        place, now = (rollout.phase, rollout.rung), self.clock()
        fresh = place != self._place
        if fresh:
            try:
                self.tell(rollout)
            except Exception as error:  # whatever it is, a page is no reason to end a rollout
                self._trouble = str(error)
        if not fresh and now - self._at < EVERY_S:
            return
        self._place = place
        if self._last is None or self._last.done():
            self._at, self._last = now, self._writer.submit(self.write, rollout)

    def close(self, ended: Rollout | None) -> str | None:
        """Write the page of the end, if it came to one, and wait; what went wrong with the last page, if anything."""
        if ended is not None and not ended.first_release:
            self._last = self._writer.submit(self.write, ended)
        self._writer.shutdown(wait=True)
        error = None if self._last is None else self._last.exception()
        return self._trouble if error is None else str(error)


def measured(details: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a canary decision's details that make a curve."""
    found = {f"log_e.{name}": float(item["value"]) for name, item in details["log_e"].items()}
    if details["coverage"]:
        found |= {
            f"coverage.{name}": details["coverage"]["standing"][name] for name in ("covered", "expected", "beyond")
        }
    return found


def latencies(access: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By pool: requests and percentiles in milliseconds. access: rows of the log (pool, latency_ms)."""
    found = {}
    for pool, rows in access[access["pool"] != ""].groupby("pool", sort=True):
        p50, p95, p99 = np.percentile(rows["latency_ms"], (50, 95, 99)).tolist()
        found[str(pool)] = {"requests": len(rows), "p50": p50, "p95": p95, "p99": p99}
    return found
