"""Every framework a recipe may use: recognised, exported in what serving reads, the same in the same bytes."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from assets.network import Network, RegressionNetwork
from assets.recipe import icon, load_recipe
from assets.retrain import torch_onnx
from assets.retrain.export import framework, parity, to_onnx
from assets.retrain.measures import auc
from assets.retrain.serving_form import MAX_IR_VERSION, MAX_OPSETS, OPSETS, NotConvertible, finished
from assets.scoring import as_served, score

from .conftest import FEATURES, made_up

RECIPES = Path(__file__).parents[2] / "recipes"
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
KINDS = {"sklearn": "scikitlearn", "lightgbm": "lightgbm", "xgboost": "xgboost", "torch": "pytorch"}
PARAMETERS = [pytest.param(name, marks=TORCH) if name == "torch" else name for name in KINDS]


def fitted(name: str, seed: int = 7) -> tuple[Any, list[tuple[int, Mapping[str, float]]]]:
    """The estimator of a recipe on the same made-up flights, and what it reported."""
    told: list[tuple[int, Mapping[str, float]]] = []
    frame = made_up(3000, seed=1)[[*FEATURES, "late"]]
    recipe = load_recipe(RECIPES / f"with_{name}.py")
    return recipe.fit(frame, "late", seed, lambda step, metrics: told.append((step, metrics))), told


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_recipe_of_every_framework_becomes_what_serving_reads(name: str) -> None:
    estimator, _ = fitted(name)
    assert framework(estimator) == KINDS[name]
    body = to_onnx(estimator, FEATURES)
    model = onnx.load_from_string(body)
    assert model.ir_version <= MAX_IR_VERSION
    assert all(item.version <= MAX_OPSETS[item.domain] for item in model.opset_import)
    assert [item.name for item in model.graph.input] == list(FEATURES)
    assert [item.name for item in model.graph.output] == ["probabilities"]
    unseen = made_up(5000, seed=2)
    unseen.loc[:50, "carrier"] = None
    unseen.loc[51:90, "dest"] = "ZZZ"
    assert parity(estimator, body, unseen, FEATURES) <= 1e-5
    assert auc(unseen["late"].to_numpy(), score(body, unseen, FEATURES)) > 0.7


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_same_rows_recipe_and_seed_give_the_same_package(name: str) -> None:
    digests = {hashlib.sha256(to_onnx(fitted(name)[0], FEATURES)).hexdigest() for _ in range(2)}
    assert len(digests) == 1
    assert hashlib.sha256(to_onnx(fitted(name, seed=8)[0], FEATURES)).hexdigest() not in digests


ELSEWHERE = """
import hashlib, sys
from tests.unit.retrain.test_frameworks import FEATURES, fitted, to_onnx
for name in sys.argv[1:]:
    print(hashlib.sha256(to_onnx(fitted(name)[0], FEATURES)).hexdigest())
"""


def test_another_process_gives_the_same_package_too() -> None:
    """Sets are walked in another order there: the seed of Python's hashes is another one in every process."""
    names = [name for name in KINDS if name != "torch" or find_spec("torch") is not None]
    here = [hashlib.sha256(to_onnx(fitted(name)[0], FEATURES)).hexdigest() for name in names]
    for seed in ("1", "2"):
        command = [sys.executable, "-c", ELSEWHERE, *names]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.split() == here


@pytest.mark.parametrize("name", [item for item in PARAMETERS if item != "sklearn"])
def test_a_recipe_that_takes_report_tells_how_the_fit_goes(name: str) -> None:
    _, told = fitted(name)
    steps = [step for step, _ in told]
    assert steps == list(range(len(told)))
    assert len(told) >= 40
    losses = [next(iter(metrics.values())) for _, metrics in told]
    assert losses[-1] < losses[0]


def test_a_recipe_without_report_is_fitted_as_before() -> None:
    recipe = load_recipe(RECIPES / "with_sklearn.py")
    assert not recipe.reports
    assert load_recipe(RECIPES / "with_xgboost.py").reports
    assert fitted("sklearn")[1] == []


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_icon_is_read_from_the_imports_without_running_the_recipe(name: str, kind: str) -> None:
    assert icon(RECIPES / f"with_{name}.py") == kind


def test_a_recipe_that_cannot_be_read_has_a_plain_icon(tmp_path: Path) -> None:
    broken = tmp_path / "recipe.py"
    broken.write_text("def fit(:")
    assert (icon(broken), icon(tmp_path / "none.py")) == ("python", "python")


def test_another_framework_is_refused_with_the_remedy() -> None:
    class Foreign:
        classes_ = np.array([0, 1])

    with pytest.raises(
        NotConvertible, match=r"Foreign is of no known framework: fit a scikit-learn, LightGBM or XGBoost"
    ):
        to_onnx(Foreign(), FEATURES)


