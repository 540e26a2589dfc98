"""The fallback copy: fewer trees, judged, packaged."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assets.fallback.judge import Copy, judge
from assets.fallback.package import copy_files
from assets.fallback.settings import FallbackSettings
from assets.fallback.trees import NotReducible, fewer_trees
from assets.profile.package import build_probe, package_files, warmup_files
from assets.retrain.export import to_onnx
from assets.scoring import score
from assets.verdict import Verdict

FEATURES = {"carrier": "string", "temp": "float"}
NOW = datetime(2013, 3, 1, tzinfo=UTC)
TREES = 40


def rows(count: int = 2000) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    temp = rng.normal(size=count).astype(np.float32)
    carrier = rng.choice(["UA", "B6", "AA"], count)
    odds = 1.5 * temp + (carrier == "UA")
    return pd.DataFrame({"carrier": carrier, "temp": temp, "late": (rng.random(count) < 1 / (1 + np.exp(-odds)))})


@pytest.fixture(scope="module")
def fitted() -> Any:
    from lightgbm import LGBMClassifier
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    frame = rows()
    codes = ColumnTransformer([("codes", OrdinalEncoder(), ["carrier"]), ("rest", "passthrough", ["temp"])])
    trees = LGBMClassifier(n_estimators=TREES, num_leaves=7, random_state=1, n_jobs=1, verbose=-1)
    return Pipeline([("columns", codes), ("trees", trees)]).fit(frame[list(FEATURES)], frame["late"].astype(int))


@pytest.fixture(scope="module")
def onnx(fitted: Any) -> bytes:
    return to_onnx(fitted, FEATURES)


@pytest.mark.parametrize("share", [0.5, 0.25, 0.001])
def test_the_first_trees_answer_as_the_booster_stopped_earlier(fitted: Any, onnx: bytes, share: float) -> None:
    lite, kept, total = fewer_trees(onnx, share)
    assert (kept, total) == (max(1, round(share * TREES)), TREES)
    inputs = fitted.named_steps["columns"].transform(rows()[list(FEATURES)])
    expected = fitted.named_steps["trees"].booster_.predict(inputs, num_iteration=kept)
    np.testing.assert_allclose(score(lite, rows(), FEATURES), expected, atol=1e-6)
    assert len(lite) < len(onnx)


def test_all_trees_are_the_same_model(onnx: bytes) -> None:
    whole, kept, total = fewer_trees(onnx, 1.0)
    assert kept == total
    np.testing.assert_array_equal(score(whole, rows(), FEATURES), score(onnx, rows(), FEATURES))


def test_a_model_without_trees_says_why() -> None:
    from tests.serving_stack import tiny_onnx

    with pytest.raises(NotReducible, match="0 tree ensembles"):
        fewer_trees(tiny_onnx(), 0.5)


def test_a_forest_s_average_is_not_cut() -> None:
    from sklearn.ensemble import RandomForestClassifier

    frame = rows(300)
    forest = RandomForestClassifier(5, random_state=1).fit(frame[["temp"]], frame["late"].astype(int))
    with pytest.raises(NotReducible, match="no log-odds"):
        fewer_trees(to_onnx(forest, {"temp": "float"}), 0.5)


LABELS = np.tile([0.0, 1.0], 500)
DAYS = np.repeat(np.arange(10), 100)
GOOD = np.where(LABELS > 0, 0.8, 0.2)


def copy(percent: int, worse_by: float, cost: float = 0.5) -> Copy:
    """Every row's Brier loss is worse by so much than the original's 0.04."""
    return Copy(percent / 100, np.abs(LABELS - np.sqrt(0.04 + worse_by)), cost)


def decided(*copies: Copy, count: int = 1000, **settings: Any) -> Any:
    chosen = FallbackSettings(**settings)
    return judge("m", LABELS[:count], DAYS[:count], GOOD[:count], copies, chosen, NOW, {})


def test_the_smallest_copy_within_the_margin_is_taken() -> None:
    decision = decided(copy(60, 0.001), copy(40, 0.003), copy(20, 0.02))
    assert decision.verdict is Verdict.PASS
    assert decision.details["choice"] == 0.4
    assert [step["share"] for step in decision.details["copies"]] == [0.6, 0.4, 0.2]


def test_the_walk_ends_at_the_first_copy_beyond_the_margin() -> None:
    decision = decided(copy(60, 0.02), copy(40, 0.0))
    assert decision.verdict is Verdict.FAIL
    assert len(decision.details["copies"]) == 1
    assert "overload is answered 503" in decision.why


def test_a_copy_that_is_not_cheaper_is_not_taken() -> None:
    assert decided(copy(60, 0.0, cost=1.0)).verdict is Verdict.FAIL
    assert decided(copy(60, 0.0, cost=1.0), copy(40, 0.0, cost=0.9)).details["choice"] == 0.4


def test_too_little_is_no_verdict() -> None:
    assert decided(copy(60, 0.0), count=400).verdict is Verdict.INCONCLUSIVE
    one_day = judge("m", LABELS, np.zeros(1000), GOOD, [copy(60, 0.0)], FallbackSettings(), NOW, {})
    assert one_day.verdict is Verdict.INCONCLUSIVE


@given(st.floats(0.006, 0.5))
def test_a_copy_worse_than_the_margin_never_passes(worse_by: float) -> None:
    assert decided(copy(60, worse_by)).verdict is not Verdict.PASS


@pytest.mark.parametrize(
    "change",
    [{"tree_shares": ()}, {"tree_shares": (0.2, 0.4)}, {"tree_shares": (1.0,)}, {"after_ms": 0}, {"share": 0.1}],
)
def test_settings_out_of_bounds_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FallbackSettings(**change)


def test_the_copy_s_package_expects_its_own_answers_and_names_its_original(onnx: bytes) -> None:
    head = rows()[list(FEATURES)].head(8)
    probe = build_probe(head, FEATURES, score(onnx, head, FEATURES))
    files = package_files("m", 7, onnx, "config", probe, snapshot_digest="abc", mlflow_run_id="run", profile={})
    lite, kept, _ = fewer_trees(onnx, 0.25)
    made = copy_files({**files, "model.sig": b"old"}, 7, lite, FEATURES, kept)
    assert set(made) == set(files)
    assert made["config.pbtxt"] == files["config.pbtxt"]
    assert set(warmup_files(probe)) <= set(made)
    expected = json.loads(made["probe.json"])["outputs"]["probabilities"]["data"][1::2]
    np.testing.assert_allclose(expected, score(lite, head, FEATURES))
    manifest = json.loads(made["manifest.json"])
    assert manifest["fallback"] == {"trees": kept, "of": hashlib.sha256(onnx).hexdigest()}
    assert manifest["snapshot_digest"] == "abc"
    assert manifest["files"]["7/model.onnx"] == hashlib.sha256(lite).hexdigest()
