import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, binomtest

from assets.canary.eprocess import (
    ALIKE,
    FEWER,
    HEALTHY,
    ODDS,
    WORSE,
    detectable_ratio,
    excess,
    harm,
    healthy,
    log_mean,
    loss,
    no_loss,
    non_inferiority,
    relative,
    sample_ratio,
)

Floats = NDArray[np.float64]
RUNS = 1000
REQUESTS = 20_000
TIME = np.linspace(0, 1, REQUESTS)

FLAT = (np.full(REQUESTS, 0.1), np.full(REQUESTS, 0.01))
RAMP = (0.05 + 0.45 * TIME, 0.01 * (1 + TIME))
INCIDENT = (np.where(TIME < 0.5, 0.05, 0.5), np.where(abs(TIME - 0.5) < 0.02, 0.25, 0.01))
SCENES = pytest.mark.parametrize(
    "scene", [FLAT, RAMP, INCIDENT], ids=["flat", "ramp with a doubling base rate", "shared incident"]
)


def upper_rate(events: int, runs: int) -> float:
    """Clopper-Pearson upper 95 % bound."""
    return float(binomtest(events, runs, alternative="less").proportion_ci(0.95).high)


def lower_rate(events: int, runs: int) -> float:
    return float(binomtest(events, runs, alternative="greater").proportion_ci(0.95).low)


def highest(
    scene: tuple[Floats, Floats], ratio: float, increments: Callable[..., Floats], seed: int, runs: int = RUNS
) -> Floats:
    """Largest log E over a look at every request, for each run. The canary's rate is `ratio` times the champion's."""
    share, base = scene
    rng = np.random.default_rng(seed)
    found = np.empty(runs)
    for run in range(runs):
        canary = rng.random(REQUESTS) < share
        at = np.flatnonzero(rng.random(REQUESTS) < np.where(canary, np.minimum(base * ratio, 1.0), base))
        # Between two events nothing changes, so the looks at events are all looks.
        logs = log_mean(np.cumsum(increments(share[at], canary[at], ~canary[at]), axis=0))
        found[run] = max(logs.max(initial=0.0), 0.0)
    return found


def pooled_z_fires(scene: tuple[Floats, Floats], seed: int, runs: int) -> int:
    """What the guarantee is worth: pooled rates compared at every request, as it is usually done."""
    share, base = scene
    rng = np.random.default_rng(seed)
    fired = 0
    for _ in range(runs):
        canary, error = rng.random(REQUESTS) < share, rng.random(REQUESTS) < base
        n_c, n_b = np.maximum(np.cumsum(canary), 1), np.maximum(np.cumsum(~canary), 1)
        p_c, p_b = np.cumsum(canary & error) / n_c, np.cumsum(~canary & error) / n_b
        pooled = np.cumsum(error) / np.arange(1, REQUESTS + 1)
        z = (p_c - p_b) / np.sqrt(np.maximum(pooled * (1 - pooled), 1e-9) * (1 / n_c + 1 / n_b))
        fired += bool((z[1000:] > 1.645).any())
    return fired


@SCENES
def test_an_equal_canary_is_seldom_rolled_back(scene: tuple[Floats, Floats]) -> None:
    strict = highest(scene, 1.0, lambda s, c, b: harm(s, c, b, 0.0), seed=1)
    fired = int((strict >= math.log(1 / 0.02)).sum())
    assert lower_rate(fired, RUNS) <= 0.02
    assert upper_rate(fired, RUNS) <= 0.05


@SCENES
def test_a_canary_at_the_edge_of_tolerance_is_rolled_back_no_oftener_than_alpha(scene: tuple[Floats, Floats]) -> None:
    edge = highest(scene, 1.5, lambda s, c, b: harm(s, c, b, 0.5), seed=2)
    fired = int((edge >= math.log(1 / 0.02)).sum())
    assert lower_rate(fired, RUNS) <= 0.02
    assert fired > 0, "an edge that never fires would mean a test without power"


