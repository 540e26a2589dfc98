"""The alarm level keeps its false-alarm rate, remembers what it should, and forgets what it must."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assets.drift.aggregate import Block, normalised
from assets.drift.settings import DriftSettings
from assets.drift.threshold import Memory, conformal_threshold, needed, order, walk

START = datetime(2030, 1, 1, tzinfo=UTC)


def days(values: Sequence[float | None], noise: float = 0.0) -> list[Block]:
    return [
        Block(i, START + timedelta(days=i), 100, value, None if value is None else noise)
        for i, value in enumerate(values)
    ]


@pytest.mark.parametrize(("size", "rank", "rate"), [(30, 30, 1 / 31), (720, 685, 36 / 721), (19, 19, 1 / 20)])
def test_the_conformal_false_alarm_rate_is_exact(size: int, rank: int, rate: float) -> None:
    assert order(size, 0.05) == rank
    assert (size + 1 - rank) / (size + 1) == pytest.approx(rate)
    rng, runs = np.random.default_rng(size), 4000
    false = sum(
        next_ > conformal_threshold(past, 0.05)
        for *past, next_ in rng.standard_cauchy((runs, size + 1)).tolist()  # heavy tails do not matter
    )
    assert stats.binomtest(false, runs, rate).pvalue > 1e-4


def test_the_quantile_that_people_use_alarms_too_often() -> None:
    draws = np.random.default_rng(0).uniform(size=(40_000, 31))
    rate = np.mean(draws[:, 30] > np.quantile(draws[:, :30], 0.95, axis=1))
    assert rate == pytest.approx(0.0790, abs=0.005)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.2])
def test_there_is_no_level_before_the_history_can_promise_alpha(alpha: float) -> None:
    assert conformal_threshold([0.1] * (needed(alpha) - 1), alpha) == math.inf
    assert conformal_threshold([0.1] * needed(alpha), alpha) == 0.1


def test_an_alarm_takes_two_of_three_days() -> None:
    judged, _ = walk(days([0.1, 0.5, 0.1, 0.1, 0.5, 0.1, 0.5, 0.1, 0.1]), Memory((0.2,) * 30), DriftSettings())
    assert [item.alarm for item in judged] == [False, True, False, False, True, False, True, False, False]
    assert [item.active for item in judged] == [False] * 6 + [True, False, False]


@pytest.mark.parametrize(("memory", "most"), [(0.0, 0.065), (0.6, 0.14)])
def test_a_quiet_year_keeps_the_rate_to_its_end(memory: float, most: float) -> None:
    rng, rates = np.random.default_rng(8), []
    for _ in range(25):
        level, values = 0.0, []
        for _ in range(60 + 365):
            level = memory * level + rng.normal(0, (1 - memory**2) ** 0.5)
            values.append(0.4 + 0.05 * level)
        judged, _ = walk(days(values[60:]), Memory(tuple(values[:60])), DriftSettings())
        rates.append(np.mean([bool(item.alarm) for item in judged[-91:]]))
    assert np.mean(rates) < most  # were every alarm left out of the past, a third of these days would alarm


def test_an_odd_day_joins_the_history_and_a_drift_that_stays_does_not() -> None:
    _, memory = walk(days([0.1, 0.25, 0.15]), Memory((0.1, 0.2) * 15), DriftSettings())
    assert memory.history == (*(0.1, 0.2) * 15, 0.1, 0.25)
    assert memory.pending == (0.15,)
    _, memory = walk(days([0.1, 0.9, 0.8, 0.9, 0.15]), Memory((0.2,) * 30), DriftSettings())
    assert memory.history == (*(0.2,) * 30, 0.1)
    assert memory.pending == (0.15,)


def test_an_alarm_waits_for_its_neighbour_over_days_of_few_rows() -> None:
    _, memory = walk(days([0.9, None, None, 0.8]), Memory((0.2,) * 30), DriftSettings())
    assert memory.history == (0.2,) * 30
    _, memory = walk(days([0.25, None, 0.1]), Memory((0.1, 0.2) * 15), DriftSettings())
    assert memory.history == (*(0.1, 0.2) * 15, 0.25)


def test_a_day_of_nonsense_does_not_become_the_level() -> None:
    _, memory = walk(days([0.95, 0.1]), Memory((0.1, 0.2) * 15), DriftSettings())
    assert memory.history[-1] == pytest.approx(0.25)  # the level .2 lies .05 above the median


def test_a_level_is_set_by_days_before_yesterday() -> None:
    judged, _ = walk(days([0.19, 0.18, 0.1]), Memory((0.01,) * 19), DriftSettings(floor=0.2))
    assert [item.threshold for item in judged] == [0.2, 0.2, 0.2]
    judged, _ = walk(days([0.04, 0.03, 0.1]), Memory((0.01,) * 18), DriftSettings(floor=0.0))
    assert [item.threshold for item in judged] == [math.inf, math.inf, 0.04]


def test_the_history_is_capped_newest_first_to_stay() -> None:
    _, memory = walk(days([0.1] * 10), Memory(tuple(np.linspace(0.2, 0.3, 60))), DriftSettings())
    assert len(memory.history) == 60
    assert memory.history[-9:] == (0.1,) * 9


def test_below_the_effect_floor_nothing_alarms() -> None:
    judged, memory = walk(days([0.049] * 5), Memory((0.001,) * 30), DriftSettings())
    assert not any(item.alarm for item in judged)
    assert not memory.active


def test_a_day_with_few_rows_is_not_judged_and_keeps_the_state() -> None:
    judged, memory = walk(days([0.5, 0.5, None, 0.1]), Memory((0.2,) * 30), DriftSettings())
    assert [item.alarm for item in judged] == [True, True, None, False]
    assert judged[2].active
    assert memory.hits == (True, True, False)


def test_the_level_of_a_day_knows_how_noisy_its_size_is() -> None:
    judged, _ = walk(days([0.1, 0.1], noise=0.05), Memory((0.01,) * 30), DriftSettings(floor=0.0))
    assert judged[0].threshold == pytest.approx(0.06)
    assert judged[0].alarm


VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=40)


@given(VALUES, st.integers(0, 40), st.lists(st.floats(0, 0.3), max_size=40))
def test_any_split_of_the_days_gives_the_same(values: list[float | None], cut: int, history: list[float]) -> None:
    settings, start = DriftSettings(), Memory(tuple(history))
    whole, end = walk(days(values), start, settings)
    first, middle = walk(days(values)[:cut], start, settings)
    second, split_end = walk(days(values)[cut:], Memory.from_dict(middle.to_dict()), settings)
    assert (first + second, split_end) == (whole, end)


def test_weights_are_shares_of_positive_importance() -> None:
    assert normalised({"a": -1.0, "b": float("nan")}, ["a", "b"]) == {"a": 0.5, "b": 0.5}
    assert normalised({"a": 2.0, "other": 9.0}, ["a", "b"]) == {"a": 1.0, "b": 0.0}


def test_settings_that_can_never_alarm_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 19"):
        DriftSettings(history_cap=18)
    with pytest.raises(ValueError, match="exceeds persistence_of"):
        DriftSettings(persistence_hits=4)
    with pytest.raises(ValueError, match="pattern"):
        DriftSettings(block="0D")
    assert DriftSettings(block="6h").block_length == timedelta(hours=6)
    assert DriftSettings(block="15min").block_length == timedelta(minutes=15)
