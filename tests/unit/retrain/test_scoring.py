"""One way from rows to inputs, for training and for every client."""

import numpy as np
import pandas as pd
import pytest

from assets import scoring
from assets.scoring import Scorer, alike, as_served, score, tensors

from .conftest import FEATURES, Fitted, made_up

TYPES = {"name": "string", "count": "int", "size": "float", "open": "bool"}
ROWS = pd.DataFrame({"open": [True, False], "size": [0.1, np.nan], "name": ["a", None], "count": [1, 2]})


def test_every_column_is_a_tensor_of_its_own_type_and_shape() -> None:
    made = tensors(ROWS, TYPES)
    assert list(made) == list(TYPES)
    assert {name: value.shape for name, value in made.items()} == dict.fromkeys(TYPES, (2, 1))
    assert made["size"].dtype == np.float32
    assert made["count"].dtype == np.int64
    assert made["open"].dtype == np.bool_
    assert made["name"].tolist() == [["a"], [""]]


def test_a_missing_text_is_the_same_whatever_it_was_called() -> None:
    texts = pd.DataFrame({"name": [None, np.nan, pd.NA, ""]})
    assert tensors(texts, {"name": "string"})["name"].tolist() == [[""]] * 4


def test_recipes_see_what_serving_sees() -> None:
    served = as_served(ROWS, TYPES)
    assert {name: served[name].tolist() for name in ("name", "count")} == {"name": ["a", ""], "count": [1, 2]}
    np.testing.assert_array_equal(served["size"], tensors(ROWS, TYPES)["size"][:, 0])


def test_scores_are_the_estimators_probabilities(fitted: Fitted) -> None:
    rows = made_up(500, seed=5)
    expected = fitted.estimator.predict_proba(as_served(rows, FEATURES))[:, 1]
    answers = score(fitted.onnx, rows, FEATURES)
    assert answers.shape == (500,)
    assert answers.dtype == np.float64
    np.testing.assert_allclose(answers, expected, atol=1e-6)


def test_chunks_change_no_answer_beyond_its_last_bits(fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = made_up(1000, seed=6)
    whole = score(fitted.onnx, rows, FEATURES)
    monkeypatch.setattr(scoring, "CHUNK_ROWS", 7)
    # Trees are summed in another order for another number of rows.
    np.testing.assert_allclose(score(fitted.onnx, rows, FEATURES), whole, atol=1e-6)


def test_threads_keep_the_order_and_answer_alike_every_time(fitted: Fitted) -> None:
    rows = made_up(9000, seed=8)
    alone, shared = Scorer(fitted.onnx, workers=1), Scorer(fitted.onnx, workers=3)
    np.testing.assert_allclose(shared(rows, FEATURES), alone(rows, FEATURES), atol=1e-6)
    assert np.array_equal(shared(rows, FEATURES), shared(rows, FEATURES))
    assert len(np.unique(shared(rows, FEATURES))) > 100, "rows that all score alike would hide a wrong order"


def test_texts_of_any_type_are_written_once_and_kept_in_place() -> None:
    mixed = pd.DataFrame({"name": pd.Series(["b", None, "a", 7, "b", float("nan")], dtype=object)})
    assert tensors(mixed, {"name": "string"})["name"].ravel().tolist() == ["b", "", "a", "7", "b", ""]
    assert tensors(mixed[:0], {"name": "string"})["name"].shape == (0, 1)
    listed = pd.DataFrame({"name": pd.Categorical(["b", None, "a"])})
    assert tensors(listed, {"name": "string"})["name"].ravel().tolist() == ["b", "", "a"]


def test_rows_of_one_category_are_answered_together_and_else_as_they_came() -> None:
    rng = np.random.default_rng(9)
    rows = pd.DataFrame(
        {"kind": np.array(["a", "b", None])[rng.integers(0, 3, 3000)], "city": np.arange(3000).astype(str)}
    )
    order = alike(rows, {"kind": "string", "city": "string"})
    changes = np.flatnonzero(
        rows["kind"].fillna("").to_numpy()[order][1:] != rows["kind"].fillna("").to_numpy()[order][:-1]
    )
    assert len(changes) == 2
    assert all((np.diff(part) > 0).all() for part in np.split(order, changes + 1))
    assert sorted(order) == list(range(3000))
    few = rows[:100]
    assert alike(few, {"kind": "string"}).tolist() == list(range(100))


def test_no_rows_have_no_answers(fitted: Fitted) -> None:
    assert score(fitted.onnx, made_up(0, seed=7), FEATURES).shape == (0,)