def test_what_a_known_framework_cannot_export_is_refused_with_the_remedy() -> None:
    class Odd(DummyClassifier):  # type: ignore[misc]
        """A subclass that skl2onnx has no converter for."""

    frame = made_up(100, seed=1)
    with pytest.raises(NotConvertible, match=r"Odd does not convert: .*: fit a scikit-learn pipeline"):
        to_onnx(Odd().fit(frame[[*FEATURES]], frame["late"]), FEATURES)


def linear(weights: np.ndarray) -> bytes:
    """What PyTorch's exporter gives for one linear layer: (n, d) float to (n, 2) probabilities."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", [torch_onnx.SEAM, "w"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["one"]),
        helper.make_node("Sub", ["unit", "one"], ["zero"]),
        helper.make_node("Concat", ["zero", "one"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "module",
        [helper.make_tensor_value_info(torch_onnx.SEAM, kind, ["n", len(weights)])],
        [helper.make_tensor_value_info("probabilities", kind, ["n", 2])],
        [
            helper.make_tensor("w", kind, [len(weights), 1], weights.astype(np.float32)),
            helper.make_tensor("unit", kind, [1], [1.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSETS[""])], ir_version=8)
    return bytes(model.SerializeToString())


def test_columns_and_module_of_a_network_become_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = made_up(500, seed=1)
    inputs = as_served(frame, FEATURES)
    columns = ColumnTransformer(
        [
            ("codes", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["carrier", "origin", "dest"]),
            ("gaps", make_pipeline(SimpleImputer(), StandardScaler()), ["distance", "temp"]),
            ("whole", StandardScaler(), ["hour"]),
        ]
    ).fit(inputs)
    rows = columns.transform(inputs)
    weights = np.random.default_rng(0).normal(size=rows.shape[1])
    widths: list[int] = []

    def exported(module: Any, width: int, task: str) -> bytes:
        widths.append(width)
        return linear(weights)

    monkeypatch.setattr(torch_onnx, "_module", exported)
    body = to_onnx(Network(columns, "a module"), FEATURES)
    assert widths == [rows.shape[1]]
    assert [item.name for item in onnx.load_from_string(body).graph.input] == list(FEATURES)
    np.testing.assert_allclose(score(body, frame, FEATURES), 1 / (1 + np.exp(-rows @ weights)), atol=1e-5)


@TORCH
def test_a_network_that_answers_a_number_becomes_what_serving_reads_too() -> None:
    import torch

    frame = made_up(3000, seed=1)
    inputs = as_served(frame, {"distance": "float", "temp": "float", "hour": "int"})
    kinds = {"distance": "float", "temp": "float", "hour": "int"}
    parts = [("gaps", SimpleImputer(), ["distance", "temp"]), ("whole", StandardScaler(), ["hour"])]
    columns = ColumnTransformer(parts).fit(inputs)
    torch.manual_seed(3)
    estimator = RegressionNetwork(
        columns, torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    )
    body = to_onnx(estimator, kinds, "regression")
    assert [item.name for item in onnx.load_from_string(body).graph.output] == ["prediction"]
    assert parity(estimator, body, made_up(2000, seed=2), kinds, "regression") <= 1e-5
    with pytest.raises(NotConvertible, match=r"serving needs \[0, 1\]"):
        to_onnx(estimator, kinds, "binary")
    with pytest.raises(NotConvertible, match="the recipe gives a classifier"):
        to_onnx(Network(columns, estimator.module), kinds, "regression")


@TORCH
def test_a_network_that_cannot_be_exported_is_refused_with_the_remedy() -> None:
    with pytest.raises(NotConvertible, match="the network does not convert"):
        to_onnx(Network("no columns", "no module"), FEATURES)


def model_of(ir_version: int = 8, **opsets: int) -> Any:
    node = onnx.helper.make_node("Identity", ["x"], ["probabilities"])
    types = [onnx.helper.make_tensor_value_info(name, 1, [None, 2]) for name in ("x", "probabilities")]
    graph = onnx.helper.make_graph([node], "g", types[:1], types[1:])
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in ({"": 15} | opsets).items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def test_what_the_serving_side_is_too_old_for_is_refused_by_number() -> None:
    assert finished(model_of())
    with pytest.raises(NotConvertible, match=r"IR version 11 is newer than 10, which serving reads: fit"):
        finished(model_of(ir_version=11))
    with pytest.raises(NotConvertible, match=r"opset 22 of ai\.onnx is used, and serving reads up to 21: fit"):
        finished(model_of(**{"": 22}))
    with pytest.raises(NotConvertible, match=r"opset 1 of com\.other is used, and serving reads none of it: fit"):
        finished(model_of(**{"com.other": 1}))
