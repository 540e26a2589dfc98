"""The canary's guarantees and its speed in simulation, beside the judges of others; then on real servers."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from assets.canary.bursts import COMPARED, USUAL, winnings
from assets.canary.eprocess import harm, log_mean, sample_ratio
from assets.canary.settings import CanarySettings
from tests.bench import coverage, gateway, rollouts
from tests.bench.lines import Line, at_most
from tests.bench.reference_judges import mann_whitney, naive_z, threshold

Floats = NDArray[np.float64]
SETTINGS = CanarySettings()
RUNS, REQUESTS = 1000, 20_000
TIME = np.linspace(0, 1, REQUESTS)
SCENES = {
    "flat": (np.full(REQUESTS, 0.1), np.full(REQUESTS, 0.01)),
    "5→50 % ramp, base rate doubling": (0.05 + 0.45 * TIME, 0.01 * (1 + TIME)),
    "shared incident": (np.where(TIME < 0.5, 0.05, 0.5), np.where(abs(TIME - 0.5) < 0.02, 0.25, 0.01)),
}
# One minute of the streams on which all judges are compared, 10 % of it the canary's.
CANARY, BASELINE = 100, 900
SHARE = CANARY / (CANARY + BASELINE)
# Our driver looks every two seconds, the judges of others every minute.
LOOKS_A_MINUTE, LOOK = 30, 100
# Guards give a part of their evidence to the looks at 100 %.
GUARD_ERRORS, GUARD_SLOW = SETTINGS.alpha_errors * COMPARED, SETTINGS.alpha_slow * COMPARED


def lines() -> Iterator[Line]:
    """About fifteen minutes, most of them real rollouts."""
    for name, scene in SCENES.items():
        rate = 100 * false_rollbacks(*scene)
        yield at_most("canary", f"A/A, a look at every request, as shipped, {name}: rolled back", rate, "%", 5)
    first, every = (100 * sticky(only_first) for only_first in (True, False))
    name = "A/A, sticky users with bursts of errors, a user's first error counts: rolled back"
    yield Line("canary", name, first, "%", "≤ 5 %", first <= 5, first / every, f"all errors count, {every:.3g} %")
    yield from _judges()
    needed, proportional = need_based()
    yield Line(
        "canary",
        "need-based routing, simulated: canary requests to C_30 = .95",
        needed,
        "",
        "≤ 6500",
        needed <= 6500,
        needed / proportional,
        f"proportional, {proportional:.0f}",
    )
    yield from coverage.lines()
    yield from gateway.lines()
    yield from rollouts.lines()


def false_rollbacks(share: Floats, base: Floats, runs: int = RUNS) -> float:
    """Share of runs of two equal arms in which any guard fires: errors and split at any request, slow at any look."""
    rng, fired = np.random.default_rng(1), 0
    for _ in range(runs):
        canary = rng.random(REQUESTS) < share
        split = np.cumsum(sample_ratio(share, canary, ~canary), axis=0)
        # Between two events nothing changes, so the looks at events are all looks.
        at = np.flatnonzero(rng.random(REQUESTS) < base)
        errors = np.cumsum(harm(share[at], canary[at], ~canary[at], SETTINGS.tolerance_errors), axis=0)
        found = [(split, SETTINGS.alpha_sample_ratio), (errors, SETTINGS.alpha_errors)]
        found.append((_slow_looks(share, canary, rng.random(REQUESTS) < np.minimum(5 * base, 0.5)), GUARD_SLOW))
        fired += any(bool((log_mean(logs) >= math.log(1 / alpha)).any()) for logs, alpha in found)
    return fired / runs


def _slow_looks(share: Floats, canary: NDArray[np.bool_], slow: NDArray[np.bool_]) -> Floats:
    """Log capital after each look of LOOK requests, (looks, K)."""
    of = [part.reshape(-1, LOOK).sum(axis=1) for part in (canary, canary & slow, ~canary, ~canary & slow)]
    usual = _usual(of[1] + of[3], of[0] + of[2])
    return np.cumsum(
        winnings(float(share.max()), (of[0], of[1]), (of[2], of[3]), usual, SETTINGS.tolerance_slow), axis=0
    )


def _usual(slow: Floats, requests: Floats) -> Floats:
    """Share of slow requests in all looks before, looks along the last axis."""
    return (np.cumsum(slow, axis=-1) - slow + USUAL[0]) / (np.cumsum(requests, axis=-1) - requests + USUAL[1])


def sticky(only_first: bool, runs: int = RUNS) -> float:
    """A user stays in an arm (10 %); one that meets an error meets six on average. Share of false rollbacks."""
    rng, fired = np.random.default_rng(2), 0
    for _ in range(runs):
        users = rng.poisson(300)
        canary = rng.random(users) < SHARE
        sizes = np.ones(users, dtype=int) if only_first else rng.geometric(1 / 6, users)
        events = np.repeat(canary, sizes)
        logs = np.cumsum(harm(np.full(len(events), SHARE), events, ~events, 0.0), axis=0)
        fired += bool((log_mean(logs) >= math.log(1 / SETTINGS.alpha_errors)).any())
    return fired / runs


def _judges() -> Iterator[Line]:
    """The same minutes for all judges. A judge that never fires is counted with all the requests there were."""
    slow = float(norm.sf(norm.isf(0.05) - math.log(1.15) / 0.5)) / 0.05  # log-normal latency, sigma .5
    for name, rate, ratio, mine, limit in (
        ("errors ×2 at 1 %", 0.01, 2.0, our_errors, 1800),
        ("latency +15 %", 0.05, slow, our_slow, 800),
    ):
        judges: dict[str, Callable[..., NDArray[np.bool_]]] = {
            "ours": mine,
            "ours, if half as much again were tolerated": partial(mine, tolerance=0.5),
            "Mann-Whitney, Kayenta's defaults": _by_minute(mann_whitney),
            "threshold, 1 strike": _by_minute(partial(threshold, strikes=1)),
            "threshold, 5 strikes": _by_minute(partial(threshold, strikes=5)),
            "naive z": _by_minute(naive_z),
        }
        equal, worse = _looks(rate, 1.0), _looks(rate, ratio)
        found = {judge: (_requests(fire(*worse)), 100 * fire(*equal)[:, -1].mean()) for judge, fire in judges.items()}
        theirs = found["Mann-Whitney, Kayenta's defaults"][0]
        needed, false = found.pop("ours")
        yield Line(
            "canary",
            f"{name}, as shipped: canary requests to rollback (A/A: {false:.3g} % rolled back)",
            needed,
            "",
            f"≤ {limit}",
            needed <= limit,
            needed / theirs,
            f"Mann-Whitney, {theirs:.0f}",
        )
        for judge, (requests, false) in found.items():
            what = f"{name}, {judge}: canary requests to rollback (A/A: {false:.3g} % rolled back)"
            yield Line("canary", what, requests, "", "for comparison", True)


def our_errors(
    xc: Floats, nc: Floats, xb: Floats, nb: Floats, tolerance: float = SETTINGS.tolerance_errors
) -> NDArray[np.bool_]:
    logs = np.cumsum(harm(np.full(xc.shape, SHARE), xc, xb, tolerance), axis=1)
    return np.logical_or.accumulate(log_mean(logs) >= math.log(1 / GUARD_ERRORS), axis=1)


def our_slow(
    xc: Floats, nc: Floats, xb: Floats, nb: Floats, tolerance: float = SETTINGS.tolerance_slow
) -> NDArray[np.bool_]:
    logs = np.cumsum(winnings(SHARE, (nc, xc), (nb, xb), _usual(xc + xb, nc + nb), tolerance), axis=1)
    return np.logical_or.accumulate(log_mean(logs) >= math.log(1 / GUARD_SLOW), axis=1)


def _by_minute(judge: Callable[..., NDArray[np.bool_]]) -> Callable[..., NDArray[np.bool_]]:
    """The judges of others look once a minute; the answer is said of every look after it."""

    def fired(*counts: Floats) -> NDArray[np.bool_]:
        minutes = judge(*(part.reshape(len(part), -1, LOOKS_A_MINUTE).sum(axis=2) for part in counts))
        before = np.repeat(minutes, LOOKS_A_MINUTE, axis=1)
        return np.concatenate([np.zeros((len(before), LOOKS_A_MINUTE - 1), bool), before], axis=1)[:, : before.shape[1]]

    return fired


def _looks(rate: float, ratio: float, runs: int = 200, minutes: int = 120) -> tuple[Floats, Floats, Floats, Floats]:
    """(runs, looks) of events and requests of canary and champion; requests fall on the arms at random."""
    rng, each = np.random.default_rng(3), (CANARY + BASELINE) / LOOKS_A_MINUTE
    requests = rng.poisson(each, (runs, minutes * LOOKS_A_MINUTE))
    nc = rng.binomial(requests, SHARE)
    nb = requests - nc
    xc, xb = rng.binomial(nc, min(rate * ratio, 1.0)), rng.binomial(nb, rate)
    return tuple(counts.astype(float) for counts in (xc, nc, xb, nb))  # type: ignore[return-value]


def _requests(fired: NDArray[np.bool_]) -> float:
    looks = np.where(fired.any(axis=1), fired.argmax(axis=1) + 1, fired.shape[1])
    return float(looks.mean() * CANARY / LOOKS_A_MINUTE)


def need_based(cells: int = 200, least: int = 30, wanted: float = 0.95, runs: int = 200) -> tuple[float, float]:
    """Mean canary requests until cells with `wanted` of the traffic (Zipf) were seen `least` times each.

    First: half of the requests to cells seen less often, then 1 %. Second: the same share to all. In continuous time
    arrivals of cells are independent Poisson processes: no loop over requests.
    """
    shares = 1 / np.arange(1, cells + 1)
    shares /= shares.sum()
    rng = np.random.default_rng(4)
    needed, even = [], []
    for _ in range(runs):
        at = rng.gamma(least, 1 / (0.5 * shares))
        end = _covered(at, shares, wanted)
        within = rng.binomial(least - 1, np.minimum(end / at, 1.0))
        after = rng.poisson(0.01 * shares * np.maximum(end - at, 0.0))
        needed.append(np.where(at <= end, least + after, within).sum())
        even.append(_covered(rng.gamma(least, 1 / shares), shares, wanted))
    return float(np.mean(needed)), float(np.mean(even))


def _covered(at: Floats, shares: Floats, wanted: float) -> float:
    order = np.argsort(at)
    return float(at[order][np.searchsorted(np.cumsum(shares[order]), wanted)])


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
