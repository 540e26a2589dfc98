import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, ttest_1samp

from assets.shadow.confidence import (
    fixed_radius,
    growth_bets,
    log_wealth,
    normal_mixture_bound,
    running,
    sequence_radius,
)

Floats = NDArray[np.float64]


def upper_rate(events: int, runs: int) -> float:
    """Clopper-Pearson upper 95 % bound."""
    return float(binomtest(events, runs, alternative="less").proportion_ci(0.95).high)


def lower_rate(events: int, runs: int) -> float:
    return float(binomtest(events, runs, alternative="greater").proportion_ci(0.95).low)


@pytest.mark.parametrize(
    ("variance", "bound"), [(10, 11.4926818), (100, 27.6607088), (1000, 94.3939162), (1e4, 332.7971568)]
)
def test_the_normal_mixture_bound_is_the_published_one(variance: float, bound: float) -> None:
    assert normal_mixture_bound(variance, 100, 0.05) == pytest.approx(bound, abs=1e-6)


def test_the_betting_martingale_reaches_the_published_wealth() -> None:
    """Reference: half of the wealth of a bet downwards, plug-in bets at alpha/2 capped at 1/(2m)."""
    x = 1 - np.modf(np.arange(1, 101) * 0.6180339887498949)[0] ** 2
    wealth = log_wealth(x, 0.5, plug_in_bets(x, 0.025, cap=1.0)) - math.log(2)
    assert wealth[49] == pytest.approx(4.76523, abs=1e-5)
    assert wealth[99] == pytest.approx(8.312578, abs=1e-5)


def plug_in_bets(x: Floats, alpha: float, cap: float) -> Floats:
    """Waudby-Smith & Ramdas 2024, equation 26."""
    count = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (count + 1)
    variance = np.concatenate([[0.25], ((0.25 + np.cumsum((x - mean) ** 2)) / (count + 1))[:-1]])
    bets: Floats = np.minimum(np.sqrt(2 * math.log(1 / alpha) / (count * np.log(count + 1) * variance)), cap)
    return bets


def test_a_bet_never_sees_the_value_it_is_placed_on() -> None:
    rng = np.random.default_rng(3)
    x = rng.random(50)
    changed = x.copy()
    changed[30:] = rng.random(20)
    assert np.array_equal(growth_bets(x, 0.4)[:31], growth_bets(changed, 0.4)[:31])


def test_betting_on_a_fair_coin_wins_seldom_however_often_one_looks() -> None:
    rng = np.random.default_rng(11)
    runs = 1000
    won = 0
    for _ in range(runs):
        x = (rng.random(300) < 0.5).astype(float)
        won += bool(log_wealth(x, 0.5, growth_bets(x, 0.5)).max() >= math.log(20))
    assert upper_rate(won, runs) <= 0.05 + 0.01
    assert lower_rate(won, runs) <= 0.05


def test_equal_blocks_give_the_ordinary_mean_and_standard_deviation() -> None:
    sums = np.array([3.0, 5.0, 1.0, 7.0])
    path = running(sums, np.full(4, 10.0))
    assert path.mean[-1] == pytest.approx(0.4)
    assert path.spread[-1] == pytest.approx(np.std(sums / 10, ddof=1))
    assert path.effective[-1] == pytest.approx(4)
    assert math.isnan(path.spread[0])


def test_one_look_is_a_student_interval_over_blocks() -> None:
    values = np.array([0.2, 0.5, -0.1, 0.4, 0.3])
    path = running(values, np.ones(5))
    p_value = ttest_1samp(values, 0.0, alternative="greater").pvalue
    touching = path.mean[-1] - path.spread[-1] * fixed_radius(5, float(p_value))
    assert touching == pytest.approx(0, abs=1e-9)


def test_a_small_block_hardly_moves_the_mean() -> None:
    whole = running(np.array([1.0, 1.0, 1.0]), np.array([100.0, 100.0, 100.0]))
    cut = running(np.array([1.0, 1.0, 1.0, -3.0]), np.array([100.0, 100.0, 100.0, 3.0]))
    assert cut.mean[-1] == pytest.approx(whole.mean[-1], rel=1.1)
    assert cut.effective[-1] < 3.1


def test_no_better_challenger_is_seldom_called_better_at_daily_looks_over_shared_weather() -> None:
    """Days shift all their requests together, sizes vary, every day from the seventh is a look."""
    rng = np.random.default_rng(5)
    runs, days = 2000, 28
    rows = rng.integers(20, 200, (runs, days)).astype(float)
    weather = rng.normal(0, 0.05, (runs, days))
    sums = rows * weather + np.sqrt(rows) * rng.normal(0, 0.3, (runs, days))
    wrong, naive = 0, 0
    for run in range(runs):
        path = running(sums[run], rows[run])
        lower = [path.mean[t] - path.spread[t] * sequence_radius(path.effective[t], 14, 0.05) for t in range(6, days)]
        looked = [path.mean[t] - path.spread[t] * fixed_radius(path.effective[t], 0.05) for t in range(6, days)]
        wrong += max(lower) > 0
        naive += max(looked) > 0
    assert upper_rate(wrong, runs) <= 0.05
    assert lower_rate(naive, runs) > 0.05, "the fixed interval must not survive peeking, or this test can't fail"


def test_a_single_look_at_level_a_fifth_is_wrong_a_fifth_of_the_time() -> None:
    rng = np.random.default_rng(6)
    runs, days = 2000, 14
    rows = rng.integers(50, 200, (runs, days)).astype(float)
    sums = rows * rng.normal(0, 0.05, (runs, days))
    paths = [running(sums[run], rows[run]) for run in range(runs)]
    wrong = sum(p.mean[-1] > p.spread[-1] * fixed_radius(p.effective[-1], 0.2) for p in paths)
    assert lower_rate(int(wrong), runs) <= 0.2 + 0.01
    assert upper_rate(int(wrong), runs) >= 0.2 - 0.02
