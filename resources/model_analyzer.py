"""Model Analyzer's files: what it is given for a sweep, and what it measured or said."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.packages import render_config

# Windows long enough to count hundreds of answers, short enough for a gate that people wait for. How far to trust them
# the A/A control says: a perf_analyzer that asks for stable windows gives up on a busy machine, and Model Analyzer then
# starts it again with windows of a second more each.
PERF_FLAGS = {
    "measurement-mode": "time_windows",
    "measurement-interval": 400,
    "stability-percentage": 999,
    "max-trials": 5,
}
PERF_TIMEOUT_S = 30
DEFAULT = "_config_default"
CHECKPOINT = "0.ckpt"
REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Measurement:
    """One configuration under load. throughput_per_s: requests of one row; source: the model's name while measured."""

    name: str
    concurrency: int
    throughput_per_s: float
    p95_latency_ms: float
    p99_latency_ms: float
    source: str


@dataclass(frozen=True, slots=True)
class Infeasible:
    """One configuration that can't be served here, and why in one sentence."""

    name: str
    reason: str


Outcome = Measurement | Infeasible


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement to make: a model of its own in the repository, so that order, repeats and logs are ours."""

    name: str
    source: str


def write_model(folder: Path, name: str, onnx: Path, config: Mapping[str, Any]) -> None:
    """A model of the repository as version 1; its bytes are shared, not copied."""
    version = folder / name / "1"
    if version.exists():
        return
    version.mkdir(parents=True)
    os.link(onnx, version / "model.onnx")
    (version.parent / "config.pbtxt").write_text(render_config(own_config(name, config)))


def own_config(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a model of the repository, of which there is one version."""
    return {**{key: value for key, value in config.items() if key != "version_policy"}, "name": name}


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
    folder: Path, load: Path, ports: tuple[int, int, int], trials: Sequence[Trial], concurrency: int
) -> dict[str, Any]:
    """Model Analyzer's own file. Its checkpoint folder is new each time: its keys know nothing of the model's bytes.

    folder: of this run; load: the rows to ask. The server must run on `folder.parent / "repository"`.
    """
    http, grpc, metrics = ports
    flags = {**PERF_FLAGS, "input-data": str(load)}
    return {
        # Remote mode: local mode starts a server for every variant.
        "triton_launch_mode": "remote",
        "model_repository": str(folder.parent / "repository"),
        "output_model_repository_path": str(folder / "variants"),
        "export_path": str(folder),
        "checkpoint_directory": str(folder / "checkpoints"),
        "client_protocol": "grpc",
        "triton_http_endpoint": f"127.0.0.1:{http}",
        "triton_grpc_endpoint": f"127.0.0.1:{grpc}",
        "triton_metrics_url": f"http://127.0.0.1:{metrics}/metrics",
        "run_config_search_disable": True,
        # The numbers are in the checkpoint, after every trial; its reports cost seconds at the end.
        "skip_summary_reports": True,
        "skip_detailed_reports": True,
        # As text: of the number 0 it makes its default, three seconds of nothing.
        "duration_seconds": "0",
        "client_max_retries": 10,
        "perf_analyzer_max_auto_adjusts": 3,
        "perf_analyzer_timeout": PERF_TIMEOUT_S,
        "profile_models": {
            trial.source: {
                "cpu_only": True,
                "parameters": {"concurrency": [concurrency]},
                "perf_analyzer_flags": flags,
            }
            for trial in trials
        },
    }


def read_checkpoint(folder: Path, trials: Sequence[Trial], concurrency: int) -> dict[str, Measurement]:
    """What has been measured so far, by source. `ValueError` while Model Analyzer is writing the file."""
    file = folder / "checkpoints" / CHECKPOINT
    if not file.is_file():
        return {}
    results = json.loads(file.read_text())["ResultManager.results"]["_results"]
    found = {}
    for trial in trials:
        for _, measurements in results.get(trial.source, {}).values():
            for measurement in measurements.values():
                numbers = dict(measurement["_model_config_measurements"][0]["_non_gpu_data"])
                found[trial.source] = Measurement(
                    trial.name,
                    concurrency,
                    float(numbers["perf_throughput"]["_value"]),
                    float(numbers["perf_latency_p95"]["_value"]),
                    float(numbers["perf_latency_p99"]["_value"]),
                    trial.source,
                )
    return found


def source_in(line: str, trials: Sequence[Trial]) -> str | None:
    """The trial that a line of Model Analyzer's is about, by its source."""
    named = [trial.source for trial in trials if f"{trial.source}{DEFAULT}" in line]
    return max(named, key=len, default=None)


def reason_of(said: Sequence[str]) -> str:
    """Why a trial gave no measurement, in one line, from what Model Analyzer said about it.

    >>> reason_of(["[Model Analyzer] Model m_config_default load failed: [StatusCode.INVALID_ARGUMENT] no such file"])
    'Triton did not load it: no such file'
    """
    text = "\n".join(line.removeprefix("[Model Analyzer] ").strip() for line in said)
    refused = re.search(r"load failed: (?:\[StatusCode\.\w+\] )?(.+)", text)
    if refused:
        return f"Triton did not load it: {refused[1]}"[:REASON_CHARACTERS]
    if "took very long" in text:
        return f"not measured within {PERF_TIMEOUT_S} s"
    failed = re.search(r"perf_analyzer failed with exit status (-?\d+):\n?((?:.|\n)*)", text)
    if failed:
        told = [line for line in failed[2].splitlines() if line and not line.startswith(("Successfully", "WARNING"))]
        return f"requests failed while it was measured: {_telling(told)}"[:REASON_CHARACTERS]
    return f"not measured: {_telling(text.splitlines())}"[:REASON_CHARACTERS]


def _telling(lines: Sequence[str]) -> str:
    """The lines that speak of an error, else the last ones."""
    marked = [line for line in lines if re.search(r"error|fail|unhealthy|not healthy|unavailable", line, re.IGNORECASE)]
    return " ".join(dict.fromkeys((marked or list(lines))[-4:])) or "nothing was said"
