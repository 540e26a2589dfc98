"""Is this machine fit to serve? Each check says pass, fail or 'not here', on what evidence, and what to do about it."""

import csv
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from resources.errors import TrimtabError
from resources.local import triton
from resources.local.probes import fetch
from resources.model_analyzer import PERF_FLAGS
from resources.profiler import ended_process, free_ports

PASS, FAIL, NOT_HERE = "pass", "fail", "not here"
NEEDED_MEMORY_GB = 6
# By clients at the same time, in requests a second of one row: a fifth of what two quiet cores gave by gRPC
# (11 000 with one client, 15 000 with eight), so that only a machine that is ill falls below.
EXPECTED_PER_S: Mapping[int, float] = {1: 2000, 2: 2500, 4: 3000}
UP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """One question answered. result: pass, fail or 'not here'; remedy: what to do, '' unless it failed."""

    name: str
    result: str
    evidence: str
    remedy: str = ""


def examine(servers: Path) -> Iterator[Check]:
    """All checks in the order in which a person would fix them. servers: the servers' virtual environment."""
    yield _machine()
    versions = _versions(servers)
    yield versions
    yield from _gpu(shutil.which("nvidia-smi"))
    if versions.result == FAIL:
        missing = "the servers' environment is not complete"
        yield from (Check(name, NOT_HERE, missing) for name in ("model loaded", "throughput", "metrics"))
    else:
        yield from _triton(servers)


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


def _gpu(nvidia_smi: str | None) -> Iterator[Check]:
    if nvidia_smi is None:
        yield Check("GPU driver", NOT_HERE, "no nvidia-smi: models run on the CPU")
        yield Check("MIG slices", NOT_HERE, "no GPU")
        return
    cards = _said(nvidia_smi, "--query-gpu=name,driver_version,mig.mode.current", "--format=csv,noheader")
    if not cards:
        yield Check("GPU driver", FAIL, "nvidia-smi does not answer", "install the driver that fits the card")
        yield Check("MIG slices", NOT_HERE, "no driver")
        return
    yield Check("GPU driver", PASS, cards.replace("\n", "; "))
    listed = [line.strip() for line in _said(nvidia_smi, "-L").splitlines() if "MIG" in line]
    off = "MIG is off: one Triton has the whole card"
    yield Check("MIG slices", PASS, "; ".join(listed)) if listed else Check("MIG slices", NOT_HERE, off)


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _triton(servers: Path) -> Iterator[Check]:
    with tempfile.TemporaryDirectory(prefix="trimtab-doctor-") as name:
        folder = Path(name)
        try:
            with _server(servers, folder) as (_, grpc, metrics):
                yield Check("model loaded", PASS, "Triton loaded a model of one operation and answered rightly")
                yield throughput(_curve(servers, folder, grpc))
                yield _metrics(lambda: fetch(f"http://127.0.0.1:{metrics}/metrics").decode())
        except TrimtabError as error:
            yield Check("model loaded", FAIL, str(error), "read the reason; `make setup` mends a broken environment")


@contextmanager
def _server(servers: Path, folder: Path) -> Iterator[tuple[int, int, int]]:
    backends, repository, ports = folder / "backends", folder / "repository", free_ports()
    triton.prepare(servers, backends, repository)
    command = triton.command(servers, backends, repository, *ports)
    log = folder / "triton.log"
    with log.open("wb") as output, ended_process(command, triton.environment(servers), folder, output) as server:
        triton.await_ready(f"http://127.0.0.1:{ports[0]}", server, log, UP_TIMEOUT_S)
        yield ports


def _curve(servers: Path, folder: Path, grpc_port: int) -> dict[int, float]:
    """Requests a second by clients, of the probe model; empty when perf_analyzer measured nothing."""
    found = {}
    for clients in EXPECTED_PER_S:
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


def throughput(measured: Mapping[int, float]) -> Check:
    """The measured curve beside the expected one."""
    told = ", ".join(f"{clients} clients {rate:,.0f}/s" for clients, rate in measured.items())
    evidence = (
        f"{told or 'nothing measured'}; expected at least {', '.join(f'{r:,.0f}' for r in EXPECTED_PER_S.values())}"
    )
    low = [clients for clients, rate in EXPECTED_PER_S.items() if measured.get(clients, 0) < rate]
    remedy = "stop what else runs here, then measure again; a machine still this slow holds no latency objective"
    return Check("throughput", FAIL, evidence, remedy) if low else Check("throughput", PASS, evidence)


def _metrics(read: Callable[[], str]) -> Check:
    try:
        text = read()
    except OSError as error:
        return Check("metrics", FAIL, f"{error}", "free the metrics port")
    counted = [line for line in text.splitlines() if line.startswith("nv_inference_request_success{")]
    if not counted:
        return Check("metrics", FAIL, "no nv_inference_request_success", "this Triton was built without metrics")
    return Check("metrics", PASS, f"{len(text.splitlines())} lines, as {counted[0]}")
