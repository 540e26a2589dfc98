"""Lineage as MLflow itself tells it: pages, datasets, and tries that died half-way."""

import itertools
import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from resources.errors import DataError, LineageError
from resources.lineage import Dataset, Lineage, RegisteredVersion
from tests.mlflow_server import running_mlflow
from tests.serving_stack import tiny_onnx

pytestmark = pytest.mark.integration
NAMES = (f"told_{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lineage]:
    with running_mlflow(tmp_path_factory.mktemp("mlflow")) as (url, _):
        yield Lineage(url)


@pytest.fixture
def model() -> str:
    return next(NAMES)


def register(lineage: Lineage, model: str) -> RegisteredVersion:
    return lineage.register(
        model,
        tiny_onnx(),
        dagster_run_id="d1",
        snapshot_digest="ab" * 32,
        snapshot_uri="features/flights/1/ab.parquet",
        metrics={"auc": 0.7},
    )


def fetched(lineage: Lineage, path: str) -> dict[str, Any]:
    """What MLflow's own interface says."""
    with urlopen(f"{lineage.tracking_uri}/api/2.0/mlflow/{path}", timeout=10) as answer:
        said: dict[str, Any] = json.loads(answer.read())
        return said


def test_a_run_in_mlflow_holds_all_it_was_told(lineage: Lineage, model: str) -> None:
    run_id = lineage.run(
        model,
        "drift",
        dagster_run_id="d7",
        tags={"as_of": "2013-02-01T00:00:00+00:00", "long": "x" * 20_000},
        params={"window": "7"},
        metrics={"ks": 0.25, "bound": float("inf"), "nothing": float("nan")},
        artifacts={"decision.json": b"{}", "plots/roc.png": b"png"},
        dataset=Dataset("window", "cd" * 32, "features/x.parquet", rows=12),
    )
    run = fetched(lineage, f"runs/get?run_id={run_id}")["run"]
    tags = {item["key"]: item["value"] for item in run["data"]["tags"]}
    assert (tags["kind"], tags["dagster.run_id"]) == ("drift", "d7")
    assert run["info"]["status"] == "FINISHED"
    assert run["info"]["run_name"] == "drift 2013-02-01T00:00"
    assert {item["key"]: item["value"] for item in run["data"]["metrics"]} == {"ks": 0.25}
    assert run["data"]["params"] == [{"key": "window", "value": "7"}]
    (dataset,) = run["inputs"]["dataset_inputs"]
    assert dataset["dataset"]["digest"] == ("cd" * 32)[:32]
    assert json.loads(dataset["dataset"]["source"]) == {"uri": "features/x.parquet"}
    files = {item["path"] for item in fetched(lineage, f"artifacts/list?run_id={run_id}")["files"]}
    assert files == {"decision.json", "plots"}


def test_a_run_that_is_followed_shows_each_step_and_the_last_page(lineage: Lineage, model: str) -> None:
    run_id = lineage.run(model, "rollout", dagster_run_id="d1")
    for step in (100, 200):
        lineage.follow(run_id, {"log_e.errors": step / 100}, step, {"page.html": b"<p>%d</p>" % step})
    query = f"metrics/get-history?run_id={run_id}&metric_key=log_e.errors"
    assert [(item["step"], item["value"]) for item in fetched(lineage, query)["metrics"]] == [(100, 1.0), (200, 2.0)]
    files = {
        item["path"]: int(item["file_size"]) for item in fetched(lineage, f"artifacts/list?run_id={run_id}")["files"]
    }
    assert files == {"page.html": len(b"<p>200</p>")}


def test_a_version_is_reached_from_its_snapshot_and_back(lineage: Lineage, model: str) -> None:
    made = register(lineage, model)
    version = fetched(lineage, f"model-versions/get?name={model}&version=1")["model_version"]
    assert version["run_id"] == made.run_id
    assert version["status"] == "READY"
    run = fetched(lineage, f"runs/get?run_id={made.run_id}")["run"]
    assert run["inputs"]["dataset_inputs"][0]["dataset"]["digest"] == ("ab" * 32)[:32]
    files = {item["path"] for item in fetched(lineage, f"artifacts/list?run_id={made.run_id}&path=model")["files"]}
    assert {"model/MLmodel", "model/model.onnx"} <= files


def test_a_try_that_died_before_its_version_is_completed_by_the_next(
    lineage: Lineage, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(lineage._client), "create_model_version", died)
        with pytest.raises(KeyboardInterrupt):
            register(lineage, model)
    made = register(lineage, model)
    assert made.version == 1
    experiment = fetched(lineage, f"experiments/get-by-name?experiment_name={model}")["experiment"]["experiment_id"]
    runs = lineage._client.search_runs([experiment], "tags.kind = 'candidate'")
    assert [run.info.run_id for run in runs] == [made.run_id]


def test_a_run_that_could_not_be_filled_is_closed_as_failed(lineage: Lineage, model: str) -> None:
    with pytest.raises(LineageError, match="leaves its run"):
        lineage.run(model, "drift", dagster_run_id="d1", artifacts={"../escape": b""})
    experiment = fetched(lineage, f"experiments/get-by-name?experiment_name={model}")["experiment"]["experiment_id"]
    assert [run.info.status for run in lineage._client.search_runs([experiment])] == ["FAILED"]


def test_bytes_that_are_no_model_are_refused(lineage: Lineage, model: str) -> None:
    with pytest.raises(LineageError, match="not an ONNX model"):
        lineage.register(model, b"\x00nonsense", dagster_run_id="d", snapshot_digest="a", snapshot_uri="b")


def test_bytes_that_changed_after_registration_are_refused(
    lineage: Lineage, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = register(lineage, model)
    lineage._upload(made.run_id, {"model/model.onnx": tiny_onnx(9.0)})
    with pytest.raises(DataError, match=r"onnx\.digest"):
        lineage.onnx(model, made.version)
