"""Features are named by false discovery rate, in an order people can use."""

import numpy as np
import pandas as pd
from statsmodels.stats.multitest import multipletests

from assets.drift.aggregate import columns
from assets.drift.naming import benjamini_hochberg, listed, name_features
from assets.drift.reference import Reference

# Benjamini & Hochberg 1995, table of 15 p-values.
PAPER = [
    0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0
]  # fmt: skip


def test_the_paper_s_example_rejects_four_where_bonferroni_rejects_three() -> None:
    assert benjamini_hochberg(PAPER, 0.05).sum() == 4
    assert sum(p <= 0.05 / 15 for p in PAPER) == 3


def test_rejections_equal_statsmodels() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = (rng.uniform(size=20) ** rng.integers(1, 6)).tolist()
        assert benjamini_hochberg(p, 0.05).tolist() == multipletests(p, 0.05, "fdr_bh")[0].tolist()


def test_no_hypothesis_is_no_rejection() -> None:
    assert benjamini_hochberg([], 0.05).tolist() == []


def test_significant_and_small_is_not_named(reference: Reference) -> None:
    reference = reference.without_answers()
    size = 200_000
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"temp": rng.normal(0.05, 1, size), "hour": rng.integers(12, 24, size), "carrier": ["AA"] * size}
    )
    batch = columns(frame, reference.features)
    found = name_features(reference.marginals, reference.weights, batch, 0.05, 0.05)
    by_name = {item.feature: item for item in found}
    assert by_name["temp"].p_value < 0.01
    assert not by_name["temp"].named
    assert by_name["hour"].named
    assert by_name["carrier"].named
    assert listed(found) == "hour .499, carrier .495"
