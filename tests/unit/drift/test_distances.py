"""Distances are exact, whatever the data look like."""

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from assets.drift.aggregate import numbers, strings
from assets.drift.categorical import Categorical, expected_tvd, tvd
from assets.drift.ks import Numeric, critical_value, ks_distance

ATOMS = st.lists(st.one_of(st.integers(-3, 3), st.floats(-3, 3), st.sampled_from([np.inf, -np.inf])), min_size=1)


def distance(reference: npt.ArrayLike, batch: npt.ArrayLike) -> float:
    return Numeric.of(np.asarray(reference, float)).distance(np.asarray(batch, float))


@settings(max_examples=300, deadline=None)
@given(ATOMS, ATOMS)
def test_ks_equals_scipy_with_ties_atoms_and_unequal_sizes(reference: list[float], batch: list[float]) -> None:
    assert abs(distance(reference, batch) - stats.ks_2samp(reference, batch, method="asymp").statistic) < 1e-12


@settings(max_examples=100, deadline=None)
@given(ATOMS, ATOMS, st.integers(0, 5), st.integers(0, 5))
def test_nulls_are_an_atom_beside_the_line(a: list[float], b: list[float], nulls_a: int, nulls_b: int) -> None:
    with_nulls = distance(np.array(a + [np.nan] * nulls_a), np.array(b + [np.nan] * nulls_b))
    above, below = 1e9, -1e9
    a, b = [np.clip(x, -10, 10) for x in a], [np.clip(x, -10, 10) for x in b]
    sides = [stats.ks_2samp(a + [s] * nulls_a, b + [s] * nulls_b, method="asymp").statistic for s in (above, below)]
    assert abs(with_nulls - max(sides)) < 1e-12
    shares = [nulls_a / (len(a) + nulls_a), nulls_b / (len(b) + nulls_b)]
    assert with_nulls >= abs(shares[0] - shares[1]) - 1e-12


@settings(max_examples=50, deadline=None)
@given(ATOMS, st.permutations(range(8)))
def test_order_within_a_batch_changes_nothing(reference: list[float], order: list[int]) -> None:
    batch = np.array([0.0, 1.0, 1.0, -2.0, np.nan, 3.0, np.inf, 1.0])
    assert distance(reference, batch) == distance(reference, batch[order])


def test_constant_and_all_null_features_have_plain_distances() -> None:
    assert distance([5.0] * 9, [5.0] * 4) == 0
    assert distance([5.0] * 9, [6.0]) == 1
    assert distance([np.nan] * 9, [np.nan] * 3) == 0
    assert distance([1.0, 2.0], [np.nan]) == 1
    assert distance([np.nan] * 3, [1.0]) == 1


def test_an_empty_batch_is_refused_rather_than_called_equal() -> None:
    with pytest.raises(ValueError, match="empty batch"):
        distance([1.0], [])
    with pytest.raises(ValueError, match="empty batch"):
        Categorical.of(np.array(["a"], dtype=object)).distance(np.array([], dtype=object))


def test_float32_from_the_wire_equals_float64_from_the_snapshot() -> None:
    trained = pd.Series(np.random.default_rng(0).choice([0.1, 0.7, 39.02], 500))
    served = trained.astype(np.float32)
    assert distance(numbers(trained, "float"), numbers(served, "float")) == 0
    assert distance(trained.to_numpy(), served.to_numpy(np.float64)) > 0.2  # what it would be without care


def test_bytes_from_the_wire_equal_strings_from_the_snapshot() -> None:
    assert strings(pd.Series([b"AA", "AA", None, np.nan, pd.NA], dtype=object)).tolist() == ["AA", "AA", *[None] * 3]


def test_thinning_moves_the_distance_by_no_more_than_a_cell() -> None:
    rng = np.random.default_rng(1)
    column, batch = rng.normal(size=20_000), rng.normal(0.1, 1, 3000)
    thin = Numeric.of(column, most=1000)
    assert len(thin.values) <= 1000
    assert abs(thin.distance(batch) - Numeric.of(column).distance(batch)) < 2 / 1000
    assert thin.null_share == 0


