from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import dagster as dg
import pytest

from assets.door import AS_OF_TAG
from assets.drift.settings import DriftSettings
from pipelines.factory import partitions_by_cadence
from pipelines.jobs import build_jobs
from pipelines.page_sensor import build_page_sensor
from pipelines.spec import ModelSpec

When = Literal["always", "on_alarm", "never"]
WEEK = "2024-01-05"
END = "2024-01-12T00:00:00+00:00"


def spec(when: When = "on_alarm", name: str = "churn") -> ModelSpec:
    return ModelSpec(
        name=name, description="Who leaves.", owners=("team:growth",), feature_set="customers", cadence="weekly",
        features=Path("features.yaml"), start=datetime(2024, 1, 5, tzinfo=UTC),
        drift=DriftSettings(evidently_report=when),
    )  # fmt: skip


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def report(instance: dg.DagsterInstance, passed: bool, check: str = "inputs", model: str = "churn") -> None:
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey([model, "drift_report"]),
            check_name=check,
            passed=passed,
            severity=dg.AssetCheckSeverity.ERROR,
            metadata={"partition": dg.MetadataValue.text(WEEK), "as_of": dg.MetadataValue.text(END)},
        )
    )


class Ticking:
    def __init__(self, instance: dg.DagsterInstance, *specs: ModelSpec) -> None:
        self.instance, self.cursor = instance, None
        self.sensor = build_page_sensor(specs, build_jobs(specs))

    def tick(self) -> list[dg.RunRequest]:
        result = self.sensor(dg.build_sensor_context(instance=self.instance, cursor=self.cursor))
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor  # type: ignore[assignment]
        return list(result.run_requests or [])


def test_an_alarm_has_one_page_drawn_of_its_window(instance: dg.DagsterInstance) -> None:
    ticking = Ticking(instance, spec())
    assert ticking.tick() == []
    report(instance, passed=False)
    report(instance, passed=False, check="harm")
    (request,) = ticking.tick()
    assert (request.job_name, request.partition_key) == ("page_weekly", WEEK)
    assert [key.path for key in request.asset_selection or []] == [["churn", "drift_page"]]
    assert request.tags[AS_OF_TAG] == END
    assert ticking.tick() == []


@pytest.mark.parametrize(("when", "pages"), [("always", 1), ("on_alarm", 0), ("never", 0)])
def test_a_quiet_check_has_a_page_only_where_the_spec_always_wants_one(
    instance: dg.DagsterInstance, when: When, pages: int
) -> None:
    report(instance, passed=True)
    assert len(Ticking(instance, spec(when)).tick()) == pages


def test_a_model_that_wants_none_has_none(instance: dg.DagsterInstance) -> None:
    report(instance, passed=False)
    report(instance, passed=False, model="fraud")
    requests = Ticking(instance, spec("never"), spec(name="fraud")).tick()
    assert [request.tags["model"] for request in requests] == ["fraud"]


def test_the_job_it_asks_for_exists_in_every_cadence() -> None:
    specs = [spec(), spec().model_copy(update={"name": "ads", "cadence": "daily"})]
    assert {"page_weekly", "page_daily"} <= {job.name for job in build_jobs(specs)}
    assert set(partitions_by_cadence(specs)) == {"weekly", "daily"}


def test_a_page_waits_while_a_loop_runs(instance: dg.DagsterInstance) -> None:
    ticking = Ticking(instance, spec())
    run = dg.DagsterRun(job_name="improve_weekly", tags={"model": "fraud"}, status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    report(instance, passed=False)
    assert ticking.tick() == []
    instance.delete_run(run.run_id)
    assert len(ticking.tick()) == 1
