"""What goes into a package: configuration, probe, manifest."""

import hashlib
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from assets.profile.package import build_probe, package_files, warmup_files, warmup_samples
from assets.profile.serving_config import serving_config, starting_choice
from assets.profile.settings import ProfileSettings

FEATURES = {"carrier": "string", "temp": "float", "hour": "int", "holiday": "bool"}
ROWS = pd.DataFrame({"carrier": ["UA", None], "temp": [0.1, np.nan], "hour": [3, 4], "holiday": [True, False]})
CHOICE = {
    "instances": 2,
    "max_queue_delay_us": 500,
    "max_batch_size": 64,
    "max_queue_size": 99,
    "intra_op_threads": 3,
}


PROBE = build_probe(ROWS, FEATURES, np.array([0.25, 0.75]))


def config(**changes: Any) -> dict[str, Any]:
    return serving_config("m", FEATURES, CHOICE | changes, version=7, lineage={"snapshot_digest": "abc"})


def test_every_feature_is_a_named_input_of_one_column() -> None:
    inputs = {i["name"]: (i["data_type"], i["dims"]) for i in config()["input"]}
    assert inputs == {
        "carrier": ("TYPE_STRING", [1]),
        "temp": ("TYPE_FP32", [1]),
        "hour": ("TYPE_INT64", [1]),
        "holiday": ("TYPE_BOOL", [1]),
    }
    assert config()["output"] == [{"name": "probabilities", "data_type": "TYPE_FP32", "dims": [2]}]


def test_the_choice_is_what_triton_runs() -> None:
    made = config()
    assert made["instance_group"] == [{"kind": "KIND_CPU", "count": 2}]
    assert made["dynamic_batching"] == {
        "max_queue_delay_microseconds": 500,
        "default_queue_policy": {"max_queue_size": 99},
    }
    assert made["version_policy"] == {"specific": {"versions": [7]}}
    assert made["parameters"]["intra_op_thread_count"] == {"string_value": "3"}


def test_one_instance_gets_no_queue_policy() -> None:
    assert config(instances=1)["dynamic_batching"] == {"max_queue_delay_microseconds": 500}


def test_the_running_server_knows_where_its_model_came_from() -> None:
    parameters = config()["parameters"]
    assert parameters["mlflow_version"] == {"string_value": "7"}
    assert parameters["snapshot_digest"] == {"string_value": "abc"}


def test_a_gpu_gets_its_own_kind() -> None:
    made = serving_config("m", FEATURES, CHOICE, version=7, kind="KIND_GPU")
    assert made["instance_group"] == [{"kind": "KIND_GPU", "count": 2}]


def test_an_unknown_feature_type_is_an_error() -> None:
    with pytest.raises(KeyError, match="date"):
        serving_config("m", {"day": "date"}, CHOICE, version=7)


def test_the_sweep_starts_from_the_first_of_each() -> None:
    choice = starting_choice(ProfileSettings(instances=(2, 1), queue_delays_us=(100, 0)))
    assert (choice["instances"], choice["max_queue_delay_us"]) == (2, 100)


def test_a_probe_holds_the_rows_as_the_wire_does() -> None:
    probe = build_probe(ROWS, FEATURES, np.array([0.25, 0.75]), 1e-4)
    assert probe["inputs"]["carrier"] == {"datatype": "BYTES", "shape": [2, 1], "data": ["UA", ""]}
    assert probe["inputs"]["temp"]["data"][0] == float(np.float32(0.1))
    assert np.isnan(probe["inputs"]["temp"]["data"][1])
    assert probe["inputs"]["hour"] == {"datatype": "INT64", "shape": [2, 1], "data": [3, 4]}
    assert probe["inputs"]["holiday"] == {"datatype": "BOOL", "shape": [2, 1], "data": [True, False]}
    assert probe["outputs"]["probabilities"] == {
        "datatype": "FP32",
        "shape": [2, 2],
        "data": [0.75, 0.25, 0.25, 0.75],
    }
    assert probe["tolerance"] == 1e-4


