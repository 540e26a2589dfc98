"""Joint drift is heard where each feature alone stands still, and chance is measured with the memory of the days."""

import time

import numpy as np
from scipy import stats

from assets.drift.joint import Joint, joint_drift
from assets.drift.sample import Sample


def drawn(days: int, correlation: float, seed: int, rows: int = 2000) -> Sample:
    """Eight numbers with levels of their own each day, the first two correlated; two columns of categories."""
    rng = np.random.default_rng(seed)
    block = np.sort(rng.integers(0, days, rows)).astype(np.int32)
    z = rng.normal(size=(rows, 8))
    z[:, 1] = correlation * z[:, 0] + (1 - correlation**2) ** 0.5 * z[:, 1]
    z += 0.2 * rng.normal(size=(days, 8))[block]
    columns = {f"f{place}": z[:, place].astype(np.float32) for place in range(8)}
    texts = {"c": rng.integers(0, 5, rows).astype(np.int32), "d": rng.integers(-1, 2, rows).astype(np.int32)}
    return Sample(columns | texts, block)


def compared(correlation: float, seed: int, days: int = 7) -> Joint:
    found = joint_drift(drawn(40, 0.0, seed), drawn(days, correlation, 1000 + seed), {})
    assert found is not None
    return found


def test_a_new_correlation_is_heard_that_no_feature_shows() -> None:
    found = compared(0.7, 0)
    assert found.p_value <= 0.05
    assert found.auc > 0.58
    assert found.alone < 0.54


def test_days_that_differ_as_days_always_did_are_chance() -> None:
    p_values = [compared(0.0, seed).p_value for seed in range(60)]
    assert stats.binomtest(sum(p <= 0.05 for p in p_values), 60, 0.05, alternative="greater").pvalue > 1e-3


def test_too_few_days_have_no_p_value() -> None:
    assert joint_drift(drawn(40, 0.0, 0), drawn(3, 0.0, 1), {}) is None
    assert joint_drift(drawn(19, 0.0, 0), drawn(7, 0.0, 1), {}) is None
    assert joint_drift(drawn(20, 0.0, 0), drawn(11, 0.0, 1), {}) is None


def test_constant_null_and_infinite_columns_are_no_obstacle() -> None:
    def odd(sample: Sample) -> Sample:
        rows = len(sample.block)
        flat = {name: np.zeros(rows, dtype=np.float32) for name in ("f0", "f1")}
        flat["f2"] = np.full(rows, np.nan, dtype=np.float32)
        flat["f3"] = np.where(np.arange(rows) % 2, np.inf, -np.inf).astype(np.float32)
        return Sample({**sample.columns, **flat}, sample.block)

    with np.errstate(all="raise"):
        found = joint_drift(odd(drawn(40, 0.0, 0)), odd(drawn(7, 0.0, 1)), {})
    assert found is not None
    assert np.isfinite(found.auc)


def test_the_same_rows_give_the_same_answer() -> None:
    assert compared(0.3, 4) == compared(0.3, 4)


def test_it_costs_less_than_half_a_second_of_one_core() -> None:
    began = time.process_time()
    compared(0.0, 5)
    assert time.process_time() - began < 0.5
