"""The canary's door in a process of its own: what a rollout leaves on Dagster's and MLflow's pages."""

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from assets.canary.asset import CHECKS, canary_rollout
from assets.canary.coverage import Coverage
from assets.canary.driver import Driver, load
from assets.canary.replay import same
from assets.canary.rollout import Phase
from assets.canary.settings import CanarySettings, CoverageSettings
from assets.cells import build_cells, cells_key
from assets.model import Model
from assets.scoring import score
from resources.features import FeatureRegistry
from resources.gateway import Split
from resources.releases import release_key
from tests.serving_stack import FEATURES
from tests.unit.canary.test_coverage_gate import Counted
from tests.unit.canary.test_driver import EPOCH, MODEL

SETTINGS = CanarySettings(
    mirror_requests=20,
    mirror_answers=40,
    rung_deadline_s=1e9,
    hold_deadline_s=1e9,
    coverage=CoverageSettings(cells=8, covered=(0.9,), could_fail=(0.3,)),
)


class Served(Counted):
    """The same world with its pools' names."""

    replicas = {"blue": ("blue-0",), "green": ("green-0",)}  # noqa: RUF012


@pytest.fixture
def world() -> Served:
    served = Served()
    for version in (1, 2):
        served.lineage.register(
            MODEL, served.onnx[version], dagster_run_id=f"r{version}", snapshot_digest="s", snapshot_uri="u"
        )
    for alias, version in (("champion", 1), ("challenger", 2)):
        served.lineage.set_alias(MODEL, alias, version)
    ordinary = Counted()
    ordinary.pause(6)
    frame = ordinary.answers_seen(MODEL, EPOCH)
    cells = build_cells(frame, FEATURES, score(served.onnx[1], frame, FEATURES), 8)
    served.store.put(cells_key(MODEL, 2), cells.to_bytes())
    served.gateway.set_split(MODEL, Split({"blue": 100}))
    package = {"package": "packages/churn/2/x.tar", "digest": "d" * 64, "published_at": "2024-01-01T00:00:00+00:00"}
    served.store.swap(release_key(MODEL, 2), json.dumps(package).encode(), None)
    return served


def rolled_out(world: Served, monkeypatch: pytest.MonkeyPatch, errors: float) -> tuple[dg.DagsterInstance, bool]:
    """One materialization, in the world's own time."""
    world.challenger_errors = errors
    monkeypatch.setattr("assets.canary.asset.Driver", partial(Driver, now=world.clock, pause=world.pause))
    model = Model(MODEL, "d", ("team:x",), "f", FeatureRegistry(()), Path("recipe.py"))
    days = dg.DailyPartitionsDefinition(datetime(2024, 1, 1, tzinfo=UTC))
    ports = {"store": world.store, "lineage": world.lineage, "gateway": world.gateway, "pools": world, "traffic": world}
    instance = dg.DagsterInstance.ephemeral()
    done = dg.materialize(
        [canary_rollout(model, days, SETTINGS)],
        partition_key="2024-01-02",
        resources=ports,
        instance=instance,
        raise_on_error=True,
    )
    return instance, done.success


@pytest.mark.parametrize("errors", [0.0, 0.2])
def test_its_rungs_its_page_and_its_record_are_there_for_people(
    world: Served, monkeypatch: pytest.MonkeyPatch, errors: float
) -> None:
    instance, success = rolled_out(world, monkeypatch, errors)
    assert success
    found = load(world.store, MODEL)
    assert found is not None
    ended = found[0]
    assert ended.phase is (Phase.ROLLED_BACK if errors else Phase.PROMOTED), ended.reason
    assert isinstance(ended.coverage, Coverage)

    assert [run.tags["dagster/max_retries"] for run in instance.get_runs()] == ["0"]  # nobody retries it but the sensor
    key = dg.AssetKey([MODEL, "canary_rollout"])
    observations = instance.fetch_observations(key, limit=50).records
    rungs = [record.asset_observation for record in observations if record.asset_observation]
    told = [str(observed.metadata["phase"].value) for observed in rungs if "phase" in observed.metadata]
    assert "mirroring: copies only" in told
    assert "1 % to green" in told
    assert ("100 % to green" in told) is not bool(errors)

    runs = {run.kind: run for run in world.lineage.runs.values() if run.kind in ("rollout", "canary")}
    word = "rolled back" if errors else "promoted"
    for kind in ("rollout", "canary"):
        assert f"{MODEL} version 2: {word}" in runs[kind].artifacts["rollout.html"].decode()
    assert {"log_e.errors", "coverage.covered"} <= set(runs["rollout"].metrics)
    record = json.loads(runs["canary"].artifacts["decision.json"])
    assert same(record)
    assert {item["name"] for item in record["evidence"]} == set(CHECKS)
