"""Lineage as MLflow itself tells it: pages, datasets, and tries that died half-way."""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

import pytest

from resources.errors import DataError, LineageError
from resources.lineage import Lineage, RegisteredVersion
from resources.mlflow_entities import Dataset
from resources.mlflow_model import written
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
    model_id = version["source"].removeprefix("models:/")
    assert [item["model_id"] for item in run["outputs"]["model_outputs"]] == [model_id]
    logged = lineage._client.get_logged_model(model_id)
    assert (str(logged.status), logged.source_run_id) == ("READY", made.run_id)
    told = [(item.key, item.value, item.dataset_digest, item.run_id) for item in logged.metrics or []]
    assert told == [("auc", 0.7, ("ab" * 32)[:32], made.run_id)]


def test_mlflow_loads_a_version_as_any_other_model_of_its_own(
    lineage: Lineage, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow.onnx

    register(lineage, model)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", lineage.tracking_uri)
    loaded = mlflow.onnx.load_model(f"models:/{model}/1")
    assert loaded.SerializeToString(deterministic=True) == tiny_onnx()


def test_a_request_that_the_client_repeated_leaves_one_version(
    lineage: Lineage, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first was lost: MLflow's client sends it again, and the server has made two."""
    once: Any = type(lineage._client).create_model_version

    def twice(*arguments: Any, **named: Any) -> Any:
        once(*arguments, **named)
        return once(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(lineage._client), "create_model_version", twice)
        made = register(lineage, model)
    assert made.version == 1
    found = lineage._client.search_model_versions(f"name = '{model}'")
    assert [int(item.version) for item in found] == [1]


def test_a_fit_is_drawn_while_it_goes_on_and_closed_as_it_ended(lineage: Lineage, model: str) -> None:
    seconds = itertools.count(1_700_000_000)
    data = Dataset("rows", "ef" * 32, "features/y.parquet", rows=3)
    tags = {"dagster.partition": "2013-02-01"}
    with lineage.training(
        model, dagster_run_id="d1", tags=tags, dataset=data, clock=lambda: float(next(seconds))
    ) as told:
        for step in range(4):
            told(step, {"loss": 1.0 - step / 10})
        # Seen from outside before it has ended.
        history = fetched(lineage, f"metrics/get-history?run_id={told.run_id}&metric_key=loss")["metrics"]
        assert [(item["step"], item["value"]) for item in history][:2] == [(0, 1.0), (1, 0.9)]
        assert fetched(lineage, f"runs/get?run_id={told.run_id}")["run"]["info"]["status"] == "RUNNING"
    with pytest.raises(KeyError), lineage.training(model, dagster_run_id="d1") as failed:
        raise KeyError
    run = fetched(lineage, f"runs/get?run_id={told.run_id}")["run"]
    assert run["info"]["status"] == "FINISHED"
    assert run["inputs"]["dataset_inputs"][0]["dataset"]["digest"] == ("ef" * 32)[:32]
    assert fetched(lineage, f"runs/get?run_id={failed.run_id}")["run"]["info"]["status"] == "FAILED"


def test_a_step_with_patience_registers_once_though_mlflow_was_killed_and_started_anew(
    tmp_path_factory: pytest.TempPathFactory, model: str
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    with ExitStack() as servers:
        url, stop = servers.enter_context(running_mlflow(folder))
        stop()
        slept: list[float] = []

        def wait(pause_s: float) -> None:
            slept.append(pause_s)
            if len(slept) == 3:
                servers.enter_context(running_mlflow(folder, port=int(url.rsplit(":", 1)[1])))

        patient = Lineage(url, patience_s=60, sleep=wait)
        made = register(patient, model)
        assert slept == [0.5, 1.0, 2.0]
        assert (made.version, register(patient, model).version) == (1, 1)


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
    with written({"model.onnx": tiny_onnx(9.0)}) as folder:
        lineage._client.log_model_artifacts(lineage._model_of(made.run_id), str(folder))
    with pytest.raises(DataError, match=r"onnx\.digest"):
        lineage.onnx(model, made.version)
