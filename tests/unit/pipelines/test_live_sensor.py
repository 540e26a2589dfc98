from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from assets.door import AS_OF_TAG, interval
from pipelines.factory import partitions_by_cadence
from pipelines.jobs import build_jobs
from pipelines.live_sensor import build_live_sensor
from pipelines.observer.live import alarm_key
from pipelines.schedules import build_schedules
from pipelines.spec import ModelSpec
from tests.fakes import MemoryStore

FRIDAY = datetime(2024, 1, 5, tzinfo=UTC)
SPEC = ModelSpec(
    name="churn", description="Who leaves.", owners=("team:growth",), feature_set="customers", cadence="weekly",
    features=Path("features.yaml"), start=FRIDAY,
)  # fmt: skip
AT = datetime(2024, 1, 16, 13, 30, tzinfo=UTC)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def alarm(store: MemoryStore, at: datetime = AT) -> None:
    store.put(alarm_key("churn", int(at.timestamp() * 1e6), "7"), b"{}")


class Ticking:
    def __init__(self, instance: dg.DagsterInstance, store: MemoryStore) -> None:
        self.instance, self.store = instance, store
        self.cursor: str | None = None
        self.sensor = build_live_sensor([SPEC], partitions_by_cadence([SPEC]), build_jobs([SPEC]))

    def tick(self) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources={"store": self.store})
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return list(result.run_requests or [])


def test_a_live_alarm_starts_one_check_that_ends_where_it_was_seen(instance: dg.DagsterInstance) -> None:
    store = MemoryStore()
    ticking = Ticking(instance, store)
    assert ticking.tick() == []
    alarm(store)
    (request,) = ticking.tick()
    assert (request.job_name, request.partition_key) == ("watch_weekly", "2024-01-12")
    assert request.tags[AS_OF_TAG] == AT.isoformat()
    assert [key.path[1] for key in request.asset_selection or []] == ["feature_snapshot", "drift_report"]
    assert ticking.tick() == []


def test_an_alarm_waits_while_a_check_of_the_model_runs(instance: dg.DagsterInstance) -> None:
    store = MemoryStore()
    ticking = Ticking(instance, store)
    run = dg.DagsterRun(job_name="watch_weekly", tags={"model": "churn"}, status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    alarm(store)
    assert ticking.tick() == []
    instance.delete_run(run.run_id)
    assert len(ticking.tick()) == 1


def test_an_alarm_of_a_clock_that_is_ahead_is_passed_over(instance: dg.DagsterInstance) -> None:
    store = MemoryStore()
    ticking = Ticking(instance, store)
    alarm(store, datetime(2099, 1, 1, tzinfo=UTC))
    assert ticking.tick() == []
    assert ticking.tick() == []


@pytest.mark.parametrize(("tags", "span"), [({}, (12, 19)), ({AS_OF_TAG: AT.isoformat()}, (9, 16))])
def test_a_tagged_run_decides_at_its_instant_over_as_long_a_window(
    instance: dg.DagsterInstance, tags: dict[str, str], span: tuple[int, int]
) -> None:
    seen = []

    @dg.asset(partitions_def=partitions_by_cadence([SPEC])["weekly"])
    def room(context: dg.AssetExecutionContext) -> None:
        seen.append(interval(context))

    assert dg.materialize([room], partition_key="2024-01-12", tags=tags, instance=instance).success
    (found,) = seen
    assert (found.start.day, found.end.day) == span
    assert found.as_of == (AT if tags else datetime(2024, 1, 19, tzinfo=UTC))


@pytest.mark.parametrize(("now", "expected"), [("2024-01-12T00:30", ["2024-01-05"]), ("2024-01-06", [])])
def test_the_schedule_takes_the_partition_that_has_just_ended(now: str, expected: list[str]) -> None:
    (schedule,) = build_schedules([SPEC], dict(partitions_by_cadence([SPEC])))
    context = dg.build_schedule_context(scheduled_execution_time=datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert [request.partition_key for request in schedule(context)] == expected  # type: ignore[union-attr]
