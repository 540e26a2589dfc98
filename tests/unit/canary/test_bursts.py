"""Slow requests come in bursts: the guard's promise holds for them, and its power for those that come one by one."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from assets.canary.bursts import Bursts
from assets.canary.eprocess import harm, log_mean
from assets.canary.settings import CanarySettings

SETTINGS = CanarySettings()
BOUND = math.log(1 / SETTINGS.alpha_slow)
LOOKS, RUNS = 120, 300


def start(tolerance: float = 0.0) -> Bursts:
    return Bursts(tolerance, SETTINGS.max_slow_rate)


def fires(share: np.ndarray, canary: np.ndarray, slow: np.ndarray, baseline: np.ndarray, theirs: np.ndarray) -> bool:
    """(L,) each, a look after another; whether the bound was ever reached."""
    bursts = start()
    for look in zip(share, canary, slow, baseline, theirs, strict=True):
        s, a, b, c, d = look
        bursts = bursts.update(float(s), (int(a), int(b)), (int(c), int(d)))
        if bursts.log_e >= BOUND:
            return True
    return False


def stalled(rng: np.random.Generator, requests: np.ndarray, often: float) -> np.ndarray:
    """Slow requests of a pool that stalls in some looks for a part of their time, whatever its share of the traffic."""
    part = np.where(rng.random(len(requests)) < often, rng.random(len(requests)), 0.0)
    return rng.binomial(requests, part)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.01, 0.5), (0.05, 0.05)])
def test_stalls_that_each_pool_has_to_itself_roll_nothing_back(shares: tuple[float, float]) -> None:
    rng, fired, one_by_one = np.random.default_rng(5), 0, 0
    share = np.linspace(*shares, LOOKS)
    for _ in range(RUNS):
        canary = rng.binomial(300, share)
        slow, theirs = stalled(rng, canary, 0.05), stalled(rng, 300 - canary, 0.05)
        fired += fires(share, canary, slow, 300 - canary, theirs)
        logs = np.cumsum(harm(share, slow, theirs, 1.0), axis=0)
        one_by_one += bool((log_mean(logs) >= BOUND).any())
    assert binomtest(fired, RUNS, SETTINGS.alpha_slow, "greater").pvalue > 1e-3
    # Counted one by one the same requests roll equal models back, even where twice as many are tolerated.
    assert one_by_one > 10 * max(fired, 1)


@pytest.mark.parametrize("scene", ["flat", "ramp", "incident"])
def test_equal_arms_are_rarely_told_apart(scene: str) -> None:
    rng, fired = np.random.default_rng(6), 0
    time = np.linspace(0, 1, LOOKS)
    share = 0.05 + 0.45 * time if scene == "ramp" else np.full(LOOKS, 0.25)
    rate = {"flat": 0.05 + 0 * time, "ramp": 0.02 * (1 + time), "incident": np.where(abs(time - 0.5) < 0.1, 0.6, 0.02)}
    for _ in range(RUNS):
        canary = rng.binomial(100, share)
        slow, theirs = rng.binomial(canary, rate[scene]), rng.binomial(100 - canary, rate[scene])
        fired += fires(share, canary, slow, 100 - canary, theirs)
    assert binomtest(fired, RUNS, SETTINGS.alpha_slow, "greater").pvalue > 1e-3


def test_one_look_proves_nothing_however_many_of_its_requests_are_slow() -> None:
    once = start().update(0.5, (10_000, 10_000), (10_000, 0))
    assert once.log_e < math.log(2)


def test_a_challenger_that_is_always_slow_is_found_within_seconds() -> None:
    bursts, looks = start(), 0
    while bursts.log_e < BOUND:
        bursts, looks = bursts.update(0.25, (75, 75), (225, 2)), looks + 1
    assert looks <= 10


def test_at_all_the_traffic_a_stall_is_forgiven_and_a_slow_challenger_is_not() -> None:
    good, stall, slow = ((300, 0), (0, 0)), ((300, 250), (0, 0)), ((300, 120), (0, 0))
    forgiven = start()
    for look in (good, stall, good, good):
        forgiven = forgiven.update(1.0, *look)
    assert forgiven.log_e < 1
    bursts, looks = start(), 0
    while bursts.log_e < BOUND:
        bursts, looks = bursts.update(1.0, *slow), looks + 1
    assert looks <= 8


# Below, scipy's binomial overflows.
RATES = st.just(0.0) | st.floats(1e-9, 1)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(0, 6), RATES, st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 40))
def test_a_look_at_equal_arms_wins_nothing_on_average(
    fewer: int, more: int, rate: float, tolerance: float, seen: int
) -> None:
    """Exactly, over all outcomes: the expected factor of the capital is at most 1."""
    before = Bursts(tolerance, 0.05, requests=40, slow=seen)
    mine, theirs, mean = fewer, fewer + more, np.zeros(2)
    for a in range(mine + 1):
        for b in range(theirs + 1):
            chance = binom.pmf(a, mine, rate) * binom.pmf(b, theirs, rate)
            mean += chance * np.exp(before.update(0.3, (mine, a), (theirs, b)).compared)
    assert (mean <= 1 + 1e-9).all()


def test_a_look_without_requests_in_one_arm_compares_nothing() -> None:
    for share, mine, theirs in ((0.01, (0, 0), (50, 9)), (0.5, (50, 9), (0, 0)), (0.0, (0, 0), (9, 9))):
        assert start().update(share, mine, theirs).log_e == 0


def test_bursts_survive_a_round_trip_through_json() -> None:
    bursts = start(0.2).update(0.5, (100, 30), (90, 2)).update(1.0, (10, 1), (0, 0))
    assert Bursts.from_dict(json.loads(json.dumps(bursts.to_dict(), allow_nan=False))) == bursts
