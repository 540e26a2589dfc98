"""Is this machine fit to serve? Each check says pass, fail or 'not here', on what evidence, and what to do about it."""

import csv
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from resources.errors import ModelNotReady, ServingError, TrimtabError
from resources.local import gpu, triton
from resources.local.busy import others_percent, spent
from resources.local.check import FAIL, NOT_HERE, PASS, Check, said
from resources.local.probes import fetch
from resources.local.round_trip import round_trip_us
from resources.model_analyzer import PERF_FLAGS
from resources.profiler import ended_process, free_ports
from resources.triton import TritonServer

NEEDED_MEMORY_GB = 6
TRITON = "2.51"
# Runs a second of a model of one operation by ONNX Runtime alone, on one thread of an idle core.
EXPECTED_RUNS_PER_S = 20_000
# A message to a sleeping process and back: 91 µs where a virtual machine's idle cores halt, 17 µs with both processes
# on one core, which so never idles.
EXPECTED_ROUND_TRIP_US = 150.0
# A request of one row through Triton costs its client about as much as ten of those runs and four such round trips:
# 526 µs where they took 7 and 91 µs. A third of that speed is asked for, by clients at the same time of two cores.
RUNS_A_REQUEST, ROUND_TRIPS_A_REQUEST = 10, 4
EXPECTED_SHARE: Mapping[int, float] = {1: 0.33, 2: 0.39, 4: 0.44}
# A request passes through three processes. Each waits its turn where others want the cores, which one thread of ONNX
# Runtime hardly feels: 1 250/s and 140/s were measured on the same machine minutes apart, at 111 000 and 78 000 runs.
BUSY_PERCENT = 15.0
CALIBRATION_S = 0.7
BUSY = "the machine is busy, so nothing is known of it: stop what else runs here, then measure again"
UP_TIMEOUT_S = 60.0
TRITON_CHECKS = ("model loaded", "model control", "core speed", "throughput", "metrics")
CALIBRATE = """
import json, sys, time
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
row, runs, end = {"x": np.array([[0.25]], np.float32)}, 0, time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    session.run(None, row)
    runs += 1
print(json.dumps(runs / float(sys.argv[2])))
"""


def examine(servers: Path, make_slices: bool = False) -> Iterator[Check]:
    """All checks in the order in which a person would fix them. servers: the servers' virtual environment.

    make_slices: make a MIG slice on each card that allows it, and take it away again.
    """
    yield _machine()
    began, back_us = spent(), round_trip_us()
    yield wake_up(back_us, others_percent(began, spent(), psutil.cpu_count() or 1))
    versions = _versions(servers)
    yield versions
    yield from gpu.examine(shutil.which("nvidia-smi"), make_slices)
    if versions.result == FAIL:
        missing = "the servers' environment is not complete"
        yield from (Check(name, NOT_HERE, missing) for name in TRITON_CHECKS)
    else:
        yield from _triton(servers, back_us)


def _machine() -> Check:
    cores = len(os.sched_getaffinity(0))
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    evidence = f"{cores} cores, {memory_gb:.0f} GB of memory"
    if cores < 2 or memory_gb < NEEDED_MEMORY_GB:
        return Check("machine", FAIL, evidence, f"2 cores and {NEEDED_MEMORY_GB} GB run the whole stack: take more")
    return Check("machine", PASS, evidence)


def _versions(servers: Path) -> Check:
    """What is installed beside what was pinned together, for these versions were tried with each other."""
    remedy = "sync the servers' environment from its lock: `make setup`"
    manifest = servers.parent / "pyproject.toml"
    if not manifest.is_file():
        return Check("versions", FAIL, f"{manifest} is missing", remedy)
    pins = [pin.split("==") for pin in tomllib.loads(manifest.read_text())["project"]["dependencies"] if "==" in pin]
    there = {path.stem.lower() for path in servers.glob("lib/python3.*/site-packages/*.dist-info")}
    names = [f"{name.partition('[')[0].strip().replace('-', '_').lower()}-{version}" for name, version in pins]
    wrong = [name for name in names if name not in there]
    if wrong or not names:
        return Check("versions", FAIL, f"missing are {', '.join(wrong) or 'all pins'}", remedy)
    return Check("versions", PASS, ", ".join(names))


