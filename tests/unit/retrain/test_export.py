"""A fitted estimator and its ONNX say the same, and the same fit is the same bytes."""

from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from lightgbm import LGBMRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from assets.recipe import Recipe
from assets.retrain.export import parity, to_onnx
from assets.retrain.serving_form import NotConvertible
from assets.scoring import Scorer, as_served, score, tensors

from .conftest import FEATURES, Fitted, made_up


def test_the_same_rows_recipe_and_seed_give_the_same_bytes(recipe: Recipe, fitted: Fitted) -> None:
    again = recipe.fit(fitted.frame[[*FEATURES, "late"]], "late", 7)
    assert to_onnx(again, FEATURES) == fitted.onnx


def test_another_seed_gives_another_model(recipe: Recipe, fitted: Fitted) -> None:
    other = recipe.fit(fitted.frame[[*FEATURES, "late"]], "late", 8)
    assert to_onnx(other, FEATURES) != fitted.onnx


def test_every_column_is_one_named_input_and_probabilities_the_one_output(fitted: Fitted) -> None:
    model = onnx.load_from_string(fitted.onnx)
    types = {item.name: item.type.tensor_type for item in model.graph.input}
    codes = {"string": onnx.TensorProto.STRING, "float": onnx.TensorProto.FLOAT, "int": onnx.TensorProto.INT64}
    assert {name: kind.elem_type for name, kind in types.items()} == {n: codes[k] for n, k in FEATURES.items()}
    assert all(kind.shape.dim[1].dim_value == 1 for kind in types.values())
    assert [item.name for item in model.graph.output] == ["probabilities"]
    assert model.ir_version <= 10
    assert {item.domain: item.version for item in model.opset_import} == {"": 15, "ai.onnx.ml": 3}


def test_both_answer_alike_on_rows_neither_has_seen(fitted: Fitted) -> None:
    assert parity(fitted.estimator, fitted.onnx, made_up(20_000, seed=2), FEATURES) <= 1e-6


def test_both_answer_alike_on_unknown_missing_and_extreme_values(fitted: Fitted) -> None:
    odd = made_up(200, seed=3)
    odd.loc[:40, "carrier"] = None
    odd.loc[41:80, "dest"] = "ZZZ"
    odd.loc[81:120, "distance"] = np.nan
    odd.loc[121:140, "temp"] = 1e30
    odd.loc[141:160, "temp"] = -1e30
    assert parity(fitted.estimator, fitted.onnx, odd, FEATURES) <= 1e-6


def test_a_value_on_a_threshold_takes_the_same_branch_in_both(fitted: Fitted) -> None:
    """Rounded to the nearest 32-bit number instead of down, thresholds send some of these rows the other way."""
    booster = fitted.estimator.steps[-1][1].booster_.trees_to_dataframe()
    name = fitted.estimator[:-1].get_feature_names_out().tolist().index("numbers__temp")
    thresholds = booster.loc[booster["split_feature"] == f"Column_{name}", "threshold"].to_numpy()
    around = np.concatenate([np.nextafter(thresholds.astype(np.float32), side) for side in (-np.inf, np.inf)])
    on_them = np.concatenate([thresholds.astype(np.float32), around.astype(np.float32)]).astype(np.float64)
    rows = made_up(len(on_them), seed=4).assign(temp=on_them)
    assert len(rows) > 500
    assert parity(fitted.estimator, fitted.onnx, rows, FEATURES) <= 1e-6


def test_parity_sees_a_model_of_other_answers(recipe: Recipe, fitted: Fitted) -> None:
    other = recipe.fit(made_up(3000, seed=9)[[*FEATURES, "late"]], "late", 7)
    assert parity(other, fitted.onnx, fitted.frame, FEATURES) > 0.01


def test_models_without_trees_convert_too(fitted: Fitted) -> None:
    numbers = {"hour": "float", "distance": "float"}
    frame = fitted.frame[[*numbers]].astype(np.float32)
    model = LogisticRegression().fit(frame, fitted.frame["late"])
    assert parity(model, to_onnx(make_pipeline(FunctionTransformer(), model), numbers), frame, numbers) < 1e-5


