"""What the guards saw, look by look, and what it proves: harm, harmlessness, a broken split, an emergency."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.canary import eprocess
from assets.canary.bursts import Bursts
from assets.canary.settings import CanarySettings
from assets.decision import Evidence
from assets.verdict import Verdict

Floats = NDArray[np.float64]

# Looks kept one by one: at two a second they span the kill switch's 30 s. Older ones merge beyond LONGEST.
NEWEST, LONGEST = 60, 240
# Weight of the comparison in a guard's evidence; the rest goes to the looks at 100 %, where nothing is compared.
COMPARED = 0.9
# Slow requests come in bursts: for the proof that there are few, at most so many requests a second count in full.
SLOW_UNITS_PER_S = 10.0
# Requests that may reach the wrong pool while a rung sends all to one: those in flight when the weights changed.
STRAY = 0.01
# Requests that take no longer are in the log by the time their look is taken.
QUICK_MS = 500.0
# Share of the looks that a forecast imagines: that of no rung.
AHEAD = 0.501
# An e-value is shown up to here.
SHOWN = 1e12


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
        return Look(self.share, a, b, c, d, e, f, self.seconds + other.seconds, other.slow_log_e, users)

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


@dataclass(frozen=True, slots=True)
class Guards:
    """All looks so far. Evidence of errors is a function of their sums a share; that of slow requests is in `bursts`.

    bursts: None in a record from before a look was the unit of slow requests; it replays by the sums as it was judged.
    """

    looks: tuple[Look, ...] = ()
    bursts: Bursts | None = None

    @classmethod
    def begin(cls, settings: CanarySettings) -> Self:
        """Before the first look."""
        return cls((), Bursts(settings.tolerance_slow, settings.max_slow_rate))

    def update(self, look: Look) -> "Guards":
        """One look more. Old looks of one share are merged in pairs once there are many."""
        bursts = self.bursts
        if bursts is not None:
            mine, theirs = ((look.counts[at], look.counts[at + 2]) for at in (0, 3))
            bursts = bursts.update(look.share, mine, theirs)
            look = replace(look, slow_log_e=bursts.log_e)
        looks = (*self.looks, look)
        if len(looks) > LONGEST:
            looks = (*_halved(looks[:-NEWEST]), *looks[-NEWEST:])
        return replace(self, looks=looks, bursts=bursts)

    def by_share(self) -> dict[float, Look]:
        """Sums of the looks at each share, in order of first appearance: all that the e-values depend on."""
        sums: dict[float, Look] = {}
        for look in self.looks:
            sums[look.share] = sums[look.share].plus(look) if look.share in sums else look
        return sums

    @property
    def canary_requests(self) -> int:
        return sum(look.canary_requests for look in self.looks)

    def to_dict(self) -> dict[str, Any]:
        looks = [[look.share, *look.counts, look.seconds, look.slow_log_e, look.users] for look in self.looks]
        return {"looks": looks, "bursts": self.bursts.to_dict() if self.bursts else None}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        bursts = value.get("bursts")
        looks = tuple(_look(kept) for kept in value["looks"])
        return cls(looks, Bursts.from_dict(bursts) if bursts else None)


def _look(kept: Sequence[Any]) -> Look:
    """Records of before lack the last values."""
    users = kept[9] if len(kept) > 9 else None
    return replace(Look(*kept[:9]), users=None if users is None else (users[0], users[1]))


def _halved(looks: tuple[Look, ...]) -> tuple[Look, ...]:
    """The next look of the same share is merged, whatever share came between: two may go on side by side."""
    merged: list[Look] = []
    single: dict[float, int] = {}
    for look in looks:
        if look.share in single:
            place = single.pop(look.share)
            merged[place] = merged[place].plus(look)
        else:
            single[look.share] = len(merged)
            merged.append(look)
    return tuple(merged)


def trace(guards: Guards, settings: CanarySettings) -> dict[str, Floats]:
    """Log E after each look, (L,): harm by `errors` and `slow`, `sample_ratio`, and `errors_safe`, `slow_safe`."""
    table = np.array([(look.share, *look.counts) for look in guards.looks], dtype=np.float64).reshape(-1, 7)
    thinned = np.array([slow_weight(look.canary_requests, look.seconds) for look in guards.looks]).reshape(-1, 1)
    share, requests = table[:, 0], table[:, 1]
    assigned = np.array([look.assigned for look in guards.looks], dtype=np.float64).reshape(-1, 2)
    alone, nobody = share == 1, share == 0
    stray = np.where(alone, assigned[:, 1], np.where(nobody, assigned[:, 0], 0.0))
    told = np.where(alone | nobody, assigned.sum(axis=1), 0.0)
    logs = {
        "sample_ratio": _mixed(
            eprocess.sample_ratio(share, assigned[:, 0], assigned[:, 1]), eprocess.excess(stray, told, STRAY), COMPARED
        )
    }
    plans = (
        ("errors", 2, settings.tolerance_errors, settings.non_inferiority_tolerance, settings.max_error_rate),
        ("slow", 3, settings.tolerance_slow, settings.non_inferiority_tolerance_slow, settings.max_slow_rate),
    )
    for name, column, tolerance, margin, max_rate in plans:
        bad, theirs = table[:, column], table[:, column + 3]
        by_itself = eprocess.excess(np.where(alone, bad, 0.0), np.where(alone, requests, 0.0), max_rate)
        logs[name] = _mixed(eprocess.harm(share, bad, theirs, tolerance), by_itself, COMPARED)
        # Either proof will do. Their mean, not their maximum, is an e-process where both nulls hold.
        alike = eprocess.non_inferiority(share, bad, theirs, margin)
        weight = thinned if name == "slow" and guards.bursts is not None else np.ones_like(thinned)
        logs[f"{name}_safe"] = _mixed(weight * alike, weight * eprocess.healthy(bad, requests, max_rate), 0.5)
    if guards.bursts is not None:
        logs["slow"] = np.array([look.slow_log_e or 0.0 for look in guards.looks])
    return logs


def slow_weight(requests: float, seconds: float) -> float:
    """Power to which a look's evidence that few requests are slow is raised: at most one, so an e-value stays one.

    requests: of the canary. A stall makes all of them slow at once, so a thousand in a second are not a thousand
    observations of how often it stalls. seconds = 0 is a look of no known pace: all count.
    """
    return min(1.0, SLOW_UNITS_PER_S * seconds / requests) if seconds and requests else 1.0


def _mixed(first: Floats, second: Floats, weight: float) -> Floats:
    """Log of the weighted mean of two e-processes, after each look."""
    one, two = (eprocess.log_mean(np.cumsum(logs, axis=0)) for logs in (first, second))
    return np.logaddexp(math.log(weight) + one, math.log(1 - weight) + two)


def last(guards: Guards, settings: CanarySettings) -> dict[str, float]:
    """Log E after the last look; 0 before the first."""
    if guards.bursts is None:  # all of it is in the sums
        guards = Guards(tuple(guards.by_share().values()))
    return {name: float(logs[-1]) if len(logs) else 0.0 for name, logs in trace(guards, settings).items()}


def evidence(guards: Guards, settings: CanarySettings, forecast: bool = True) -> tuple[Evidence, ...]:
    """Kill switch, errors, slow, sample_ratio. FAIL rolls back; PASS of errors and slow is proof of harmlessness.

    forecast: say how many requests more would prove it; that is a search, and not wanted at every look.
    """
    logs = last(guards, settings)
    return (
        _kill_switch(guards, settings),
        _guard(guards, "errors", logs, settings.alpha_errors, settings, forecast),
        _guard(guards, "slow", logs, settings.alpha_slow, settings, forecast),
        _sample_ratio(guards, logs["sample_ratio"], settings),
    )


def _guard(
    guards: Guards, name: str, logs: Mapping[str, float], alpha: float, settings: CanarySettings, forecast: bool
) -> Evidence:
    mine, theirs = (sum(getattr(look, f"{arm}_{name}") for look in guards.looks) for arm in ("canary", "baseline"))
    seen = guards.canary_requests, sum(look.baseline_requests for look in guards.looks)
    said = f"{name}: {mine} of {seen[0]} challenger requests, {theirs} of {seen[1]} champion requests"
    if name == "slow" and guards.bursts is not None:
        said += f", judged a look at a time ({len(guards.looks)})"
    if logs[name] >= math.log(1 / alpha):
        why = f"{said}: more than chance or shared trouble explains (false once in {1 / alpha:.0f} rollouts)"
        return Evidence(name, Verdict.FAIL, why, _shown(logs[name]), 1 / alpha)
    proven, bound = logs[f"{name}_safe"], 1 / settings.alpha_non_inferiority
    if proven >= math.log(bound):
        return Evidence(name, Verdict.PASS, f"{said}: proven no worse than allowed", _shown(proven), bound)
    why = f"{said}: neither harm nor its absence is proven"
    if forecast:
        more = clean_requests_needed(guards, name, settings)
        why += f"; {more} more challenger requests without one would prove it" if more else "; it is out of reach"
    return Evidence(name, Verdict.INCONCLUSIVE, why, _shown(proven), bound)


def _sample_ratio(guards: Guards, log_e: float, settings: CanarySettings) -> Evidence:
    bound = 1 / settings.alpha_sample_ratio
    seen = [sum(look.assigned[arm] for look in guards.looks) for arm in (0, 1)]
    total = sum(seen)
    assigned = sum(look.share * sum(look.assigned) for look in guards.looks)
    unit = "users" if any(look.users for look in guards.looks) else "requests"
    said = f"{seen[0]} of {total} {unit} reached the challenger, {assigned:.0f} were assigned to it"
    if log_e >= math.log(bound):
        return Evidence("sample_ratio", Verdict.FAIL, f"the split is broken: {said}", _shown(log_e), bound)
    any_seen = any(look.requests for look in guards.looks)
    verdict = Verdict.PASS if any_seen else Verdict.INCONCLUSIVE
    return Evidence("sample_ratio", verdict, said if any_seen else "no request was seen", _shown(log_e), bound)


def _kill_switch(guards: Guards, settings: CanarySettings) -> Evidence:
    """Outside the statistics. The champion's own share is taken off: trouble that both have is no reason to switch."""
    recent: list[Look] = []
    for look in reversed(guards.looks):
        if recent and sum(item.seconds for item in recent) + look.seconds > settings.kill_window_s:
            break
        recent.append(look)
    shares = []
    for arm in ("canary", "baseline"):
        requests, errors = (sum(getattr(look, f"{arm}_{what}") for look in recent) for what in ("requests", "errors"))
        shares.append(errors / requests if requests >= settings.kill_requests else None)
    canary, baseline = shares
    if canary is None:
        why = f"fewer than {settings.kill_requests} challenger requests in {settings.kill_window_s:g} s: not armed"
        verdict = Verdict.PASS if guards.canary_requests else Verdict.INCONCLUSIVE
        return Evidence("kill_switch", verdict, why, None, settings.kill_share)
    above = canary - (baseline or 0.0)
    why = f"{canary:.1%} of the challenger's latest requests failed, {baseline or 0.0:.1%} of the champion's"
    verdict = Verdict.FAIL if above > settings.kill_share else Verdict.PASS
    return Evidence("kill_switch", verdict, why, above, settings.kill_share)


def safe(guards: Guards, settings: CanarySettings) -> bool:
    """Is every guard's harmlessness proven? No request, no proof."""
    logs, bound = last(guards, settings), math.log(1 / settings.alpha_non_inferiority)
    return logs["errors_safe"] >= bound and logs["slow_safe"] >= bound


def clean_requests_needed(guards: Guards, name: str, settings: CanarySettings) -> int | None:
    """Further challenger requests without an event of this kind that would prove harmlessness; None: over a million."""
    bound, looks = math.log(1 / settings.alpha_non_inferiority), tuple(guards.by_share().values())
    seen = sum(look.seconds for look in looks)
    # A share of its own, so that its pace is not averaged with that of looks before it.
    each_s = seen / guards.canary_requests if guards.canary_requests else 0.0

    def proven(more: int) -> bool:
        clean = Look(AHEAD, more, 0, 0, 0, 0, 0, more * each_s)
        return last(replace(guards, looks=(*looks, clean)), settings)[f"{name}_safe"] >= bound

    few, many = 0, 1 << 20
    if not proven(many):
        return None
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if proven(middle) else (middle + 1, many)
    return many


def _shown(log_e: float) -> float:
    return min(math.exp(min(log_e, math.log(SHOWN))), SHOWN)