def test_pooled_rates_roll_back_good_canaries_in_a_ramp() -> None:
    assert lower_rate(pooled_z_fires(RAMP, seed=3, runs=60), 60) > 0.4


@SCENES
def test_a_canary_as_bad_as_excluded_is_seldom_proven_harmless(scene: tuple[Floats, Floats]) -> None:
    edge = highest(scene, 1.5, lambda s, c, b: non_inferiority(s, c, b, 0.5), seed=4)
    proven = int((edge >= math.log(1 / 0.02)).sum())
    assert lower_rate(proven, RUNS) <= 0.02
    assert upper_rate(proven, RUNS) <= 0.04


def test_an_equal_canary_is_proven_harmless_in_the_end() -> None:
    even = (np.full(REQUESTS, 0.5), np.full(REQUESTS, 0.03))
    proven = highest(even, 1.0, lambda s, c, b: non_inferiority(s, c, b, 0.5), seed=5, runs=200)
    assert (proven >= math.log(1 / 0.02)).mean() > 0.8


def test_doubled_errors_are_found_within_the_published_number_of_canary_requests() -> None:
    """1 % base, 10 % share: at most 1.8k canary requests on average without tolerance."""
    rng = np.random.default_rng(6)
    share, needed = 0.1, []
    for _ in range(400):
        canary = rng.random(100_000) < share
        at = np.flatnonzero(rng.random(100_000) < np.where(canary, 0.02, 0.01))
        logs = log_mean(np.cumsum(harm(np.full(len(at), share), canary[at], ~canary[at], 0.0), axis=0))
        needed.append(at[np.argmax(logs >= math.log(1 / 0.02))] * share)
    assert np.mean(needed) <= 1800


def test_a_rate_at_the_limit_is_seldom_called_healthy() -> None:
    rng = np.random.default_rng(7)
    called = 0
    for _ in range(RUNS):
        bad = rng.random(4000) < 0.005
        logs = log_mean(np.cumsum(healthy(bad, np.ones(4000), 0.005), axis=0))
        called += bool(logs.max() >= math.log(50))
    assert lower_rate(called, RUNS) <= 0.02
    assert upper_rate(called, RUNS) <= 0.04


