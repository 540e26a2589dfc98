"""A large batch is compared at few values of the reference; what is left out can't have held the distance."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assets.drift import ks
from assets.drift.ks import Numeric

VALUES = st.lists(st.one_of(st.integers(-9, 9), st.floats(-9, 9), st.sampled_from([np.inf, np.nan])), min_size=1)


def both(reference: Numeric, batch: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Compared at the batch's values, and by branch and bound."""
    before = ks.CELLS
    try:
        ks.CELLS = len(batch) + 1
        plain = reference.distance(batch)
        ks.CELLS = 3
        return plain, reference.distance(batch)
    finally:
        ks.CELLS = before


@settings(max_examples=400, deadline=None)
@given(VALUES, VALUES)
def test_both_ways_give_the_same_to_the_last_bit(reference: list[float], batch: list[float]) -> None:
    plain, bounded = both(Numeric.of(np.array(reference, float)), np.tile(np.array(batch, float), 3))
    assert plain == bounded


@pytest.mark.parametrize("decimals", [0, 2, 9])
@pytest.mark.parametrize("shift", [0.0, 0.03, 1.0])
def test_large_batches_equal_scipy(decimals: int, shift: float) -> None:
    rng = np.random.default_rng(3)
    reference = rng.normal(size=90_000).round(decimals)
    batch = rng.normal(shift, 1, size=40_000).round(decimals)
    expected = stats.ks_2samp(reference, batch, method="asymp").statistic
    assert Numeric.of(reference).distance(batch) == pytest.approx(expected, abs=1e-12)


def test_a_shift_within_one_cell_is_found() -> None:
    reference = np.arange(200_000.0)
    batch = np.concatenate([np.arange(100_000.0), np.full(20_000, 100_003.0), np.arange(120_000.0, 200_000.0)])
    expected = stats.ks_2samp(reference, batch, method="asymp").statistic
    assert Numeric.of(reference).distance(batch) == pytest.approx(expected, abs=1e-12)


def test_a_large_batch_of_nulls_lies_beside_the_line() -> None:
    reference = Numeric.of(np.append(np.arange(50_000.0), np.full(50_000, np.nan)))
    assert reference.distance(np.full(30_000, np.nan)) == 0.5
    assert Numeric.of(np.full(9, np.nan)).distance(np.full(30_000, np.nan)) == 0
    assert Numeric.of(np.full(9, np.nan)).distance(np.zeros(30_000)) == 1
