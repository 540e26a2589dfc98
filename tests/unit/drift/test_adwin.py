"""ADWIN is river's step by step, goes on from JSON to the last bit, and speaks of rises only."""

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.drift.adwin import Adwin, Change


def changes(values: Sequence[float]) -> list[int]:
    adwin = Adwin()
    return [place for place, value in enumerate(values) if adwin.step(value)]


def of_river(values: Sequence[float]) -> list[int]:
    from river.drift import ADWIN

    oracle, found = ADWIN(delta=0.002), []
    for place, value in enumerate(values):
        oracle.update(value)
        found += [place] if oracle.drift_detected else []
    return found


def test_the_example_of_river_is_heard_where_river_hears_it() -> None:
    rng = random.Random(12345)
    stream = rng.choices([0, 1], k=1000) + rng.choices(range(4, 8), k=1000)
    assert changes(stream) == [1023] == of_river(stream)


@pytest.mark.parametrize("seed", range(12))
def test_changes_equal_river_s(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = rng.uniform(0, 1, 4)
    stream = np.concatenate([rng.beta(2, 2 + 4 * level, rng.integers(50, 1500)) for level in levels]).tolist()
    assert changes(stream) == of_river(stream)


def rises(values: Sequence[float]) -> list[Change]:
    return [change for change in Adwin().changes(values) if change.is_rise]


def test_a_fall_is_a_change_and_no_rise() -> None:
    rng = np.random.default_rng(0)
    down = np.concatenate([rng.beta(6, 6, 1000), rng.beta(2, 6, 1000)]).tolist()
    assert len(changes(down)) == 1
    assert rises(down) == []
    (rise,) = rises(down[::-1])
    assert rise.before == pytest.approx(0.25, abs=0.02)
    assert rise.after > 0.35
    assert 1000 < rise.at < 1300


def test_the_same_loss_for_long_is_seldom_a_rise() -> None:
    rng = np.random.default_rng(1)
    assert sum(len(rises(rng.beta(2, 6, 5000).tolist())) for _ in range(10)) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=300), st.integers(0, 300))
def test_any_split_over_records_gives_the_same_state_to_the_last_bit(values: list[float], cut: int) -> None:
    whole, first = Adwin(), Adwin()
    found = whole.changes(values)
    before = first.changes(values[:cut])
    second = Adwin.from_dict(json.loads(json.dumps(first.to_dict(), allow_nan=False)))
    assert before + second.changes(values[cut:]) == found
    assert second.to_dict() == whole.to_dict()
    assert second.width == whole.width
