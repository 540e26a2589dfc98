"""Model Analyzer's files: what it is given for a sweep, and what it measured."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.errors import ProfilerError
from resources.packages import render_config

# Windows long enough to count hundreds of answers, short enough for a gate that people wait for. How far to trust them
# the A/A control says, so perf_analyzer need not ask for stable ones again and again.
PERF_FLAGS = {
    "measurement-mode": "time_windows",
    "measurement-interval": 400,
    "stability-percentage": 95,
    "max-trials": 5,
}


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """What is varied, and what is held while it is."""

    instances: int
    max_queue_delay_us: int
    max_batch_size: int = 64
    intra_op_threads: int = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """One configuration under load. throughput_per_s: requests of one row; source: Model Analyzer's variant name."""

    config: ServingConfig
    concurrency: int
    throughput_per_s: float
    p99_latency_ms: float
    source: str


def base_of(model: str, config: Mapping[str, Any], instances: int, delay_us: int) -> dict[str, Any]:
    """The default: the first pair, and nothing that the variants would not have, or the A/A control is none."""
    kept = {key: value for key, value in config.items() if key != "version_policy"}
    group = [{"kind": "KIND_CPU", "count": instances}]
    batching = {"max_queue_delay_microseconds": delay_us}
    return {**kept, "name": model, "instance_group": group, "dynamic_batching": batching}


def write_inputs(folder: Path, model: str, onnx: bytes, base: Mapping[str, Any], probe: Mapping[str, Any]) -> None:
    version = folder / "repository" / model / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(onnx)
    (version.parent / "config.pbtxt").write_text(render_config(base))
    (folder / "load.json").write_text(json.dumps({"data": load_rows(probe)}, allow_nan=False))


def load_rows(probe: Mapping[str, Any]) -> list[dict[str, list[Any]]]:
    """The probe's rows as perf_analyzer reads them, one request a row. Its JSON knows no NaN: those become 0.

    >>> load_rows({"inputs": {"a": {"shape": [2, 1], "data": ["x", "y"]}, "b": {"shape": [2, 1], "data": [1.0, 2.0]}}})
    [{'a': ['x'], 'b': [1.0]}, {'a': ['y'], 'b': [2.0]}]
    """
    columns = {name: tensor["data"] for name, tensor in probe["inputs"].items()}
    return [
        {name: [_finite(value)] for name, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def _finite(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value


def analyzer_settings(
    folder: Path,
    model: str,
    ports: tuple[int, int, int],
    instances: Sequence[int],
    queue_delays_us: Sequence[int],
    concurrency: int,
) -> dict[str, Any]:
    """Model Analyzer's own file. The checkpoint folder is new each time: its keys know nothing of the model's bytes."""
    http, grpc, metrics = ports
    return {
        # Remote mode: local mode starts a server for every variant. It loads variants into OUR server's repository.
        "triton_launch_mode": "remote",
        "model_repository": str(folder / "repository"),
        "output_model_repository_path": str(folder / "variants"),
        "export_path": str(folder),
        "checkpoint_directory": str(folder / "checkpoints"),
        "client_protocol": "grpc",
        "triton_http_endpoint": f"127.0.0.1:{http}",
        "triton_grpc_endpoint": f"127.0.0.1:{grpc}",
        "triton_metrics_url": f"http://127.0.0.1:{metrics}/metrics",
        "run_config_search_disable": True,
        "skip_detailed_reports": True,
        "duration_seconds": 1,
        "perf_analyzer_max_auto_adjusts": 2,
        "profile_models": {
            model: {
                "cpu_only": True,
                "parameters": {"concurrency": [concurrency]},
                "perf_analyzer_flags": {**PERF_FLAGS, "input-data": str(folder / "load.json")},
                "model_config_parameters": {
                    "instance_group": [[{"kind": "KIND_CPU", "count": list(instances)}]],
                    "dynamic_batching": {"max_queue_delay_microseconds": list(queue_delays_us)},
                },
            }
        },
    }


def read_results(folder: Path, model: str, base: Mapping[str, Any]) -> list[Measurement]:
    file = folder / "results" / "metrics-model-inference.csv"
    if not file.is_file():
        raise ProfilerError(f"Model Analyzer wrote no {file.name}: {sorted(p.name for p in folder.rglob('*.csv'))}")
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    found = []
    for row in rows:
        variant = row["Model Config Path"]
        config = base if variant == f"{model}_config_default" else _read_variant(folder / "variants" / variant)
        found.append(
            Measurement(
                ServingConfig(
                    instances=int(config["instance_group"][0]["count"]),
                    max_queue_delay_us=int(config["dynamic_batching"].get("max_queue_delay_microseconds", 0)),
                    max_batch_size=int(config["max_batch_size"]),
                    intra_op_threads=int(base["parameters"]["intra_op_thread_count"]["string_value"]),
                ),
                int(row["Concurrency"]),
                float(row["Throughput (infer/sec)"]),
                float(row["p99 Latency (ms)"]),
                variant,
            )
        )
    return sorted(found, key=lambda m: (m.config.instances, m.config.max_queue_delay_us, m.source))


def _read_variant(folder: Path) -> Mapping[str, Any]:
    from google.protobuf import json_format, text_format
    from tritonclient.grpc import model_config_pb2

    message = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    parsed: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return {"dynamic_batching": {}, **parsed}


def check_complete(measured: Sequence[Measurement], instances: Sequence[int], delays_us: Sequence[int]) -> None:
    """Model Analyzer ends well when single variants failed: silence about one of them is an error here."""
    there = [(m.config.instances, m.config.max_queue_delay_us) for m in measured]
    wanted = [(count, delay) for count in instances for delay in delays_us]
    missing = [pair for pair in wanted if pair not in there]
    if missing or there.count(wanted[0]) < 2:
        raise ProfilerError(
            f"Model Analyzer measured {there}; missing are {missing or 'the repeated ' + str(wanted[0])}"
        )
