"""Importance tells what answers rest on, and is the same every time."""

import numpy as np
import pytest

from assets.recipe import Recipe
from assets.retrain.export import to_onnx
from assets.retrain.importance import importance

from .conftest import FEATURES, Fitted, made_up


def test_what_lateness_was_made_of_weighs_most(fitted: Fitted) -> None:
    weights = importance(fitted.onnx, made_up(4000, seed=11), FEATURES, "late", seed=7)
    assert list(weights) == list(FEATURES)
    assert min(weights.values()) >= 0
    assert sum(weights.values()) == pytest.approx(1)
    assert sorted(weights, key=lambda name: -weights[name])[:2] == ["hour", "carrier"]
    assert weights["hour"] > 10 * weights["dest"]


def test_the_same_seed_gives_the_same_weights(fitted: Fitted) -> None:
    rows = made_up(9000, seed=12)
    first = importance(fitted.onnx, rows, FEATURES, "late", seed=7)
    assert importance(fitted.onnx, rows.copy(), FEATURES, "late", seed=7) == first
    assert importance(fitted.onnx, rows, FEATURES, "late", seed=8) != first


def test_a_model_that_answers_one_number_rests_on_nothing_in_particular(recipe: Recipe) -> None:
    rows = made_up(300, seed=13)
    flat = rows.assign(late=(np.arange(300) % 2).astype(float), **{name: rows[name].iloc[0] for name in FEATURES})
    onnx = to_onnx(recipe.fit(flat[[*FEATURES, "late"]], "late", 7), FEATURES)
    assert importance(onnx, rows, FEATURES, "late", seed=7) == dict.fromkeys(FEATURES, 1 / len(FEATURES))


def test_rows_without_labels_do_not_count(fitted: Fitted) -> None:
    rows = made_up(1000, seed=14)
    more = made_up(500, seed=15).assign(late=np.nan)
    both = importance(fitted.onnx, rows.iloc[:0], FEATURES, "late", seed=7)
    assert both == importance(fitted.onnx, more, FEATURES, "late", seed=7) == dict.fromkeys(FEATURES, 1 / 6)
