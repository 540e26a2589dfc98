"""Measures against scikit-learn and by hand."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score, roc_curve

from assets.retrain.measures import auc, calibration, calibration_error, roc

PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=2, max_size=60).filter(
    lambda pairs: 0 < sum(label for label, _ in pairs) < len(pairs)
)


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_auc_counts_ties_half_as_scikit_learn_does(pairs: list[tuple[int, int]]) -> None:
    labels, scores = np.array(pairs, dtype=float).T
    assert math.isclose(auc(labels, scores), roc_auc_score(labels, scores), abs_tol=1e-12)


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_the_curve_is_scikit_learns_and_its_area_the_auc(pairs: list[tuple[int, int]]) -> None:
    labels, scores = np.array(pairs, dtype=float).T
    alarms, hits = roc(labels, scores)
    expected = roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(alarms, expected[0])
    np.testing.assert_allclose(hits, expected[1])
    assert math.isclose(float(np.trapezoid(hits, alarms)), auc(labels, scores), abs_tol=1e-12)


def test_auc_of_the_breast_cancer_data_is_the_published_value() -> None:
    data = load_breast_cancer(as_frame=True)
    assert round(auc(data.target.to_numpy(), -data.data["mean texture"].to_numpy()), 6) == 0.775824


def test_a_single_outcome_has_no_auc() -> None:
    assert math.isnan(auc(np.ones(3), np.array([0.1, 0.2, 0.3])))


def test_calibration_bins_hold_equal_rows_and_the_error_weighs_them() -> None:
    scores = np.array([0.1] * 10 + [0.9] * 10)
    labels = np.array([0.0] * 10 + [1.0] * 10)
    assert calibration(labels, scores)["rows"].tolist() == [2] * 10
    assert math.isclose(calibration_error(labels, scores), 0.1)
    assert calibration_error(labels, labels) == 0.0