def _triton(servers: Path, back_us: float) -> Iterator[Check]:
    with tempfile.TemporaryDirectory(prefix="trimtab-doctor-") as name:
        folder = Path(name)
        try:
            key = secrets.token_hex(20)
            with _server(servers, folder, key) as (process, (http, grpc, metrics)):
                url = f"http://127.0.0.1:{http}"
                yield loaded(json.loads(fetch(f"{url}/v2"))["version"])
                yield model_control(url, key, Path(f"/proc/{process}/cmdline").read_bytes())
                # What else runs here comes and goes: it is counted over the very time in which we measure.
                began, before = spent(), calibrate(servers, folder)
                curve = _curve(servers, folder, grpc)
                runs_per_s = (before + calibrate(servers, folder)) / 2
                others = others_percent(began, spent(), psutil.cpu_count() or 1)
                yield core_speed(runs_per_s, others)
                yield throughput(curve, runs_per_s, back_us, others)
                yield _metrics(lambda: fetch(f"http://127.0.0.1:{metrics}/metrics").decode())
        except TrimtabError as error:
            yield Check("model loaded", FAIL, str(error), "read the reason; `make setup` mends a broken environment")


@contextmanager
def _server(servers: Path, folder: Path, key: str) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Process and ports of a Triton as the stack starts it."""
    backends, repository, ports = folder / "backends", folder / "repository", free_ports()
    triton.prepare(servers, backends, repository)
    command, secret = triton.restricted(triton.command(servers, backends, repository, *ports), key)
    environment, log = triton.environment(servers) | secret, folder / "triton.log"
    with log.open("wb") as output, ended_process(command, environment, folder, output) as server:
        triton.await_ready(f"http://127.0.0.1:{ports[0]}", server, log, UP_TIMEOUT_S, key)
        yield server.pid, ports


def _curve(servers: Path, folder: Path, grpc_port: int) -> dict[int, float]:
    """Requests a second by clients, of the probe model; empty when perf_analyzer measured nothing."""
    found = {}
    for clients in EXPECTED_SHARE:
        target = folder / f"{clients}.csv"
        flags = [word for name, value in PERF_FLAGS.items() for word in (f"--{name}", str(value))]
        command = [str(servers / "bin" / "perf_analyzer"), "-m", triton.PROBE, "-u", f"127.0.0.1:{grpc_port}"]
        command += ["-i", "grpc", "--concurrency-range", str(clients), "-f", str(target), *flags]
        with (
            (folder / "perf.log").open("ab") as log,
            ended_process(command, triton.environment(servers), folder, log) as process,
        ):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                continue
        if target.is_file():
            with target.open(newline="") as lines:
                found[clients] = float(next(csv.DictReader(lines))["Inferences/Second"])
    return found


def calibrate(servers: Path, folder: Path) -> float:
    """Runs a second of the probe model by ONNX Runtime alone, in the environment in which it serves."""
    model = folder / "repository" / triton.PROBE / "1" / "model.onnx"
    told = said(str(servers / "bin" / "python"), "-c", CALIBRATE, str(model), str(CALIBRATION_S))
    if not told:
        raise ServingError(f"ONNX Runtime of {servers} can't run {model}")
    return float(json.loads(told.splitlines()[-1]))


def loaded(version: str) -> Check:
    """Triton is up, of the release whose drivers and packages were tried together."""
    evidence = f"Triton {version} loaded a model of one operation and answered rightly"
    if not version.startswith(f"{TRITON}."):
        return Check("model loaded", FAIL, evidence, f"this code was tried with Triton {TRITON}: `make setup`")
    return Check("model loaded", PASS, evidence)


def model_control(url: str, key: str, arguments: bytes) -> Check:
    """Nobody loads a model without the key, and nobody reads the key from the list of processes."""
    if key.encode() in arguments:
        return Check("model control", FAIL, "its key shows in ps", "change the key: this is no Triton of ours")
    try:
        TritonServer(url, timeout_s=5).index()
    except ModelNotReady as error:
        return Check("model control", PASS, f"asks for a key that ps does not show; without it: {error}")
    remedy = "let this user trace its own processes (kernel.yama.ptrace_scope at most 1, no seccomp filter on ptrace)"
    return Check("model control", FAIL, "open to everyone on this machine: the key could not be hidden", remedy)


def core_speed(runs_per_s: float, others_percent: float) -> Check:
    """Whether the hardware is fast enough. others_percent: of all cores, taken by what else runs."""
    evidence = (
        f"ONNX Runtime alone: {runs_per_s:,.0f} runs/s on one thread; expected at least {EXPECTED_RUNS_PER_S:,}; "
        f"others take {others_percent:.0f} % of the cores"
    )
    if runs_per_s >= EXPECTED_RUNS_PER_S:
        return Check("core speed", PASS, evidence)
    slow = "the machine is slow: take faster cores, or look for a power or CPU limit"
    return Check("core speed", FAIL, evidence, BUSY if others_percent > BUSY_PERCENT else slow)


def wake_up(back_us: float, others_percent: float) -> Check:
    """Whether a sleeping process wakes soon enough: each request does so several times."""
    evidence = (
        f"{back_us:.0f} µs to another process and back; expected at most {EXPECTED_ROUND_TRIP_US:.0f} µs; "
        f"others take {others_percent:.0f} % of the cores"
    )
    if back_us <= EXPECTED_ROUND_TRIP_US:
        return Check("wake-up", PASS, evidence)
    slow = "idle cores sleep too deep: limit their sleep states; in a virtual machine, let guests poll before they halt"
    return Check("wake-up", FAIL, evidence, BUSY if others_percent > BUSY_PERCENT else slow)


def throughput(measured: Mapping[int, float], runs_per_s: float, back_us: float, others_percent: float) -> Check:
    """The measured curve beside what this machine should give by its own speed; a busy one is told to be quiet."""
    alone = 1 / (RUNS_A_REQUEST / runs_per_s + ROUND_TRIPS_A_REQUEST * back_us / 1e6)
    expected = {clients: share * alone for clients, share in EXPECTED_SHARE.items()}
    told = ", ".join(f"{clients} clients {rate:,.0f}/s" for clients, rate in measured.items())
    evidence = (
        f"{told or 'nothing measured'}; expected of this machine at least "
        f"{', '.join(f'{rate:,.0f}' for rate in expected.values())}; others take {others_percent:.0f} % of the cores"
    )
    low = [clients for clients, rate in expected.items() if measured.get(clients, 0) < rate]
    if not low:
        return Check("throughput", PASS, evidence)
    remedy = (
        "ONNX Runtime and loopback alone are faster by more than Triton costs: it is badly configured, not slow: look "
        "for a proxy before loopback, a slow /dev/shm, or cores that the container may not use"
    )
    return Check("throughput", FAIL, evidence, BUSY if others_percent > BUSY_PERCENT else remedy)


def _metrics(read: Callable[[], str]) -> Check:
    try:
        text = read()
    except OSError as error:
        return Check("metrics", FAIL, f"{error}", "free the metrics port")
    counted = [line for line in text.splitlines() if line.startswith("nv_inference_request_success{")]
    if not counted:
        return Check("metrics", FAIL, "no nv_inference_request_success", "this Triton was built without metrics")
    return Check("metrics", PASS, f"{len(text.splitlines())} lines, as {counted[0]}")
