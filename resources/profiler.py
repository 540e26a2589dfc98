"""Serving configurations measured by the real Triton Model Analyzer, against a Triton started for nothing else."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from resources.analyzer_run import AnalyzerRun, Watch
from resources.errors import ProfilerError, ServingError
from resources.local import device, triton
from resources.local.bound import bound
from resources.model_analyzer import Outcome, Trial, analyzer_settings, load_rows, own_config, write_model
from resources.triton import TritonServer

START_TIMEOUT_S = 60.0
# Of a model up to this size the next trial is loaded while the last one is still being unloaded: memory for both.
AHEAD_BYTES = 100_000_000

# What is still to measure, given what came out so far: names in the order of trying, none when enough is known.
Plan = Callable[[Sequence[Outcome]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Profiler:
    """servers: the servers' virtual environment; workdir: where a sweep may write while it runs; visible_devices:
    CUDA_VISIBLE_DEVICES of the Tritons started here.
    """

    servers: Path
    workdir: Path
    visible_devices: str = ""

    def sweep(
        self,
        model: str,
        onnx: bytes,
        configs: Mapping[str, Mapping[str, Any]],
        plan: Plan,
        probe: Mapping[str, Any],
        concurrency: int,
        progress: Callable[[str], None],
        finish: Callable[[TritonServer, list[Outcome]], None] = lambda server, outcomes: None,
    ) -> list[Outcome]:
        """Measure configurations in the plan's order until it names none; the plan is asked after each.

        configs: by name, as `serving_config` builds them; probe: as in `probe.json`, its rows are the load.
        finish: called with the Triton that was measured, the model in its repository as version 1 of `model`.
        What crashes, is refused or does not answer in time is `Infeasible`, and the sweep goes on without it.
        `ProfilerError` when Triton or Model Analyzer themselves do not run; nothing is left running or lying about.
        """
        started = time.monotonic()
        self.workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sweep-", dir=self.workdir) as name:
            sweep = _Sweep(self.servers, Path(name), model, configs, concurrency, progress)
            sweep.prepare(onnx, probe)
            try:
                sweep.run(plan)
                finish(TritonServer(f"http://127.0.0.1:{sweep.serving()[0]}"), sweep.outcomes)
            finally:
                sweep.close()
        progress(f"{len(sweep.outcomes)} trials in {time.monotonic() - started:.1f} s")
        return sweep.outcomes

    def place(self, kind: str = "KIND_CPU") -> dict[str, str]:
        """What figures hold for and nothing else: device, driver, threads of it that we may use, Triton."""
        wheels = self.servers.glob("lib/python3.*/site-packages/nvidia_pytriton-*.dist-info")
        return {**device.place(kind, self.visible_devices), "triton": next((wheel.stem for wheel in wheels), "unknown")}


@dataclass(slots=True)
class _Sweep:
    """One sweep while it runs: its Triton, which is started again when a trial took it down, and what came out."""

    servers: Path
    folder: Path
    model: str
    configs: Mapping[str, Mapping[str, Any]]
    concurrency: int
    progress: Callable[[str], None]
    outcomes: list[Outcome] = field(default_factory=list)
    started: int = 0
    triton: "subprocess.Popen[bytes] | None" = None
    ports: tuple[int, int, int] = (0, 0, 0)
    holding: ExitStack = field(default_factory=ExitStack)

    def prepare(self, onnx: bytes, probe: Mapping[str, Any]) -> None:
        file = self.folder / "model.onnx"
        file.write_bytes(onnx)
        write_model(self.folder / "repository", self.model, file, next(iter(self.configs.values())))
        (self.folder / "load.json").write_text(json.dumps({"data": load_rows(probe)}, allow_nan=False))

    def run(self, plan: Plan) -> None:
        while names := plan(tuple(self.outcomes)):
            before = len(self.outcomes)
            self.serving()
            self._analyze(self._trials(names), plan)
            if len(self.outcomes) == before:
                raise ProfilerError(f"Model Analyzer tried nothing of {', '.join(names)}: see its log")

    def serving(self) -> tuple[int, int, int]:
        """Ports of a Triton that runs, started when there is none."""
        if self.triton is None or self.triton.poll() is not None:
            self.close()
            self.ports = free_ports()
            self.triton = self.holding.enter_context(self._server())
        return self.ports

    def close(self) -> None:
        self.holding.close()
        self.triton = None

    def _trials(self, names: Sequence[str]) -> list[Trial]:
        """Each trial has a name that none had before: a repeat is loaded afresh as a first is."""
        trials = []
        for name in names:
            self.started += 1
            trials.append(Trial(name, f"{self.model}--{name}--{self.started}"))
            write_model(self.folder / "repository", trials[-1].source, self.folder / "model.onnx", self.configs[name])
        return trials

    def _analyze(self, trials: Sequence[Trial], plan: Plan) -> None:
        """Run Model Analyzer over these trials, in order, until it ends, breaks, or the plan asks for no more."""
        assert self.triton is not None
        folder = self.folder / f"run-{trials[0].source}"
        folder.mkdir()
        settings = analyzer_settings(folder, self.folder / "load.json", self.ports, trials, self.concurrency)
        (folder / "analyzer.yaml").write_text(json.dumps(settings))  # JSON is YAML
        command = [str(self.servers / "bin" / "model-analyzer"), "profile", "-f", str(folder / "analyzer.yaml")]
        run = AnalyzerRun(folder, trials, self.concurrency, self.outcomes, self._unload, self.progress)
        with ended_process(command, _environment(self.servers), folder, subprocess.PIPE) as analyzer:
            watch = Watch(partial(_kill, analyzer, signal.SIGKILL), self.triton)
            watch.start()
            try:
                assert analyzer.stdout is not None
                self._load_ahead(trials[0])
                for raw in analyzer.stdout:
                    if run.hear(raw.decode(errors="replace").rstrip()):
                        watch.extend()
                        if not run.wanted(plan(tuple(self.outcomes))):
                            return
                        self._load_ahead(run.left[0])
                code = analyzer.wait()
            finally:
                watch.end()
        run.close(code, watch.why)
        if watch.why:
            self.close()

    def _load_ahead(self, trial: Trial) -> None:
        """Load while Model Analyzer sleeps, as it does for a second before each load; its own load then finds the same
        configuration in force and has nothing to do. It also tells what can't be loaded: nothing is said of it here.
        """
        if (self.folder / "model.onnx").stat().st_size > AHEAD_BYTES:
            return
        server, config = (
            TritonServer(f"http://127.0.0.1:{self.ports[0]}"),
            own_config(trial.source, self.configs[trial.name]),
        )

        def load() -> None:
            with suppress(ServingError):
                server.load(trial.source, config)

        threading.Thread(target=load, name="profiler-ahead", daemon=True).start()

    def _unload(self, source: str) -> None:
        try:
            TritonServer(f"http://127.0.0.1:{self.ports[0]}", timeout_s=5).unload(source)
        except ServingError as error:
            self.progress(f"{source} is not unloaded: {error}")

    @contextmanager
    def _server(self) -> Iterator["subprocess.Popen[bytes]"]:
        backends, repository, log = self.folder / "backends", self.folder / "repository", self.folder / "triton.log"
        triton.prepare(self.servers, backends, repository)
        command = triton.command(self.servers, backends, repository, *self.ports)
        started = time.monotonic()
        with (
            log.open("ab") as output,
            ended_process(command, _environment(self.servers), self.folder, output) as server,
        ):
            _await(TritonServer(f"http://127.0.0.1:{self.ports[0]}"), server, log)
            self.progress(f"Triton is up after {time.monotonic() - started:.1f} s")
            yield server


def _await(server: TritonServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until Triton answers. What its backend can do, the trials show."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.index()
            return
        except ServingError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ProfilerError(f"Triton did not start: {error}\n{_tail(log)}") from error
            time.sleep(0.1)


def _environment(servers: Path) -> dict[str, str]:
    return triton.environment(servers) | {"MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}


@contextmanager
def ended_process(
    command: list[str], environment: Mapping[str, str], folder: Path, output: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group of its own, which ends with the block whatever happens in it, and with this process."""
    process = subprocess.Popen(
        bound(command), env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
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
    """Its group, and its children, which may lead groups of their own, as perf_analyzer does."""
    import psutil

    try:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    except psutil.NoSuchProcess:
        children = []
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    for child in children:
        try:
            child.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def free_ports() -> tuple[int, int, int]:
    sockets = [socket.socket() for _ in range(3)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    http, grpc, metrics = (item.getsockname()[1] for item in sockets)
    for item in sockets:
        item.close()
    return http, grpc, metrics


def _tail(file: Path, lines: int = 15) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else "(none)"
