"""Serving configurations measured by the real Triton Model Analyzer, against a Triton started for nothing else."""

import csv
import json
import math
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.errors import ProfilerError, ServingError
from resources.local import triton
from resources.packages import render_config

# Windows long enough to count hundreds of answers, short enough for a gate that people wait for. How far to trust them
# the A/A control says, so perf_analyzer need not ask for stable ones again and again.
PERF_FLAGS = {
    "measurement-mode": "time_windows",
    "measurement-interval": 400,
    "stability-percentage": 95,
    "max-trials": 5,
}
START_TIMEOUT_S = 60.0
ANALYZER_START_S = 60.0
VARIANT_TIMEOUT_S = 60.0


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


@dataclass(frozen=True, slots=True)
class Profiler:
    """servers: the servers' virtual environment; workdir: where a sweep may write while it runs."""

    servers: Path
    workdir: Path

    def sweep(
        self,
        model: str,
        onnx: bytes,
        base_config: Mapping[str, Any],
        probe: Mapping[str, Any],
        instances: Sequence[int],
        queue_delays_us: Sequence[int],
        concurrency: int,
        progress: Callable[[str], None],
    ) -> list[Measurement]:
        """Measure every pair of instances and delay; the first pair twice, as an A/A control of the noise.

        base_config: as `serving_config` builds it; probe: as in `probe.json`, its rows are the load.
        `ProfilerError` with the last lines of whoever failed; nothing is left running or lying about.
        """
        started = time.monotonic()
        self.workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sweep-", dir=self.workdir) as name:
            folder = Path(name)
            base = _base(model, base_config, instances[0], queue_delays_us[0])
            _write_inputs(folder, model, onnx, base, probe)
            with self._server(folder) as ports:
                progress(f"Triton is up after {time.monotonic() - started:.1f} s")
                settings = _analyzer_settings(folder, model, ports, instances, queue_delays_us, concurrency)
                (folder / "analyzer.yaml").write_text(json.dumps(settings))  # JSON is YAML
                self._analyze(folder, len(instances) * len(queue_delays_us) + 1, progress)
            measured = _read_results(folder, model, base)
        _check_complete(measured, instances, queue_delays_us)
        progress(f"{len(measured)} configurations measured in {time.monotonic() - started:.1f} s")
        return measured

    @contextmanager
    def _server(self, folder: Path) -> Iterator[tuple[int, int, int]]:
        backends, repository = folder / "backends", folder / "repository"
        triton.prepare(self.servers, backends, repository)
        ports = _free_ports()
        command = triton.command(self.servers, backends, repository, *ports)
        with (folder / "triton.log").open("wb") as log, _process(command, self._environment(), folder, log) as server:
            deadline = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    triton.ready(f"http://127.0.0.1:{ports[0]}")
                    break
                except ServingError as error:
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise ProfilerError(f"Triton did not start: {error}\n{_tail(folder / 'triton.log')}") from error
                    time.sleep(0.1)
            yield ports

    def _analyze(self, folder: Path, variants: int, progress: Callable[[str], None]) -> None:
        """Run Model Analyzer to its end, passing on the lines that tell how far it is."""
        command = [str(self.servers / "bin" / "model-analyzer"), "profile", "-f", str(folder / "analyzer.yaml")]
        timeout_s = ANALYZER_START_S + variants * VARIANT_TIMEOUT_S
        last: deque[str] = deque(maxlen=30)
        done = 0
        with _process(command, self._environment(), folder, subprocess.PIPE) as analyzer:
            timer = threading.Timer(timeout_s, _kill, (analyzer, signal.SIGKILL))
            timer.start()
            try:
                assert analyzer.stdout is not None
                for raw in analyzer.stdout:
                    line = raw.decode(errors="replace").rstrip()
                    last.append(line)
                    if "Profiling " in line and "concurrency=" in line:
                        done += 1
                        progress(f"{done} of {variants}: {line.split('Profiling ', 1)[1]}")
                code = analyzer.wait()
                late = not timer.is_alive()
            finally:
                timer.cancel()
        if code != 0:
            why = f"took longer than {timeout_s:g} s" if late else f"ended with {code}"
            told = "\n".join(last)
            raise ProfilerError(f"Model Analyzer {why}:\n{told}\nTriton's log:\n{_tail(folder / 'triton.log')}")

    def _environment(self) -> dict[str, str]:
        return triton.environment(self.servers) | {"MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}


def _base(model: str, config: Mapping[str, Any], instances: int, delay_us: int) -> dict[str, Any]:
    """The default: the first pair, and nothing that the variants would not have, or the A/A control is none."""
    kept = {key: value for key, value in config.items() if key != "version_policy"}
    group = [{"kind": "KIND_CPU", "count": instances}]
    batching = {"max_queue_delay_microseconds": delay_us}
    return {**kept, "name": model, "instance_group": group, "dynamic_batching": batching}


def _write_inputs(folder: Path, model: str, onnx: bytes, base: Mapping[str, Any], probe: Mapping[str, Any]) -> None:
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


def _analyzer_settings(
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


def _read_results(folder: Path, model: str, base: Mapping[str, Any]) -> list[Measurement]:
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


def _check_complete(measured: Sequence[Measurement], instances: Sequence[int], delays_us: Sequence[int]) -> None:
    """Model Analyzer ends well when single variants failed: silence about one of them is an error here."""
    there = [(m.config.instances, m.config.max_queue_delay_us) for m in measured]
    wanted = [(count, delay) for count in instances for delay in delays_us]
    missing = [pair for pair in wanted if pair not in there]
    if missing or there.count(wanted[0]) < 2:
        raise ProfilerError(
            f"Model Analyzer measured {there}; missing are {missing or 'the repeated ' + str(wanted[0])}"
        )


@contextmanager
def _process(
    command: list[str], environment: Mapping[str, str], folder: Path, output: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group of its own, which ends with the block whatever happens in it."""
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        _kill(process, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _kill(process, signal.SIGKILL)
            process.wait()
            if process.stdout:
                process.stdout.close()


def _kill(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _free_ports() -> tuple[int, int, int]:
    sockets = [socket.socket() for _ in range(3)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    http, grpc, metrics = (item.getsockname()[1] for item in sockets)
    for item in sockets:
        item.close()
    return http, grpc, metrics


def _tail(file: Path, lines: int = 15) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else "(none)"
