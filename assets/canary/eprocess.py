"""E-processes on counts: evidence that may be looked at after every request without losing its guarantee.

Each function returns log increments, one per alternative (last axis). Increments of successive looks add up, in any
order; `log_mean` over the alternatives is the log of an e-process E that starts at 1. While its null hypothesis holds
P(E ever >= 1/alpha) <= alpha (Ville's inequality). Everything is in logs, so nothing overflows.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# How many times worse than tolerated the harm may be: statistics of design section 4.
WORSE = (1.2, 1.5, 2.0, 3.0, 5.0)
# What a harmless challenger's rate may be, relative to the champion's.
ALIKE = (1.0, 0.9, 0.7, 0.5)
# The same where fewer events are harm: parts of the least that is tolerated.
FEWER = (0.5, 0.65, 0.8, 0.9)
# How far from the assigned odds a broken split may lie.
ODDS = (0.5, 0.8, 1.25, 2.0)
# What a healthy challenger's rate may be, relative to the highest allowed.
HEALTHY = (0.0, 0.25, 0.5)
# An event under 'this never happens' ends that alternative; a number, because JSON has no infinity.
NEVER = -1e9


def log_mean(logs: Floats) -> Floats:
    """Log of the mean e-value of the alternatives, the last axis of `logs`.

    >>> float(log_mean(np.array([0.0, 0.0])))
    0.0
    >>> float(log_mean(np.array([1e5, NEVER]))) > 99_999
    True
    """
    top: Floats = logs.max(axis=-1)
    mean: Floats = np.exp(logs - top[..., None]).mean(axis=-1)
    return top + np.log(mean)


def relative(
    share: ArrayLike, canary: ArrayLike, baseline: ArrayLike, null: float, ratios: tuple[float, ...]
) -> Floats:
    """Evidence on the ratio p_canary / p_baseline against `null`, from events alone: (..., K) log increments.

    share: (...) assigned share of the canary at the look; canary, baseline: (...) events that each arm saw.
    Given that an event happened, it fell on the canary with probability s r / (s r + 1 - s): true for every base
    rate, so a base rate that doubles or an incident that both arms share leaves the guarantee intact. Shares 0 and 1
    compare nothing: no evidence. Idea: Lindon & Malek, NeurIPS 2022.
    For ratios above null, E tests 'ratio <= null'; for ratios below, 'ratio >= null'.
    """
    s = np.asarray(share, dtype=np.float64)[..., None]
    ratio = np.asarray(ratios)
    on_canary, on_baseline = (np.asarray(count, dtype=np.float64)[..., None] for count in (canary, baseline))
    # With odds o = r/null against the null, theta/theta0 = o d0/d and (1-theta)/(1-theta0) = d0/d, d = s r + 1 - s.
    log_d = np.log((s * null + 1 - s) / (s * ratio + 1 - s))
    logs = on_canary * np.log(ratio / null) + (on_canary + on_baseline) * log_d
    return np.where((s > 0) & (s < 1), logs, 0.0)


def absolute(bad: ArrayLike, total: ArrayLike, null: float, rates: tuple[float, ...]) -> Floats:
    """Evidence on a rate against `null`: (..., K) log increments. bad: (...) events among total: (...) requests.

    For rates above null, E tests 'rate <= null'; for rates below, 'rate >= null'. A rate of 0 is allowed.
    """
    q = np.asarray(rates, dtype=np.float64)
    events = np.asarray(bad, dtype=np.float64)[..., None]
    good = np.asarray(total, dtype=np.float64)[..., None] - events
    with np.errstate(divide="ignore"):
        log_bad = np.maximum(np.log(q / null), NEVER)
    return good * np.log((1 - q) / (1 - null)) + events * log_bad


def harm(share: ArrayLike, canary: ArrayLike, baseline: ArrayLike, tolerance: float) -> Floats:
    """Against 'the canary's events are at most (1 + tolerance) times as frequent'."""
    null = 1 + tolerance
    return relative(share, canary, baseline, null, tuple(null * worse for worse in WORSE))


def non_inferiority(share: ArrayLike, canary: ArrayLike, baseline: ArrayLike, tolerance: float) -> Floats:
    """Against 'the canary's events are at least (1 + tolerance) times as frequent'. The mirror image of `harm`."""
    null = 1 + tolerance
    return relative(share, canary, baseline, null, tuple(min(alike, 0.9 * null) for alike in ALIKE))


def loss(share: ArrayLike, canary: ArrayLike, baseline: ArrayLike, tolerance: float) -> Floats:
    """Against 'the canary's events are at least (1 - tolerance) times as frequent': `harm` where events are wanted."""
    null = 1 - tolerance
    return relative(share, canary, baseline, null, tuple(null * part for part in FEWER))


def no_loss(share: ArrayLike, canary: ArrayLike, baseline: ArrayLike, tolerance: float) -> Floats:
    """Against 'the canary's events are at most (1 - tolerance) times as frequent'. The mirror image of `loss`."""
    null = 1 - tolerance
    return relative(share, canary, baseline, null, tuple(max(1 / alike, null / 0.9) for alike in ALIKE))


def sample_ratio(share: ArrayLike, canary: ArrayLike, baseline: ArrayLike) -> Floats:
    """Against 'requests fall on the canary with the assigned share', from the requests themselves; two-sided."""
    return relative(share, canary, baseline, 1.0, ODDS)


def healthy(bad: ArrayLike, total: ArrayLike, max_rate: float) -> Floats:
    """Against 'the rate is at least max_rate'.

    Needed beside `non_inferiority`: where neither arm errs there is no event, and no event is no evidence about a
    ratio, so the relative test could never promote a perfect canary of a perfect champion.
    """
    return absolute(bad, total, max_rate, tuple(max_rate * part for part in HEALTHY))


def excess(bad: ArrayLike, total: ArrayLike, max_rate: float) -> Floats:
    """Against 'the rate is at most max_rate', for looks at which the canary serves alone and nothing is compared."""
    return absolute(bad, total, max_rate, tuple(min(max_rate * (1 + worse), 0.99) for worse in WORSE))


def detectable_ratio(
    rate: float, share: float, requests: int, tolerance: float, alpha: float, *, fewer: bool = False
) -> float | None:
    """Smallest true ratio p_canary / p_baseline that `harm` finds, on average, within `requests` of both arms.

    rate: the baseline's. fewer: the largest that `loss` finds. None: not even a canary that always, or never, has the
    event. The growth of log E at ratio r is the Kullback-Leibler divergence per event; log E must pay for the choice
    among the alternatives as well.
    """
    if not 0 < share < 1 or not 0 < rate < 1:
        return None
    needed = math.log(len(FEWER if fewer else WORSE) / alpha)
    null, farthest = (1 - tolerance, 1e-9) if fewer else (1 + tolerance, 1 / rate)

    def grown(ratio: float) -> float:
        theta, theta_null = (share * r / (share * r + 1 - share) for r in (ratio, null))
        divergence = theta * math.log(theta / theta_null) + (1 - theta) * math.log((1 - theta) / (1 - theta_null))
        return requests * rate * (share * ratio + 1 - share) * divergence

    near, far = null, farthest
    if (far <= near and not fewer) or grown(far) < needed:
        return None
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (near, middle) if grown(middle) >= needed else (middle, far)
    return far
