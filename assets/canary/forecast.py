"""Said before a rollout starts, and while it runs: what it would notice, and how long it will take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assets.canary import eprocess
from assets.canary.curves import requests_needed, shares
from assets.canary.eprocess import detectable_ratio
from assets.canary.evidence import clean_requests_needed, safe
from assets.canary.guards import slow_weight
from assets.canary.rollout import Phase, Rollout, share
from assets.canary.settings import MIRROR, CanarySettings

# More requests than this are no forecast but a refusal.
MOST = 1 << 24


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the champion's traffic was like lately. errors, slow: shares of its requests."""

    requests_per_s: float
    errors: float
    slow: float


@dataclass(frozen=True, slots=True)
class Plan:
    """requests: of both pools until promotion of a challenger that equals the champion; None: never by this ladder.

    seconds: at the traffic's pace, None without traffic. detectable: by guard, the smallest ratio to the champion's
    rate that so many requests show on average; None: no increase at all. covering: challenger requests, of these, until
    the feature space is covered (fewer where cells in need are favoured); 0 where the spec asks for none, None: never.
    """

    requests: int | None
    seconds: float | None
    detectable: dict[str, float | None]
    covering: int | None = 0


def plan(settings: CanarySettings, traffic: Traffic, reference: Sequence[int] | None = None) -> Plan:
    """Before the first request. reference: rows by cell, where the spec asks for coverage."""
    looks, needed = _rungs(settings, reference)
    hold = _hold(settings, traffic, looks)
    if hold is None or needed is None:
        return Plan(None, None, _detectable(settings, traffic, looks), needed)
    looks.append((looks[-1][0], hold))
    requests = math.ceil(sum(n for _, n in looks)) + settings.requests_per_rung
    copies = settings.mirror_requests if settings.ladder[0] == MIRROR else 0
    seconds = (requests + copies) / traffic.requests_per_s if traffic.requests_per_s > 0 else None
    return Plan(requests, seconds, _detectable(settings, traffic, looks), needed)


def _rungs(settings: CanarySettings, reference: Sequence[int] | None) -> tuple[list[tuple[float, float]], int | None]:
    """(share, requests of both arms) of each partial rung, and the challenger requests that coverage needs in all."""
    looks: list[tuple[float, float]] = []
    mine, needed = 0.0, 0
    for index, percent in enumerate(settings.percents[:-1]):
        part, requests = percent / 100, float(settings.requests_per_rung)
        if reference is not None and (before := covering(settings, reference, index + 1)) != 0:
            if before is None:
                return [*looks, (part, requests)], None
            needed = before
            requests = max(requests, (needed - mine) / part)
        looks.append((part, requests))
        mine += part * requests
    return looks, needed


def covering(settings: CanarySettings, reference: Sequence[int], index: int) -> int | None:
    """Challenger requests that the climb to percents[index] waits for, by the reference's traffic; None: never."""
    limits = settings.coverage.before(settings.percents, index)
    return requests_needed(shares(reference), settings.coverage.least, limits[0]) if limits else 0


def sentence(made: Plan) -> str:
    """For the diary of the rollout and the log of its run."""
    shown = " and ".join(
        f"{name} {ratio:.1f} times as frequent" if ratio else f"no increase of {name}"
        for name, ratio in made.detectable.items()
    )
    if made.covering is None:
        return f"so much of the feature space is never covered: lower canary.coverage.covered; would show {shown}"
    if made.requests is None:
        return f"the champion's own trouble is too frequent to prove a challenger harmless; would show {shown}"
    time = "no traffic lately" if made.seconds is None else f"about {made.seconds:.0f} s at the pace of late"
    kinds = f", {made.covering} of them the challenger's to cover the feature space" if made.covering else ""
    return f"needs about {made.requests} requests ({time}){kinds}; would show {shown}"