def _lambda_in_the_way(frame: pd.DataFrame, labels: pd.Series) -> Any:
    return make_pipeline(FunctionTransformer(lambda x: x), LogisticRegression()).fit(frame, labels)


@pytest.mark.parametrize(
    ("fit", "reason"),
    [
        (lambda frame, labels: LinearRegression().fit(frame, labels), "classes are None"),
        (lambda frame, labels: KNeighborsClassifier().fit(frame, labels + 1), r"serving needs \[0, 1\]"),
        (_lambda_in_the_way, "does not convert"),
        (lambda frame, labels: "a string", "of no known framework"),
    ],
)
def test_what_serving_could_not_load_is_refused_with_a_remedy(fitted: Fitted, fit: Any, reason: str) -> None:
    numbers = fitted.frame[["hour", "distance"]].astype(float)
    with pytest.raises(NotConvertible, match=reason) as raised:
        to_onnx(fit(numbers, fitted.frame["late"]), {"hour": "float", "distance": "float"})
    assert ": fit a " in str(raised.value)


def test_no_rows_have_no_difference(fitted: Fitted) -> None:
    assert parity(fitted.estimator, fitted.onnx, fitted.frame.iloc[:0], FEATURES) == 0.0


def test_trees_of_two_classes_are_served_as_one_sum_with_the_same_answers(fitted: Fitted) -> None:
    """The classifier's own node takes the path for many classes, at half the speed."""
    kinds = [node.op_type for node in onnx.load_from_string(fitted.onnx).graph.node]
    assert "TreeEnsembleRegressor" in kinds
    assert "TreeEnsembleClassifier" not in kinds
    answers = Scorer(fitted.onnx).session.run(None, tensors(fitted.frame, FEATURES))[0]
    np.testing.assert_allclose(answers, fitted.estimator.predict_proba(as_served(fitted.frame, FEATURES)), atol=1e-6)


def test_trees_of_another_kind_stay_as_they_are(fitted: Fitted) -> None:
    """A forest's trees speak of both classes, and their mean is the chance itself."""
    numbers = {"hour": "float", "distance": "float"}
    frame = fitted.frame[[*numbers]].astype(np.float32)
    trees = RandomForestClassifier(5, max_depth=3, random_state=1)
    forest = make_pipeline(FunctionTransformer(), trees).fit(frame, fitted.frame["late"])
    body = to_onnx(forest, numbers)
    assert "TreeEnsembleClassifier" in [node.op_type for node in onnx.load_from_string(body).graph.node]
    assert parity(forest, body, frame, numbers) < 1e-6


@pytest.mark.parametrize(
    "model",
    [
        LGBMRegressor(n_estimators=30, verbose=-1, n_jobs=1),
        LGBMRegressor(n_estimators=30, verbose=-1, n_jobs=1, objective="poisson"),
        HistGradientBoostingRegressor(max_iter=30),
        RandomForestRegressor(10, max_depth=5, n_jobs=1),
        LinearRegression(),
    ],
)
def test_a_regressor_answers_the_number_it_was_fitted_on_beyond_what_32_bits_hold_exactly(
    fitted: Fitted, model: Any
) -> None:
    numbers = {"hour": "float", "distance": "float"}
    frame = fitted.frame[[*numbers]].astype(np.float32)
    label = 1e6 + 1000.0 * frame["hour"] + frame["distance"]
    estimator = make_pipeline(FunctionTransformer(), model).fit(frame, label)
    body = to_onnx(estimator, numbers, "regression")
    assert [item.name for item in onnx.load_from_string(body).graph.output] == ["prediction"]
    assert parity(estimator, body, frame, numbers, "regression") < 1e-5
    assert score(body, frame, numbers) == pytest.approx(label, rel=0.02)
    assert body == to_onnx(estimator, numbers, "regression")
