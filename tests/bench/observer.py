"""Gateway and observer under load: a real Envoy, Triton, SeaweedFS and the observer, driven by perf_analyzer."""

import csv
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

from resources.gateway import Split
from resources.local import triton
from resources.traffic import Traffic
from tests.bench.lines import Line, at_least, at_most
from tests.gateway_stack import SERVERS, Edge, running_edge, running_observer, running_store
from tests.serving_stack import LocalTriton, running_triton

RATE_PER_S = 1_000
MODEL = triton.PROBE


def lines() -> Iterator[Line]:
    """About a minute: ten seconds of load at 1000 requests/s, then one client directly and through the gateway."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(running_triton(folder / "triton"))
        triton.ready(server.url, control_key=server.control_key)
        store = stack.enter_context(running_store(folder / "s3"))
        both = (server.ports[0], server.ports[1])
        edge = stack.enter_context(running_edge(folder / "gateway", {"blue": both, "green": both}))
        observer = stack.enter_context(running_observer(folder / "gateway", edge, store))
        edge.gateway.set_split(MODEL, Split({"blue": 90, "green": 10}))
        yield from _completeness(folder, edge, Traffic(store, observer.url), psutil.Process(observer.process.pid))
        yield from _overhead(folder, edge, server)
        seconds = [edge.gateway.set_split(MODEL, Split({"blue": 50 + i, "green": 50 - i})) for i in range(20)]
        yield at_most("loop", "split confirmed by Envoy, slowest of 20", 1e3 * max(seconds), "ms", 1_000)


def _completeness(folder: Path, edge: Edge, traffic: Traffic, process: psutil.Process) -> Iterator[Line]:
    before = process.memory_info().rss
    started = time.monotonic()
    for protocol in ("grpc", "http"):
        load(folder, edge.client, protocol, "--request-rate-range", str(RATE_PER_S), interval_s=5)
    passed = time.monotonic() - started
    traffic.flush()
    seen = traffic.completeness()
    yield at_least("loop", "requests sent", float(seen.requests), "requests", 5 * RATE_PER_S)
    yield at_least("loop", f"access rows at {RATE_PER_S}/s", 100 * seen.share_access, "%", 100)
    yield at_least("loop", f"answers at {RATE_PER_S}/s", 100 * seen.share_answers, "%", 99.9)
    grown = (process.memory_info().rss - before) / 2**20
    yield at_most("loop", f"memory grown by {passed:.0f} s of load", grown, "MB", 200)


def _overhead(folder: Path, edge: Edge, server: LocalTriton) -> Iterator[Line]:
    for protocol, direct in (("grpc", server.ports[1]), ("http", server.ports[0])):
        rounds: dict[int, list[float]] = {direct: [], edge.client: []}
        for _ in range(2):
            for port, figures in rounds.items():
                figures.append(load(folder, port, protocol, "--concurrency-range", "1", interval_s=1))
        plain, through = (statistics.median(figures) for figures in rounds.values())
        name = f"p50 through gateway, copied and logged, {protocol}"
        yield Line("loop", name, through, "us", "≤ 2 ms", through <= 2_000, through / plain, f"direct {plain:.0f} us")


def load(folder: Path, port: int, protocol: str, *flags: str, interval_s: float) -> float:
    """p50 in microseconds of perf_analyzer's last measurement; it may call a noisy machine unstable."""
    target = folder / "load.csv"
    target.unlink(missing_ok=True)
    command = [str(SERVERS / "bin/perf_analyzer"), "-m", MODEL, "-u", f"127.0.0.1:{port}", "-i", protocol, *flags]
    command += ["--measurement-interval", str(int(interval_s * 1e3)), "-s", "999", "--max-trials", "3"]
    done = subprocess.run(
        [*command, "-f", str(target)],
        env={**os.environ, **triton.environment(SERVERS)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert target.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return float(next(csv.DictReader(target.open()))["p50 latency"])