def expected_seconds(rollout: Rollout) -> float | None:
    """Seconds until a harmless challenger is promoted, by the traffic so far; None before traffic or out of reach."""
    settings, sums = rollout.settings, rollout.guards.by_share()
    seconds = sum(look.seconds for look in sums.values())
    seen = sum(look.requests for look in sums.values())
    if rollout.ended or rollout.phase is Phase.ROLLING_BACK or not seen or not seconds:
        return None
    rungs = [percent / 100 for percent in settings.percents]
    ahead = [part for part in rungs if part > share(rollout)]
    left = max(settings.requests_per_rung - rollout.rung_requests, 0) + settings.requests_per_rung * len(ahead)
    if rollout.phase is not Phase.PROMOTING:
        if settings.outcome.required and not safe(rollout.guards, settings):
            return None  # labels come when they come
        proofs = [clean_requests_needed(rollout.guards, name, settings) for name in ("errors", "slow")]
        proofs.append(_left_to_cover(rollout))
        if None in proofs:
            return None
        last = rungs[-2]
        soon = sum(part * settings.requests_per_rung for part in ahead if part <= last)
        left += math.ceil(max(max(n for n in proofs if n is not None) - soon, 0.0) / last)
    return left / (seen / seconds)


def _left_to_cover(rollout: Rollout) -> int | None:
    """Challenger requests that the last climb still waits for; None: out of reach."""
    if rollout.coverage is None:
        return 0
    needed = covering(rollout.settings, rollout.coverage.reference, len(rollout.settings.percents) - 1)
    return None if needed is None else max(needed - sum(rollout.coverage.seen), 0)


def _hold(settings: CanarySettings, traffic: Traffic, looks: list[tuple[float, float]]) -> float | None:
    """Requests on the last partial rung, beyond its own, until both harmlessness proofs are expected."""
    last = looks[-1][0]

    def proven(more: float) -> bool:
        return all(
            _proof([*looks, (last, more)], rate, margin, most, pace) >= math.log(1 / settings.alpha_non_inferiority)
            for rate, margin, most, pace in (
                (traffic.errors, settings.non_inferiority_tolerance, settings.max_error_rate, 0.0),
                (traffic.slow, settings.non_inferiority_tolerance_slow, settings.max_slow_rate, traffic.requests_per_s),
            )
        )

    few, many = 0, MOST
    if not proven(many):
        return None
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if proven(middle) else (middle + 1, many)
    return float(many)


def _proof(looks: list[tuple[float, float]], rate: float, margin: float, most: float, pace: float) -> float:
    """Log E of harmlessness at the counts one expects of two equal arms. looks: (share, requests of both).

    pace: requests a second where they count by time, 0 where each counts.
    """
    shares, requests = (np.array(column) for column in zip(*looks, strict=True))
    mine = shares * requests
    weight = np.array([[slow_weight(part * n, n / pace if pace else 0.0)] for part, n in looks])
    alike = (weight * eprocess.non_inferiority(shares, mine * rate, (requests - mine) * rate, margin)).sum(axis=0)
    healthy = (weight * eprocess.healthy(mine * rate, mine, most)).sum(axis=0)
    both = np.logaddexp(eprocess.log_mean(alike), eprocess.log_mean(healthy))
    return float(both - math.log(2))


def _detectable(
    settings: CanarySettings, traffic: Traffic, looks: list[tuple[float, float]]
) -> dict[str, float | None]:
    total = sum(n for _, n in looks)
    mean_share = sum(part * n for part, n in looks) / total
    # Without a single event the rate is not zero but unknown: half an event stands for it.
    floor = 0.5 / total
    return {
        name: detectable_ratio(max(rate, floor), mean_share, round(total), tolerance, alpha)
        for name, rate, tolerance, alpha in (
            ("errors", traffic.errors, settings.tolerance_errors, settings.alpha_errors),
            ("slow", traffic.slow, settings.tolerance_slow, settings.alpha_slow),
        )
    }
