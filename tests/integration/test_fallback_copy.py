"""The fallback copy from its asset to overloaded clients: all servers real, the asset materialized in this process."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pandas as pd
import pytest

from assets.champion import reference_key
from assets.fallback.asset import fallback_copy
from assets.fallback.settings import FallbackSettings
from assets.fallback.trees import fewer_trees
from assets.model import Model
from assets.profile.package import build_probe, package_files, warmup_samples
from assets.retrain.settings import TrainingSettings
from assets.scoring import score
from resources.gateway import Split
from resources.lineage import Lineage
from resources.packages import render_config
from resources.pools import LITE, Pools
from resources.releases import publish_signed
from resources.store import S3Store
from resources.traffic import Traffic
from tests.gateway_stack import Edge, call, running_edge, running_observer, running_store, stop
from tests.made_model import DAY, FEATURES, MODEL, PARTITIONS, fitted, made_up, model, put_source
from tests.mlflow_server import running_mlflow
from tests.rollout_stack import agent
from tests.serving_stack import LocalTriton, Publisher, config, question, until

pytestmark = pytest.mark.integration

SHARE = 0.5
ALWAYS = (datetime(1990, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
# Four requests may wait for a fuller batch: the fifth is told 503, by the copy as well, which is served alike.
FULL_AT_FOUR = {
    "instance_group": [{"kind": "KIND_CPU", "count": 2}],
    "dynamic_batching": {
        "max_queue_delay_microseconds": 200_000,
        "preferred_batch_size": [64],
        "default_queue_policy": {"max_queue_size": 4},
    },
}


@dataclass
class Site:
    """One model with a champion in blue; the lite tier beside it."""

    model: Model
    store: S3Store
    lineage: Lineage
    edge: Edge
    pools: Pools
    traffic: Traffic
    publisher: Publisher
    tritons: dict[str, LocalTriton]
    frame: pd.DataFrame

    def promote(self, seed: int) -> bytes:
        """Train, register, sign, publish and serve another version, as the rooms before do; its ONNX."""
        onnx = fitted(self.model, self.frame, seed)
        made = self.lineage.register(
            MODEL, onnx, dagster_run_id=f"seed {seed}", snapshot_digest="0" * 64, snapshot_uri="s3://none"
        )
        self.store.put(reference_key(MODEL, made.version), b"kept by the retrain room")
        head = self.frame[list(FEATURES)].head(16)
        probe = build_probe(head, FEATURES, score(onnx, head, FEATURES))
        text = render_config(config(MODEL, made.version, model_warmup=warmup_samples(probe)) | FULL_AT_FOUR)
        files = package_files(
            MODEL,
            made.version,
            onnx,
            text,
            probe,
            snapshot_digest="0" * 64,
            mlflow_run_id=made.run_id,
            profile={"instances": 2},
        )
        assignment = publish_signed(self.store, MODEL, made.version, files, self.publisher.private)
        self.pools.assign("blue", MODEL, assignment)
        self.pools.wait_ready("blue", MODEL, assignment)
        self.edge.gateway.set_split(MODEL, Split({"blue": 100}))
        self.lineage.set_alias(MODEL, "champion", made.version)
        return onnx

    def copy(self, **changes: Any) -> bool:
        """One run of the asset; whether the copy passed its gate."""
        settings = FallbackSettings(
            enabled=True, tree_shares=(SHARE,), max_loss_increase=0.05, holdout_days=7, min_rows=200
        )
        settings = settings.model_copy(update=changes)
        asset = fallback_copy(self.model, PARTITIONS, settings, TrainingSettings(lookback_days=29))
        ports = {"store": self.store, "lineage": self.lineage, "pools": self.pools, "gateway": self.edge.gateway}
        done = dg.materialize([asset], partition_key=DAY, resources=ports | {"signing_key": self.publisher.private})
        (check,) = done.get_asset_check_evaluations()
        return check.passed

    def crowd(self, clients: int = 7, each: int = 6) -> list[tuple[str, str, str, float]]:
        """Status, mark, version and probability of every answer to the first row; all clients ask at once."""
        body = json.dumps(question(self.frame[list(FEATURES)].head(1))).encode()

        def run(_: int) -> list[tuple[str, str, str, float]]:
            answers = [call(f"{self.edge.url}/v2/models/{MODEL}/infer", body) for _ in range(each)]
            return [
                (str(status), headers.get("x-degraded", ""), *_answered(answer)) for status, headers, answer in answers
            ]

        with ThreadPoolExecutor(clients) as pool:
            return [answer for mine in pool.map(run, range(clients)) for answer in mine]


def _answered(answer: Any) -> tuple[str, float]:
    if "outputs" not in answer:
        return "", 0.0
    return str(answer["model_version"]), float(answer["outputs"][0]["data"][1])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("fallback")
    (folder / "mlflow").mkdir()
    with ExitStack() as stack:
        store = stack.enter_context(running_store(folder / "s3"))
        url, _ = stack.enter_context(running_mlflow(folder / "mlflow"))
        tritons = {pool: LocalTriton(folder / pool) for pool in ("blue", LITE)}
        for triton in tritons.values():
            triton.start()
            stack.callback(triton.stop)
        ports = {pool: (triton.ports[0], triton.ports[1]) for pool, triton in tritons.items()}
        behind = {"blue": ports["blue"], "green": ports["blue"]}
        edge = stack.enter_context(running_edge(folder / "gateway", behind, ports[LITE]))
        observer = stack.enter_context(running_observer(folder, edge, store))
        publisher = Publisher(folder, store)
        for pool, triton in tritons.items():
            stack.callback(stop, agent(folder, pool, triton, edge, store, publisher))
        replicas = {pool: (f"{pool}-0",) for pool in ("blue", LITE)}
        pools = Pools(store, replicas, {f"{pool}-0": triton.url for pool, triton in tritons.items()})
        frame = made_up()
        put_source(store, frame)
        traffic = Traffic(store, observer.url)
        yield Site(model(folder), store, Lineage(url), edge, pools, traffic, publisher, tritons, frame)


def _of_copy(site: Site, onnx: bytes) -> float:
    """What the copy answers to the row that the crowd asks."""
    return float(score(fewer_trees(onnx, SHARE)[0], site.frame.head(1), FEATURES)[0])


def test_the_copy_answers_in_overload_is_counted_comes_back_and_follows_the_champion(site: Site) -> None:
    onnx = site.promote(seed=1)
    before = site.crowd()
    assert "503" in {status for status, *_ in before}, "the queue was never full: nothing is shown"

    assert site.copy()
    seen = site.crowd()
    assert {status for status, *_ in seen} == {"200"}
    degraded = [item for item in seen if item[1] == "true"]
    assert 0 < len(degraded) < len(seen)
    assert {version for _, _, version, _ in seen} == {"1"}
    own = float(score(onnx, site.frame.head(1), FEATURES)[0])
    assert abs(own - _of_copy(site, onnx)) > 1e-3, "copy and champion answer alike: nothing is shown"
    for _, mark, _, answer in seen:
        assert answer == pytest.approx(_of_copy(site, onnx) if mark else own, abs=1e-5)

    site.traffic.flush()
    until(lambda: len(site.traffic.access(MODEL, *ALWAYS)) == len(before) + len(seen), "all requests are on record")
    access = site.traffic.access(MODEL, *ALWAYS)
    assert access["degraded"].sum() == len(degraded)
    assert access["ok"].sum() == len(before) + len(seen) - sum(status == "503" for status, *_ in before)

    lite = site.tritons[LITE]
    lite.stop(signal.SIGKILL)
    lite.start()
    until(lambda: any(mark == "true" for _, mark, *_ in site.crowd()), "the copy is back without anyone")

    newer = site.promote(seed=2)
    assert site.copy()
    assert site.pools.desired(LITE)[MODEL].version == 2
    seen = site.crowd()
    assert {version for _, _, version, _ in seen} == {"2"}
    degraded = [item for item in seen if item[1] == "true"]
    assert degraded
    assert all(answer == pytest.approx(_of_copy(site, newer), abs=1e-5) for *_, answer in degraded)

    assert not site.copy(tree_shares=(0.01,), max_loss_increase=0.001)
    assert {mark for _, mark, *_ in site.crowd()} == {""}, "a copy that failed its gate is asked no more"