def test_a_number_is_one_value_a_row_and_its_tolerance_grows_with_it() -> None:
    probe = build_probe(ROWS, FEATURES, np.array([-2000.0, 500.0]), 1e-5, "regression")
    assert probe["outputs"] == {"prediction": {"datatype": "FP32", "shape": [2, 1], "data": [-2000.0, 500.0]}}
    assert probe["tolerance"] == pytest.approx(0.02)
    made = serving_config("m", FEATURES, CHOICE, version=7, task="regression")
    assert made["output"] == [{"name": "prediction", "data_type": "TYPE_FP32", "dims": [1]}]


def test_the_warm_up_holds_real_rows_as_bytes_that_their_name_vouches_for() -> None:
    samples, files = warmup_samples(PROBE), warmup_files(PROBE)
    assert [sample["name"] for sample in samples] == ["row 0", "row 1"]

    def value(row: int, name: str) -> bytes:
        return files["warmup/" + samples[row]["inputs"][name]["input_data_file"]]

    assert [value(row, "carrier") for row in (0, 1)] == [b"\x02\x00\x00\x00UA", b"\x00\x00\x00\x00"]
    assert value(0, "temp") == np.float32(0.1).tobytes()
    assert np.isnan(np.frombuffer(value(1, "temp"), np.float32)[0])
    assert [value(row, "hour") for row in (0, 1)] == [np.int64(hour).tobytes() for hour in (3, 4)]
    assert [value(row, "holiday") for row in (0, 1)] == [b"\x01", b"\x00"]
    assert {name: hashlib.sha256(body).hexdigest()[:16] for name, body in files.items()} == {
        name: name.removeprefix("warmup/") for name in files
    }


def test_the_warm_up_is_the_same_each_time_and_no_longer_than_asked() -> None:
    assert warmup_files(PROBE) == warmup_files(build_probe(ROWS, FEATURES, np.array([0.5, 0.5])))
    assert len(warmup_samples(PROBE, rows=1)) == 1
    assert {item["data_type"] for item in warmup_samples(PROBE)[0]["inputs"].values()} == {
        "TYPE_STRING",
        "TYPE_FP32",
        "TYPE_INT64",
        "TYPE_BOOL",
    }


@pytest.mark.parametrize("rows", [0, 1])
def test_a_probe_without_as_many_answers_as_rows_is_an_error(rows: int) -> None:
    with pytest.raises(ValueError, match="needs as many"):
        build_probe(ROWS.head(rows), FEATURES, np.zeros(rows and 2))


def test_the_manifest_names_every_file_by_digest_and_where_it_came_from() -> None:
    files = package_files(
        "m",
        7,
        b"onnx",
        "cpu",
        PROBE,
        snapshot_digest="abc",
        mlflow_run_id="run",
        profile=CHOICE,
        device_configs={"h100": "gpu"},
    )
    named = {"config.pbtxt", "configs/h100.pbtxt", "7/model.onnx", "probe.json", "manifest.json"}
    assert set(files) == named | set(warmup_files(PROBE))
    manifest = json.loads(files["manifest.json"])
    assert (manifest["model"], manifest["version"]) == ("m", 7)
    assert (manifest["snapshot_digest"], manifest["mlflow_run_id"]) == ("abc", "run")
    assert manifest["profile"] == CHOICE
    assert manifest["files"] == {
        name: hashlib.sha256(body).hexdigest() for name, body in files.items() if name != "manifest.json"
    }


@pytest.mark.parametrize(
    "change",
    [
        {"instances": ()},
        {"instances": (0,)},
        {"instances": (1, 1)},
        {"queue_delays_us": (-1,)},
        {"p99_latency_ms": 0},
        {"p99": 5},
        {"quiet_band": 1.5},
        {"instance_hour_price": -1},
    ],
)
def test_settings_out_of_bounds_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ProfileSettings(**change)
