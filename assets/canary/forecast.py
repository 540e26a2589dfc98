"""Said before a rollout starts, and while it runs: what it would notice, and how long it will take."""

import math
from dataclasses import dataclass

import numpy as np

from assets.canary import eprocess
from assets.canary.eprocess import detectable_ratio
from assets.canary.guards import clean_requests_needed, slow_weight
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
    rate that so many requests show on average; None: no increase at all.
    """

    requests: int | None
    seconds: float | None
    detectable: dict[str, float | None]


def plan(settings: CanarySettings, traffic: Traffic) -> Plan:
    """Before the first request."""
    partial = [percent / 100 for percent in settings.percents[:-1]]
    looks = [(part, float(settings.requests_per_rung)) for part in partial]
    hold = _hold(settings, traffic, looks)
    if hold is None:
        return Plan(None, None, _detectable(settings, traffic, looks))
    looks.append((partial[-1], hold))
    requests = math.ceil(sum(n for _, n in looks)) + settings.requests_per_rung
    copies = settings.mirror_requests if settings.ladder[0] == MIRROR else 0
    seconds = (requests + copies) / traffic.requests_per_s if traffic.requests_per_s > 0 else None
    return Plan(requests, seconds, _detectable(settings, traffic, looks))


def sentence(made: Plan) -> str:
    """For the diary of the rollout and the log of its run."""
    shown = " and ".join(
        f"{name} {ratio:.1f} times as frequent" if ratio else f"no increase of {name}"
        for name, ratio in made.detectable.items()
    )
    if made.requests is None:
        return f"the champion's own trouble is too frequent to prove a challenger harmless; would show {shown}"
    time = "no traffic lately" if made.seconds is None else f"about {made.seconds:.0f} s at the pace of late"
    return f"needs about {made.requests} requests ({time}); would show {shown}"


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
        proofs = [clean_requests_needed(rollout.guards, name, settings) for name in ("errors", "slow")]
        if None in proofs:
            return None
        last = rungs[-2]
        soon = sum(part * settings.requests_per_rung for part in ahead if part <= last)
        left += math.ceil(max(max(n for n in proofs if n is not None) - soon, 0.0) / last)
    return left / (seen / seconds)


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
