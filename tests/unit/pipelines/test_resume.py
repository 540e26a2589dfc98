import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.canary.driver import rollout_key
from assets.canary.lease import claim, close
from assets.canary.rollout import Phase, Rollout, begin
from assets.canary.settings import CanarySettings
from assets.fallback.settings import FallbackSettings
from pipelines.jobs import build_jobs
from pipelines.resume import build_resume_sensor, request
from pipelines.spec import ModelSpec
from tests.fakes import MemoryStore

LONG_AGO = datetime(2024, 1, 12, tzinfo=UTC)
SPEC = ModelSpec(
    name="churn",
    description="Who leaves.",
    owners=("team:growth",),
    feature_set="customers",
    features=Path("features.yaml"),
    cadence="weekly",
    start=datetime(2024, 1, 5, tzinfo=UTC),
)


class Ticking:
    """The sensor with its cursor kept between ticks, as the daemon keeps it."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.store = instance, MemoryStore()
        self.cursor: str | None = None
        self.sensor = build_resume_sensor([SPEC], build_jobs([SPEC]))

    def put(self, rollout: Rollout) -> None:
        self.store.objects[rollout_key("churn")] = json.dumps(rollout.to_dict()).encode()

    def tick(self) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources={"store": self.store})
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return list(result.run_requests or [])


@pytest.fixture
def ticking() -> Iterator[Ticking]:
    with dg.instance_for_test() as instance:
        yield Ticking(instance)


def driven(driver: str = "gone", at: datetime = LONG_AGO) -> Rollout:
    begun = begin("churn", 2, "green", "x.tar", "d", CanarySettings(), at, champion=(1, "blue"), partition="2024-01-05")
    claimed = claim(begun, driver, at)
    assert claimed is not None
    return claimed


def test_a_rollout_whose_driver_died_is_resumed_once(ticking: Ticking) -> None:
    ticking.put(driven())
    (request,) = ticking.tick()
    assert request.partition_key == "2024-01-05"
    assert [key.path for key in request.asset_selection or []] == [["churn", "canary_rollout"]]
    assert request.tags["dagster/max_retries"] == "0"
    assert ticking.tick() == []


def test_a_resumed_rollout_renews_the_fallback_copy_of_a_model_that_keeps_one() -> None:
    keeping = SPEC.model_copy(update={"fallback": FallbackSettings(enabled=True)})
    selected = request(keeping, driven(), 0).asset_selection or []
    assert [key.path for key in selected] == [["churn", "canary_rollout"], ["churn", "fallback_copy"]]


def test_a_rollout_that_is_driven_or_closed_or_was_never_begun_is_left_alone(ticking: Ticking) -> None:
    assert ticking.tick() == []
    ticking.put(driven(at=datetime.now(UTC)))
    assert ticking.tick() == []
    ticking.put(close(replace(driven(), phase=Phase.ROLLED_BACK)))
    assert ticking.tick() == []


def test_an_ended_rollout_that_nobody_closed_is_resumed_as_well(ticking: Ticking) -> None:
    ticking.put(replace(driven(), phase=Phase.PROMOTED))
    assert len(ticking.tick()) == 1


def test_the_next_death_is_resumed_again(ticking: Ticking) -> None:
    ticking.put(driven())
    (first,) = ticking.tick()
    ticking.put(driven("second", LONG_AGO + timedelta(minutes=5)))
    (second,) = ticking.tick()
    assert first.run_key != second.run_key


def test_a_run_that_ended_without_taking_the_lease_is_asked_for_again_but_not_while_it_runs(ticking: Ticking) -> None:
    ticking.put(driven())
    (request,) = ticking.tick()
    run = dg.DagsterRun(job_name="improve_weekly", tags=dict(request.tags), status=dg.DagsterRunStatus.STARTED)
    ticking.instance.add_run(run)
    cursor = json.loads(ticking.cursor or "")
    cursor["churn"]["at"] = LONG_AGO.isoformat()
    ticking.cursor = json.dumps(cursor)
    assert ticking.tick() == []
    ticking.instance.report_run_failed(run)
    (again,) = ticking.tick()
    assert again.run_key != request.run_key


def test_a_run_that_hangs_without_its_lease_has_failed(ticking: Ticking) -> None:
    dead = dg.DagsterRun(job_name="improve_weekly", status=dg.DagsterRunStatus.STARTED)
    ticking.instance.add_run(dead)
    ticking.put(driven(dead.run_id))
    assert len(ticking.tick()) == 1
    found = ticking.instance.get_run_by_id(dead.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("seen", [False, True])
def test_slots_of_a_run_that_died_are_free_whether_dagster_has_seen_its_death_or_not(
    ticking: Ticking, seen: bool
) -> None:
    storage = ticking.instance.event_log_storage
    dead = dg.DagsterRun(job_name="improve_weekly", status=dg.DagsterRunStatus.STARTED)
    ticking.instance.add_run(dead)
    storage.set_concurrency_slots("rollout_churn", 1)
    assert storage.claim_concurrency_slot("rollout_churn", dead.run_id, "canary").is_claimed
    if seen:
        ticking.instance.report_run_failed(dead)
    ticking.put(driven(dead.run_id))
    assert len(ticking.tick()) == 1
    assert storage.claim_concurrency_slot("rollout_churn", "another run", "canary").is_claimed
