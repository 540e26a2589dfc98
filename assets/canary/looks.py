"""One look at the traffic: what each arm was sent and how it went, counted from the access record."""

import math
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pandas as pd

from assets.canary.outcomes import Known, together
from assets.canary.settings import CanarySettings

# Requests that take no longer are in the log by the time their look is taken.
QUICK_MS = 500.0


@dataclass(frozen=True, slots=True)
class Look:
    """Requests that ended since the last look. share: assigned share of the canary, 0 to 1; seconds: its length.

    A request is slow above max(the champion's frozen p95, settings.slow_ms): an absolute objective, because on one
    machine each pool has bursts of its own, and a p95 of microseconds would call every burst of one pool harm.
    """

    share: float
    canary_requests: int
    canary_errors: int
    canary_slow: int
    baseline_requests: int
    baseline_errors: int
    baseline_slow: int
    seconds: float
    # Log E of slow requests after this look; None in records from before a look was their unit.
    slow_log_e: float | None = None
    # Users that came for the first time, the canary's and the baseline's, where the split is sticky: they, not their
    # requests, fall on the arms at random.
    users: tuple[int, int] | None = None
    # Outcomes that became known, of requests of whatever look.
    outcomes: tuple[Known, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or not 0 <= self.seconds < math.inf:
            raise ValueError(f"look: share = {self.share}, seconds = {self.seconds}: share is in [0, 1], seconds >= 0")
        for arm, (requests, errors, slow) in (("canary", self.counts[:3]), ("baseline", self.counts[3:])):
            if not 0 <= errors <= requests or not 0 <= slow <= requests:
                raise ValueError(f"look: {arm}: {errors} errors and {slow} slow of {requests} requests")

    @property
    def requests(self) -> int:
        """Of both arms."""
        return self.canary_requests + self.baseline_requests

    @property
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Requests, errors, slow: the canary's, then the baseline's."""
        mine = self.canary_requests, self.canary_errors, self.canary_slow
        return (*mine, self.baseline_requests, self.baseline_errors, self.baseline_slow)

    def plus(self, other: "Look") -> "Look":
        """Both looks as one; they must have the same share."""
        if self.share != other.share:
            raise ValueError(f"looks of shares {self.share} and {other.share} don't merge")
        a, b, c, d, e, f = (one + two for one, two in zip(self.counts, other.counts, strict=True))
        users = None
        if self.users is not None and other.users is not None:
            users = self.users[0] + other.users[0], self.users[1] + other.users[1]
        outcomes = together((*self.outcomes, *other.outcomes))
        return Look(self.share, a, b, c, d, e, f, self.seconds + other.seconds, other.slow_log_e, users, outcomes)

    @property
    def assigned(self) -> tuple[int, int]:
        """What fell on the arms at random, the canary's and the baseline's."""
        return self.users or (self.canary_requests, self.baseline_requests)


def due(access: pd.DataFrame, since: datetime, until: datetime) -> pd.DataFrame:
    """The rows of the look [since, until): a request counts when it begins, a long one when it is surely in the log.

    So every request counts in one look, and those of many seconds in a later one instead of in none.
    """
    known = access["seen_at"] + pd.to_timedelta(np.maximum(access["latency_ms"] - QUICK_MS, 0.0), unit="ms")
    return access[(known >= pd.Timestamp(since)) & (known < pd.Timestamp(until))]


def first_events(access: pd.DataFrame, slow_ms: float, canary_pool: str) -> pd.DataFrame:
    """Access rows of a sticky split, from the rollout's begin, with a user's later errors and slow requests forgiven.

    One user's errors are one event: all of them counted, bursts of a few users roll back 18 % of equal challengers.
    Column `new`: a user's first request since the canary gets any: before, it says nothing of where users fall. Rows
    without a user, split at random, each stand for themselves.
    """
    rows = access.sort_values("seen_at", kind="stable")
    who = rows["unit"].where(rows["unit"] != "", rows["request_id"])
    failed, slow = ~rows["ok"].astype(bool) | (rows["attempts"] > 1), rows["latency_ms"] > slow_ms
    again = {name: bad & (bad.groupby(who).cumsum() > 1) for name, bad in (("failed", failed), ("slow", slow))}
    opened = rows.loc[rows["pool"] == canary_pool, "seen_at"].min()
    since = rows["seen_at"] >= opened
    return rows.assign(
        ok=rows["ok"].astype(bool) | again["failed"],
        attempts=rows["attempts"].mask(again["failed"], 1),
        latency_ms=rows["latency_ms"].mask(again["slow"], slow_ms),
        new=since & ~who.where(since, rows["request_id"]).duplicated(),
    )


def count(
    access: pd.DataFrame, share: float, canary_pool: str, baseline_pool: str, slow_ms: float, seconds: float
) -> Look:
    """The look that these access rows are (columns pool, ok, latency_ms and attempts). pool: the one it was sent to.

    An answer that only the other pool's second try saved is an error of the first. Rows without a pool count nowhere.
    """
    failed, slow = ~access["ok"].astype(bool) | (access["attempts"] > 1), access["latency_ms"] > slow_ms
    mine, theirs = access["pool"] == canary_pool, access["pool"] == baseline_pool
    parts = (mine, mine & failed, mine & slow, theirs, theirs & failed, theirs & slow)
    a, b, c, d, e, f = (int(part.sum()) for part in parts)
    users = None
    if "new" in access:
        users = int((mine & access["new"]).sum()), int((theirs & access["new"]).sum())
    return Look(share, a, b, c, d, e, f, seconds, users=users)


def slow_threshold_ms(champion_p95_ms: float | None, settings: CanarySettings) -> float:
    """Frozen when a rollout begins. champion_p95_ms: None where the champion had no traffic to measure."""
    return max(champion_p95_ms or 0.0, settings.slow_ms)
