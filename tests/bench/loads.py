"""Package and load: big packages on two replicas, what comes back when killed, load after load beside a champion."""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil

from assets.profile.package import build_probe, package_files, warmup_samples
from assets.scoring import score
from pipelines import local
from pipelines.environments import enter
from resources import packages, signing
from resources.errors import TrimtabError
from resources.gateway import Gateway, Split
from resources.local.ledger import Ledger
from resources.local.stack import down, up
from resources.pools import Assignment, Pools
from resources.store import S3Store
from resources.triton import TritonServer
from tests.bench.arrivals import arriving
from tests.bench.lines import Line, at_most
from tests.local_parts import only
from tests.serving_stack import FEATURES, ROWS, Publisher, config, question, tiny_onnx, until

ROOM = "profile"
MODEL, CANDIDATE = "flight", "candidate"
POOLS = ("blue", "green")
PARTS = ("s3", "triton-blue", "triton-green", "agent-blue", "agent-green", "gateway", "supervisor")
CYCLES, RATE_PER_S = 100, 300.0


def lines() -> Iterator[Line]:
    """Seven parts of the real stack under its supervisor; about eight minutes, five of them for the load cycles."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name).resolve() / "home"
        try:
            up(home, only(home, *PARTS))
            yield from _serving(home)
        finally:
            down(home)


def _serving(home: Path) -> Iterator[Line]:
    addresses = local.read_addresses(home)
    where = enter(local.stack_environment(addresses, home))
    store = S3Store(where.bucket, where.s3_endpoint)
    urls = {"blue-0": where.triton_blue, "green-0": where.triton_green}
    pools = Pools(store, {"blue": ("blue-0",), "green": ("green-0",)}, urls)
    publisher = Publisher(home / "publisher", store)
    publisher.private = where.signing_key
    seconds = [_rollout(pools, publisher.publish(MODEL, version, bias=version / 10)) for version in range(1, 5)]
    yield at_most(
        ROOM, "tiny package published to loaded on both replicas, median", statistics.median(seconds), "s", 10
    )
    for megabytes, limit_s in ((64, 10), (256, 20)):
        seconds = [_rollout(pools, _big(publisher, megabytes, version)) for version in (megabytes, megabytes + 1)]
        phases = " ".join(f"{name} {spent:.1f}" for name, spent in pools.states("blue", MODEL)[0].seconds.items())
        named = f"{megabytes} MB published to loaded on both replicas, slower of 2 ({phases})"
        yield at_most(ROOM, named, max(seconds), "s", limit_s)
    served = publisher.publish(MODEL, 300)
    _rollout(pools, served)
    probe_ms = 1e3 * max(pools.states(pool, MODEL)[0].seconds["probe"] for pool in POOLS)
    yield at_most(ROOM, "probe by a real inference of 16 rows right after loading, slower of 2", probe_ms, "ms", 50)
    yield from _cycles(where.gateway_folder, where.gateway_admin, addresses.gateway, pools, publisher)
    yield from _killed(home, pools, served)
    records = Ledger(home).read().parts
    for part, limit_mb in (("agent-blue", 150), ("supervisor", 60)):
        yield at_most(
            ROOM, f"{part} resident", psutil.Process(records[part].pid).memory_info().rss / 1e6, "MB", limit_mb
        )


def _rollout(pools: Pools, assignment: Assignment) -> float:
    """Seconds until both replicas serve it, loaded, verified, warmed and probed."""
    started = time.monotonic()
    for pool in POOLS:
        pools.assign(pool, MODEL, assignment)
    for pool in POOLS:
        pools.wait_ready(pool, MODEL, assignment, timeout_s=120)
    return time.monotonic() - started


def _big(publisher: Publisher, megabytes: int, version: int) -> Assignment:
    """A package whose model carries so many bytes of weights."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(tiny_onnx())
    weights = np.random.default_rng(version).integers(0, 256, megabytes * 2**20, dtype=np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "ballast"))
    probe = build_probe(ROWS, FEATURES, score(tiny_onnx(), ROWS, FEATURES))
    files = package_files(
        MODEL,
        version,
        model.SerializeToString(),
        packages.render_config(config(MODEL, version, model_warmup=warmup_samples(probe))),
        probe,
        snapshot_digest="0" * 64,
        mlflow_run_id="run",
        profile={"instances": 1},
    )
    folder = publisher.folder / f"big-{version}"
    packages.write_files(folder, files)
    signing.sign(folder, publisher.private)
    return packages.publish(publisher.store, MODEL, version, folder)


def _cycles(folder: Path, admin: str, address: str, pools: Pools, publisher: Publisher) -> Iterator[Line]:
    """Another model comes to the champion's Triton and goes again, over and over, by its agent as in production."""
    Gateway(folder, admin).set_split(MODEL, Split({"blue": 100}))
    candidate = publisher.publish(CANDIDATE, 1, bias=0.5)
    loads = []
    with arriving(address, MODEL, RATE_PER_S) as seen:
        for _ in range(CYCLES):
            pools.assign("blue", CANDIDATE, candidate)
            loads.append(pools.wait_ready("blue", CANDIDATE, candidate))
            pools.clear("blue", CANDIDATE)
            until(lambda: pools.states("blue", CANDIDATE)[0].version == 0, "the candidate is unloaded")
    named = f"{CYCLES} load/unload cycles beside the champion at {seen.per_s:.0f}/s: failed of {seen.asked}"
    named += f" {seen.failures}" * bool(seen.failed)
    met = seen.failed == 0 and seen.per_s > 0.99 * RATE_PER_S
    yield Line(ROOM, named, float(seen.failed), "", f"0 at {RATE_PER_S:.0f}/s", met)
    yield Line(ROOM, "of these, load by the agent, median", statistics.median(loads), "s", "for comparison", True)
    yield Line(ROOM, "of these, champion's p99", seen.p99_ms, "ms", "for comparison", True)


def _killed(home: Path, pools: Pools, served: Assignment) -> Iterator[Line]:
    """kill -9, and nobody does anything."""
    server = TritonServer(pools.triton_urls["blue-0"], timeout_s=2)

    def answers() -> bool:
        try:
            return int(server.infer(MODEL, question())["model_version"]) == served.version
        except TrimtabError:
            return False

    def reports() -> bool:
        state = pools.states("blue", MODEL)[0]
        return state.state == "READY" and state.digest == served.digest and state.seen_at > killed_at

    def pids(victim: str) -> list[int]:
        parts = Ledger(home).read().parts
        if victim == "agent":
            return [parts["agent-blue"].pid]
        triton = psutil.Process(parts["triton-blue"].pid)
        if victim == "Triton":
            return [triton.pid]
        return [child.pid for child in triton.children() if f"{MODEL}_0_0" in child.cmdline()]

    for victim in ("backend process", "Triton", "agent"):
        started = time.monotonic()
        for pid in pids(victim):
            os.kill(pid, signal.SIGKILL)
        if victim != "agent":
            until(lambda: not answers(), f"{victim} is dead")
        killed_at = datetime.now(UTC)
        until(lambda: answers() and reports(), f"serving after kill -9 of {victim}", timeout_s=90)
        yield at_most(ROOM, f"kill -9 of {victim}: serving and reported again", time.monotonic() - started, "s", 15)