def test_a_perfect_canary_is_healthy_after_a_number_of_requests_that_can_be_written_down() -> None:
    needed = math.ceil(math.log(50 * len(HEALTHY)) / -math.log(1 - 0.005))
    logs = log_mean(healthy(0, np.array([needed, needed // 2]), 0.005))
    assert logs[0] >= math.log(50) > logs[1]


def test_one_error_does_not_end_the_proof_of_health() -> None:
    assert log_mean(healthy(1, 3000, 0.005)) >= math.log(50)


@pytest.mark.parametrize("share", [FLAT[0], RAMP[0]], ids=["flat", "ramp"])
def test_a_correct_split_is_seldom_called_broken(share: Floats) -> None:
    rng = np.random.default_rng(8)
    short = share[::4]
    called = 0
    for _ in range(RUNS):
        canary = rng.random(len(short)) < short
        called += bool(log_mean(np.cumsum(sample_ratio(short, canary, ~canary), axis=0)).max() >= math.log(100))
    assert lower_rate(called, RUNS) <= 0.01
    assert upper_rate(called, RUNS) <= 0.02


@pytest.mark.parametrize("real", [0.07, 0.14], ids=["too few", "too many"])
def test_a_broken_split_is_found_in_both_directions(real: float) -> None:
    expected = np.array([5000 * real, 5000 * (1 - real)])
    assert log_mean(sample_ratio(0.1, *expected)) >= math.log(100)


def test_the_increments_are_those_of_the_specification() -> None:
    share, on_canary, on_baseline = 0.3, 7, 4
    for null, increments, ratios in (
        (1.5, harm(share, on_canary, on_baseline, 0.5), [1.5 * r for r in WORSE]),
        (1.5, non_inferiority(share, on_canary, on_baseline, 0.5), [min(r, 0.9 * 1.5) for r in ALIKE]),
        (1.5, relative(share, on_canary, on_baseline, 1.5, ODDS), list(ODDS)),
        (0.9, loss(share, on_canary, on_baseline, 0.1), [0.9 * r for r in FEWER]),
        (0.9, no_loss(share, on_canary, on_baseline, 0.1), [1 / r for r in ALIKE]),
    ):
        theta_null = share * null / (share * null + 1 - share)
        for increment, r in zip(increments, ratios, strict=True):
            theta = share * r / (share * r + 1 - share)
            factor = (theta / theta_null) ** on_canary * ((1 - theta) / (1 - theta_null)) ** on_baseline
            assert increment == pytest.approx(math.log(factor))


@pytest.mark.parametrize(("share", "tolerance"), [(0.2, 0.0), (0.5, 0.5), (0.01, 0.1)])
def test_the_expected_e_value_of_a_loss_at_the_edge_is_exactly_one(share: float, tolerance: float) -> None:
    canary = np.arange(31)
    theta = share * (1 - tolerance) / (share * (1 - tolerance) + 1 - share)
    e_values = np.exp(log_mean(loss(np.full(31, share), canary, 30 - canary, tolerance)))
    assert e_values @ binom.pmf(canary, 30, theta) == pytest.approx(1.0)


def test_a_loss_that_more_requests_detect_is_smaller_and_few_detect_none() -> None:
    many, some = (detectable_ratio(0.05, 0.5, n, 0.0, 0.015, fewer=True) for n in (100_000, 3_000))
    assert many is not None
    assert some is not None
    assert some < many < 1
    assert detectable_ratio(0.05, 0.5, 50, 0.0, 0.015, fewer=True) is None


@pytest.mark.parametrize(("share", "tolerance"), [(0.2, 0.0), (0.5, 0.5), (0.01, 1.0)])
def test_the_expected_e_value_at_the_edge_is_exactly_one(share: float, tolerance: float) -> None:
    canary = np.arange(31)
    theta = share * (1 + tolerance) / (share * (1 + tolerance) + 1 - share)
    e_values = np.exp(log_mean(harm(np.full(31, share), canary, 30 - canary, tolerance)))
    assert e_values @ binom.pmf(canary, 30, theta) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_where_one_arm_has_all_the_traffic_nothing_is_compared(share: float) -> None:
    assert np.array_equal(harm(share, 50, 0, 0.5), np.zeros(len(WORSE)))


def test_a_million_events_overflow_nothing() -> None:
    assert np.isfinite(log_mean(harm(0.5, 1e6, 0, 0.5)))
    assert np.isfinite(log_mean(healthy(1e6, 1e6, 0.005)))
    assert np.isfinite(log_mean(excess(1e6, 1e6, 0.005)))


def test_an_excess_over_the_absolute_limit_is_found_where_nothing_is_compared() -> None:
    assert log_mean(excess(20, 400, 0.005)) >= math.log(50)
    assert log_mean(excess(2, 400, 0.005)) < math.log(50)


def test_the_detectable_ratio_is_found_about_when_it_says() -> None:
    ratio = detectable_ratio(rate=0.01, share=0.5, requests=REQUESTS, tolerance=0.5, alpha=0.02)
    assert ratio is not None
    scene = (np.full(REQUESTS, 0.5), np.full(REQUESTS, 0.01))
    found = highest(scene, ratio, lambda s, c, b: harm(s, c, b, 0.5), seed=10, runs=200) >= math.log(50)
    assert 0.4 < found.mean() < 0.95


def test_more_requests_detect_a_smaller_ratio_and_few_detect_none() -> None:
    many, some = (detectable_ratio(0.01, 0.5, n, 0.5, 0.02) for n in (100_000, 10_000))
    assert many is not None
    assert some is not None
    assert many < some
    assert detectable_ratio(0.01, 0.5, 5, 0.5, 0.02) is None
