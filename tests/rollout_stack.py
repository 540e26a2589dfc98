"""All that a rollout needs, real: S3, observer, Envoy, two Tritons with their agents. No Dagster, no MLflow.

`python -m tests.rollout_stack ADDRESS MODEL RATE` is its clients, a process of their own until their input is closed.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from assets.canary.driver import Driver, load
from assets.canary.looks import slow_threshold_ms
from assets.canary.rollout import Phase, Rollout, begin
from assets.canary.settings import CanarySettings
from pipelines.demo.clients import Clients, Pace
from resources.pools import Assignment, Pools
from resources.store import S3Store
from resources.traffic import Traffic
from tests.fakes_lineage import MemoryLineage
from tests.gateway_stack import Edge, running_edge, running_observer, running_store, start, stop
from tests.serving_stack import FEATURES, ROWS, LocalTriton, Publisher, tiny_onnx, until

MODEL = "flight"
THREADS = 8
BEFORE = timedelta(seconds=30)


@dataclass
class Site:
    """champion: version and pool that serve, None before the first release."""

    edge: Edge
    store: S3Store
    traffic: Traffic
    pools: Pools
    publisher: Publisher
    tritons: dict[str, LocalTriton]
    lineage: MemoryLineage = field(default_factory=MemoryLineage)
    champion: tuple[int, str] | None = None

    def publish(self, bias: float = 0.0) -> Assignment:
        """The next version, registered and signed; of one bias they are all the same model."""
        number = len(self.lineage.versions.get(MODEL, [])) + 1
        self.lineage.register(
            MODEL, tiny_onnx(bias), dagster_run_id=f"r{number}", snapshot_digest="0" * 64, snapshot_uri="s3://none"
        )
        return self.publisher.publish(MODEL, number, bias)

    def begin(self, assignment: Assignment, settings: CanarySettings) -> Rollout:
        """As the canary's door does."""
        slow_ms = settings.slow_ms
        if self.champion is not None:
            lately = self.traffic.access_seen(MODEL, datetime.now(UTC) - BEFORE)
            mine = lately[lately["pool"] == self.champion[1]]["latency_ms"]
            slow_ms = slow_threshold_ms(float(mine.quantile(0.95)) if len(mine) else None, settings)
        free = next(pool for pool in self.edge.pools if self.champion is None or pool != self.champion[1])
        package = assignment.package, assignment.digest
        now = datetime.now(UTC)
        return begin(MODEL, assignment.version, free, *package, settings, now, champion=self.champion, slow_ms=slow_ms)

    def drive(self, rollout: Rollout, say: Callable[[str], None] = lambda _: None, name: str = "test") -> Rollout:
        """To its end, in this process."""
        found = load(self.store, MODEL)
        gateway = self.edge.gateway
        driver = Driver(name, self.store, self.pools, gateway, self.traffic, self.lineage, say)  # type: ignore[arg-type]
        driver.etag = found[1].etag if found else None
        ended = driver.drive(rollout)
        if ended.phase is Phase.PROMOTED:
            self.champion = ended.version, ended.challenger_pool
        return ended

    def release(self, settings: CanarySettings, say: Callable[[str], None] = lambda _: None) -> Rollout:
        """A rollout of the same model as before, from its package to its end."""
        return self.drive(self.begin(self.publish(), settings), say)


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    """Started and stopped here; nothing serves before the first release."""
    with ExitStack() as stack:
        tritons = {pool: LocalTriton(folder / pool) for pool in ("blue", "green")}
        ports = {pool: (triton.ports[0], triton.ports[1]) for pool, triton in tritons.items()}
        store = stack.enter_context(running_store(folder / "s3"))
        for triton in tritons.values():
            triton.start()
            stack.callback(triton.stop)
        edge = stack.enter_context(running_edge(folder / "gateway", ports))
        observer = stack.enter_context(running_observer(folder, edge, store))
        publisher = Publisher(folder, store)
        for pool, triton in tritons.items():
            stack.callback(stop, agent(folder, pool, triton, edge, store, publisher))
        replicas = {pool: (f"{pool}-0",) for pool in tritons}
        pools = Pools(store, replicas, {f"{pool}-0": triton.url for pool, triton in tritons.items()})
        until(lambda: all(_reports(pools, pool) for pool in tritons), "both agents report")
        yield Site(edge, store, Traffic(store, observer.url), pools, publisher, tritons)


def agent(
    folder: Path, pool: str, triton: LocalTriton, edge: Edge, store: S3Store, publisher: Publisher
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pipelines.agent", "--pool", pool, "--replica", f"{pool}-0"]
    command += ["--triton", triton.url, "--repository", str(triton.repository), "--public-key", str(publisher.public)]
    control_key = folder / f"{pool}.control"
    control_key.write_text(triton.control_key)
    command += ["--control-key", str(control_key)]
    command += ["--s3-endpoint", str(store.endpoint), "--bucket", store.bucket, "--gateway-folder", str(edge.folder)]
    return start(command, folder / f"agent-{pool}.log")


def _reports(pools: Pools, pool: str) -> bool:
    return all(state.state != "LOST" for state in pools.states(pool, MODEL))


@dataclass
class Told:
    """What the clients saw, once they have stopped."""

    served: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def clients(site: Site, rate_per_s: float) -> Iterator[Told]:
    """Stock clients, HTTP and gRPC, in a process of their own; the counts are there when the block has ended."""
    told = Told()
    command = [sys.executable, "-m", "tests.rollout_stack", f"127.0.0.1:{site.edge.client}", MODEL, str(rate_per_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield told
    finally:
        answer, _ = process.communicate(timeout=60)
        with suppress(ValueError):
            found = json.loads(answer)
            told.served, told.failed, told.failures = found["served"], found["failed"], found["failures"]


def main(address: str, model: str, rate_per_s: float) -> None:
    """Ask until the input is closed, then print what was seen."""
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    now = pd.Timestamp(datetime.now(UTC))
    rows = pd.concat([ROWS] * 4, ignore_index=True).assign(entity=range(4 * len(ROWS)), event_time=now)
    with Clients(address, model, FEATURES, Pace(rate_per_s), THREADS) as asking:
        while not over.is_set():
            asking.send(rows)
            rows = rows.assign(entity=rows["entity"] + len(rows))  # labels come by entity, and each has one
    seen: dict[str, Any] = {"served": asking.count.served, "failed": asking.count.failed}
    print(json.dumps(seen | {"failures": asking.count.failures}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