def test_critical_values_are_the_text_s() -> None:
    assert critical_value(0.05, 2, 2) == pytest.approx(1.3581015, abs=1e-7)
    assert critical_value(0.001, 2, 2) == pytest.approx(1.9494746, abs=1e-7)
    assert critical_value(0.05, 100, 400) == pytest.approx(1.3581015 * (500 / 40_000) ** 0.5, abs=1e-7)


def test_a_million_rows_make_a_trivial_shift_significant_and_leave_it_small() -> None:
    rng = np.random.default_rng(2)
    reference, batch = Numeric.of(rng.normal(size=1_000_000)), rng.normal(0.01, 1, 1_000_000)
    assert reference.p_value(batch) < 1e-3
    assert reference.distance(batch) < 0.05  # the effect floor


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1), st.lists(st.sampled_from("abcd"), min_size=1))
def test_tvd_is_half_the_sum_of_differences_with_mass_for_new_and_null(left: list[str], right: list[str]) -> None:
    cells = {*left, *right}
    direct = sum(abs(left.count(c) / len(left) - right.count(c) / len(right)) for c in cells) / 2
    reference = Categorical.of(np.array(left, dtype=object))
    assert reference.distance(np.array(right, dtype=object)) == pytest.approx(direct, abs=1e-12)
    assert reference.unseen(np.array(right, dtype=object)) == sum(c not in left for c in right) / len(right)


def test_tvd_never_leaves_the_unit_interval() -> None:
    assert tvd(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1
    assert Categorical.of(np.array([None] * 4, dtype=object)).distance(np.array(["new"], dtype=object)) == 1


@pytest.mark.parametrize("rows", [20, 200])
def test_expected_distances_are_what_sampling_gives(rows: int) -> None:
    rng = np.random.default_rng(3)
    smooth = Numeric.of(rng.normal(size=50_000))
    drawn = np.mean([smooth.distance(rng.normal(size=rows)) for _ in range(400)])
    assert drawn == pytest.approx(smooth.expected(rows), rel=0.12)
    shares = np.array([0.6, 0.3, 0.1])
    moved = np.mean([tvd(shares, rng.multinomial(rows, shares) / rows) for _ in range(400)])
    assert moved == pytest.approx(expected_tvd(shares, rows), rel=0.12)
    flag = Numeric.of((rng.uniform(size=50_000) < 0.5).astype(float))
    assert flag.expected(rows) == pytest.approx(0.3989 / rows**0.5, rel=0.01)


def test_p_values_of_the_same_distribution_are_uniform_or_larger() -> None:
    rng = np.random.default_rng(4)
    numeric = Numeric.of(rng.normal(size=5000))
    letters = Categorical.of(rng.choice(list("abcde"), 5000).astype(object))
    numeric_p = [numeric.p_value(rng.normal(size=300)) for _ in range(400)]
    letter_p = [letters.p_value(rng.choice(list("abcde"), 300).astype(object)) for _ in range(400)]
    for p_values in (numeric_p, letter_p):
        below = sum(p < 0.05 for p in p_values)
        assert stats.binomtest(below, 400, 0.05, alternative="greater").pvalue > 1e-4
    assert letters.p_value(np.array(["f"] * 300, dtype=object)) < 1e-12
    assert Categorical.of(np.array(["a"] * 50, dtype=object)).p_value(np.array(["a"] * 9, dtype=object)) == 1


def test_the_function_agrees_with_the_formula_of_the_text() -> None:
    rng = np.random.default_rng(5)
    reference, batch = np.sort(rng.integers(0, 9, 40)).astype(float), rng.integers(0, 9, 25).astype(float)
    values, counts = np.unique(reference, return_counts=True)
    cdf = np.cumsum(counts) / 40
    high, low = (np.array([np.mean(op(batch, v)) for v in values]) for op in (np.less_equal, np.less))
    text = max(np.abs(cdf - high).max(), np.abs(np.r_[0, cdf[:-1]] - low).max())
    assert ks_distance(values, np.cumsum(counts), 40, batch) == pytest.approx(text, abs=1e-12)
