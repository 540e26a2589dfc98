"""Serving configurations measured by the real Triton Model Analyzer, against a Triton started for nothing else."""

import json
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
from resources.model_analyzer import (
    Measurement,
    analyzer_settings,
    base_of,
    check_complete,
    read_results,
    write_inputs,
)
from resources.triton import TritonServer

START_TIMEOUT_S = 60.0
ANALYZER_START_S = 60.0
VARIANT_TIMEOUT_S = 60.0


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
        finish: Callable[[TritonServer, list[Measurement]], None] = lambda server, measured: None,
    ) -> list[Measurement]:
        """Measure every pair of instances and delay; the first pair twice, as an A/A control of the noise.

        finish: called with the Triton that was measured, the model still in its repository as version 1.

        base_config: as `serving_config` builds it; probe: as in `probe.json`, its rows are the load.
        `ProfilerError` with the last lines of whoever failed; nothing is left running or lying about.
        """
        started = time.monotonic()
        self.workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sweep-", dir=self.workdir) as name:
            folder = Path(name)
            base = base_of(model, base_config, instances[0], queue_delays_us[0])
            write_inputs(folder, model, onnx, base, probe)
            with self._server(folder) as ports:
                progress(f"Triton is up after {time.monotonic() - started:.1f} s")
                settings = analyzer_settings(folder, model, ports, instances, queue_delays_us, concurrency)
                (folder / "analyzer.yaml").write_text(json.dumps(settings))  # JSON is YAML
                self._analyze(folder, len(instances) * len(queue_delays_us) + 1, progress)
                measured = read_results(folder, model, base)
                check_complete(measured, instances, queue_delays_us)
                finish(TritonServer(f"http://127.0.0.1:{ports[0]}"), measured)
        progress(f"{len(measured)} configurations measured in {time.monotonic() - started:.1f} s")
        return measured

    def place(self) -> dict[str, str]:
        """What figures hold for and nothing else: device by its model name, threads of it that we may use, Triton."""
        cpu = next((line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")), ": unknown CPU")
        wheels = self.servers.glob("lib/python3.*/site-packages/nvidia_pytriton-*.dist-info")
        return {
            "device": cpu.partition(":")[2].strip(),
            "threads": str(len(os.sched_getaffinity(0))),
            "triton": next((wheel.stem for wheel in wheels), "unknown"),
        }

    @contextmanager
    def _server(self, folder: Path) -> Iterator[tuple[int, int, int]]:
        backends, repository = folder / "backends", folder / "repository"
        triton.prepare(self.servers, backends, repository)
        ports = free_ports()
        command = triton.command(self.servers, backends, repository, *ports)
        with (
            (folder / "triton.log").open("wb") as log,
            ended_process(command, self._environment(), folder, log) as server,
        ):
            try:
                triton.await_ready(f"http://127.0.0.1:{ports[0]}", server, folder / "triton.log", START_TIMEOUT_S)
            except ServingError as error:
                raise ProfilerError(str(error)) from error
            yield ports

    def _analyze(self, folder: Path, variants: int, progress: Callable[[str], None]) -> None:
        """Run Model Analyzer to its end, passing on the lines that tell how far it is."""
        command = [str(self.servers / "bin" / "model-analyzer"), "profile", "-f", str(folder / "analyzer.yaml")]
        timeout_s = ANALYZER_START_S + variants * VARIANT_TIMEOUT_S
        last: deque[str] = deque(maxlen=30)
        done = 0
        with ended_process(command, self._environment(), folder, subprocess.PIPE) as analyzer:
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


@contextmanager
def ended_process(
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


def free_ports() -> tuple[int, int, int]:
    sockets = [socket.socket() for _ in range(3)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    http, grpc, metrics = (item.getsockname()[1] for item in sockets)
    for item in sockets:
        item.close()
    return http, grpc, metrics


def _lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines() if file.exists() else []


def _tail(file: Path, lines: int = 15) -> str:
    return "\n".join(_lines(file)[-lines:]) or "(none)"
