"""Serving: from published to loaded, a restarted Triton, the agent's size, the sweep."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from assets.profile.package import build_probe
from assets.profile.serving_config import serving_config, starting_choice
from assets.scoring import score
from resources.pools import Pools
from resources.profiler import Profiler
from resources.store import S3Store
from tests.bench.lines import Line, at_most
from tests.serving_stack import (
    FEATURES,
    ROWS,
    SERVERS,
    SETTINGS,
    LocalTriton,
    Publisher,
    running_s3,
    running_triton,
    tiny_onnx,
    until,
)

MODEL = "flight"
VERSIONS = 6


def lines() -> Iterator[Line]:
    """A real S3, Triton and agent process; then a real sweep of two instances and two delays."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_s3(folder / "s3") as store, running_triton(folder / "triton") as local:
            yield from _agent(folder, store, local)
        yield from _sweep(folder)


def _agent(folder: Path, store: S3Store, local: LocalTriton) -> Iterator[Line]:
    publisher = Publisher(folder / "publisher", store)
    pools = Pools(store, {"blue": ("blue-0",)}, {"blue-0": local.url})
    command = [sys.executable, "-m", "pipelines.agent", "--pool", "blue", "--replica", "blue-0"]
    command += ["--triton", local.url, "--repository", str(local.repository), "--bucket", store.bucket]
    command += ["--public-key", str(publisher.public), "--s3-endpoint", str(store.endpoint)]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
    try:
        until(lambda: pools.states("blue", MODEL)[0].state != "LOST", "the agent reports")
        seconds = []
        for version in range(1, VERSIONS + 1):
            assignment = publisher.publish(MODEL, version, bias=version / 10)
            pools.assign("blue", MODEL, assignment)
            seconds.append(pools.wait_ready("blue", MODEL, assignment))
        phases = pools.states("blue", MODEL)[0].seconds
        yield at_most("serving", "package published to loaded and probed, median", statistics.median(seconds), "s", 10)
        for phase, spent in phases.items():
            yield at_most("serving", f"of which {phase}", spent, "s", 10)
        yield at_most("serving", "agent resident", psutil.Process(process.pid).memory_info().rss / 1e6, "MB", 150)
        local.stop(signal.SIGKILL)
        local.start()
        started = time.monotonic()
        until(lambda: local.server.ready_versions(MODEL) == {VERSIONS}, "the model is back")
        yield at_most("serving", "model back after Triton is up again", time.monotonic() - started, "s", 10)
    finally:
        process.terminate()
        process.wait()


def _sweep(folder: Path) -> Iterator[Line]:
    probe = build_probe(ROWS, FEATURES, score(tiny_onnx(), ROWS, FEATURES))
    base = serving_config(MODEL, FEATURES, starting_choice(SETTINGS), version=1)
    started = time.monotonic()
    Profiler(SERVERS, folder / "profiler").sweep(MODEL, tiny_onnx(), base, probe, (1, 2), (0, 500), 4, lambda _: None)
    yield at_most("serving", "sweep of 2 instances and 2 delays", time.monotonic() - started, "s", 35)


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
