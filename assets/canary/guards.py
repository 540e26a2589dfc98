"""What the guards saw, look by look, and what it proves: harm, harmlessness, a broken split."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assets.canary import eprocess
from assets.canary.bursts import Bursts
from assets.canary.looks import Look
from assets.canary.outcomes import Known, together
from assets.canary.settings import CanarySettings, OutcomeSettings

Floats = NDArray[np.float64]

# Looks kept one by one: at two a second they span the kill switch's 30 s. Older ones merge beyond LONGEST.
NEWEST, LONGEST = 60, 240
# Weight of the comparison in a guard's evidence; the rest goes to the looks at 100 %, where nothing is compared.
COMPARED = 0.9
# Slow requests come in bursts: for the proof that there are few, at most so many requests a second count in full.
SLOW_UNITS_PER_S = 10.0
# Requests that may reach the wrong pool while a rung sends all to one: those in flight when the weights changed.
STRAY = 0.01


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

    @property
    def outcomes(self) -> tuple[Known, ...]:
        """What became known of requests, by the share at which they were assigned."""
        return together(part for look in self.looks for part in look.outcomes)

    def to_dict(self) -> dict[str, Any]:
        looks = [
            [look.share, *look.counts, look.seconds, look.slow_log_e, look.users, [astuple(p) for p in look.outcomes]]
            for look in self.looks
        ]
        return {"looks": looks, "bursts": self.bursts.to_dict() if self.bursts else None}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        bursts = value.get("bursts")
        looks = tuple(_look(kept) for kept in value["looks"])
        return cls(looks, Bursts.from_dict(bursts) if bursts else None)


def _look(kept: Sequence[Any]) -> Look:
    """Records of before lack the last values."""
    users, outcomes = (kept[at] if len(kept) > at else None for at in (9, 10))
    told = tuple(Known(*part) for part in outcomes or ())
    return replace(Look(*kept[:9]), users=None if users is None else (users[0], users[1]), outcomes=told)


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
    """Log E after each look, (L,): harm by `errors` and `slow`, `sample_ratio`, and `errors_safe`, `slow_safe`.

    And `business` with `business_safe`, where the spec names an event.
    """
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
    return logs | (_business(guards, settings.outcome) if settings.outcome.judged else {})


def _business(guards: Guards, asked: OutcomeSettings) -> dict[str, Floats]:
    """Outcomes are compared, never held to a rate: what is usual is the business's own."""
    fewer = asked.harm == "fewer"
    harm, safe = (eprocess.loss, eprocess.no_loss) if fewer else (eprocess.harm, eprocess.non_inferiority)
    parts = [(at, part) for at, look in enumerate(guards.looks) for part in look.outcomes]
    where = np.array([at for at, _ in parts], dtype=np.intp)
    share, mine, theirs = np.array([(p.share, p.canary_events, p.baseline_events) for _, p in parts]).reshape(-1, 3).T
    found = {}
    for name, proof, tolerance in (
        ("business", harm, asked.tolerance),
        ("business_safe", safe, asked.non_inferiority_tolerance),
    ):
        gained = proof(share, mine, theirs, tolerance)
        by_look = np.zeros((len(guards.looks), gained.shape[-1]))
        np.add.at(by_look, where, gained)
        found[name] = eprocess.log_mean(np.cumsum(by_look, axis=0))
    return found


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
