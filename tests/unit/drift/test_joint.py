"""Joint drift is heard where each feature alone stands still, and chance is measured with the memory of the days."""

import numpy as np
from scipy import stats

from assets.drift.joint import Joint, joint_drift
from assets.drift.sample import Sample
from tests.drift_cases import drawn


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
