from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEvent
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from hypothesis import given
from hypothesis import strategies as st

from assets.decision import Decision, Evidence
from assets.door import decision_key
from assets.verdict import Verdict
from pipelines.commands_ack import acknowledge, open_alarm
from pipelines.factory import partitions_by_cadence
from pipelines.jobs import build_jobs
from pipelines.sensors import Alarm, Waiting, acknowledged, build_drift_sensor, chosen, cooled_down
from pipelines.spec import ModelSpec
from resources.errors import Conflict, NotFound
from tests.fakes import MemoryStore

WEEKS = ["2024-01-05", "2024-01-12", "2024-01-19", "2024-01-26", "2024-02-02"]


def spec(name: str = "churn", cooldown_hours: float = 0, weight: float = 1) -> ModelSpec:
    return ModelSpec(
        name=name,
        description="Who leaves.",
        owners=("team:growth",),
        feature_set="customers",
        features=Path("features.yaml"),
        cadence="weekly",
        start=datetime(2024, 1, 5, tzinfo=UTC),
        cooldown_hours=cooldown_hours,
        weight=weight,
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def report(
    instance: dg.DagsterInstance,
    partition: str,
    *,
    model: str = "churn",
    check: str = "inputs",
    passed: bool = False,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    opened: str = "",
) -> None:
    """A drift check evaluation as the drift room's door reports it."""
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey([model, "drift_report"]),
            check_name=check,
            passed=passed,
            severity=severity,
            metadata={
                "partition": dg.MetadataValue.text(partition),
                **({"alarm": dg.MetadataValue.text(opened)} if opened else {}),
            },
        )
    )


class Ticking:
    """The sensor with its cursor kept between ticks, as the daemon keeps it."""

    def __init__(self, instance: dg.DagsterInstance, *specs: ModelSpec, max_loops: int = 4) -> None:
        self.instance = instance
        self.store = MemoryStore()
        self.cursor: str | None = None
        self.sensor = build_drift_sensor(specs, partitions_by_cadence(specs), build_jobs(specs), max_loops)

    def tick(self) -> list[dg.RunRequest]:
        resources = {"store": self.store}
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources=resources)
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return list(result.run_requests or [])


def test_a_failed_check_starts_the_loop_of_that_model_once(instance: dg.DagsterInstance) -> None:
    ticking = Ticking(instance, spec())
    assert ticking.tick() == []
    report(instance, WEEKS[0])
    (request,) = ticking.tick()
    assert request.partition_key == WEEKS[0]
    assert request.tags["model"] == "churn"
    assert [key.path[1] for key in request.asset_selection or []] == [
        "shadow_evaluation",
        "candidate_model",
        "serving_profile",
        "canary_rollout",
    ]
    assert ticking.tick() == []


@pytest.mark.parametrize("check", ["inputs", "harm"])
def test_both_kinds_of_alarm_start_a_loop(instance: dg.DagsterInstance, check: str) -> None:
    report(instance, WEEKS[0], check=check)
    (request,) = Ticking(instance, spec()).tick()
    assert request.tags["trigger"] == f"drift {check}"


def test_silence_starts_nothing(instance: dg.DagsterInstance) -> None:
    report(instance, WEEKS[0], severity=dg.AssetCheckSeverity.WARN)
    report(instance, WEEKS[0], check="harm", passed=True)
    report(instance, WEEKS[0], check="schema")
    assert Ticking(instance, spec()).tick() == []


def test_each_model_gets_a_run_of_its_own(instance: dg.DagsterInstance) -> None:
    report(instance, WEEKS[0], model="churn")
    report(instance, WEEKS[1], model="fraud")
    requests = Ticking(instance, spec("churn"), spec("fraud")).tick()
    assert {request.tags["model"]: request.partition_key for request in requests} == {
        "churn": WEEKS[0],
        "fraud": WEEKS[1],
    }


def test_an_alarm_within_the_cooldown_waits_and_a_later_one_starts(instance: dg.DagsterInstance) -> None:
    ticking = Ticking(instance, spec(cooldown_hours=10 * 24))
    report(instance, WEEKS[0])
    assert len(ticking.tick()) == 1
    report(instance, WEEKS[1])
    assert ticking.tick() == []
    report(instance, WEEKS[2])
    (request,) = ticking.tick()
    assert request.partition_key == WEEKS[2]


@pytest.mark.parametrize("job", ["improve_weekly", "release_weekly"])
def test_no_second_loop_starts_while_one_runs_or_a_release(instance: dg.DagsterInstance, job: str) -> None:
    ticking = Ticking(instance, spec())
    run = dg.DagsterRun(job_name=job, tags={"model": "churn"}, status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    report(instance, WEEKS[0])
    assert ticking.tick() == []
    instance.delete_run(run.run_id)
    assert len(ticking.tick()) == 1


def test_cooldown_is_counted_in_the_datas_own_time() -> None:
    last = datetime(2024, 1, 12, tzinfo=UTC)
    assert cooled_down(None, last, timedelta(days=365))
    assert not cooled_down(last.isoformat(), last + timedelta(days=9), timedelta(days=10))
    assert cooled_down(last.isoformat(), last + timedelta(days=10), timedelta(days=10))


def plan(instance: dg.DagsterInstance, check: str = "inputs") -> None:
    """A new check of the model has been queued, as Dagster notes it when a run is created."""
    key = dg.AssetKey(["churn", "drift_report"])
    planned = AssetCheckEvaluationPlanned(asset_key=key, check_name=check)
    run = dg.DagsterRun(job_name="watch_weekly")
    instance.add_run(run)
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        job_name="watch_weekly",
        event_specific_data=planned,
    )
    instance.report_dagster_event(event, run.run_id)


@pytest.mark.parametrize("passed", [True, False])
def test_a_check_that_is_running_anew_hides_neither_an_alarm_nor_a_pass(
    instance: dg.DagsterInstance, passed: bool
) -> None:
    report(instance, WEEKS[0], passed=passed)
    plan(instance)
    plan(instance, "harm")
    assert len(Ticking(instance, spec()).tick()) == (0 if passed else 1)


def test_an_alarm_that_recovered_before_it_could_start_a_loop_starts_none(instance: dg.DagsterInstance) -> None:
    report(instance, WEEKS[0])
    report(instance, WEEKS[1], passed=True)
    assert Ticking(instance, spec()).tick() == []


def running(instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.DagsterRun:
    """The run that the daemon makes of a request."""
    run = dg.DagsterRun(job_name=str(request.job_name), tags=dict(request.tags), status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    return run


def test_a_storm_of_alarms_starts_the_heaviest_models_and_the_others_as_these_end(
    instance: dg.DagsterInstance,
) -> None:
    weights = {"ads": 1.0, "churn": 5.0, "fraud": 20.0, "search": 1.0}
    ticking = Ticking(instance, *(spec(name, weight=weight) for name, weight in weights.items()), max_loops=2)
    for model in ("search", "ads", "churn", "fraud"):
        report(instance, WEEKS[0], model=model)
    first = ticking.tick()
    assert [request.tags["model"] for request in first] == ["fraud", "churn"]
    runs = [running(instance, request) for request in first]
    assert ticking.tick() == []
    instance.delete_run(runs[0].run_id)
    (third,) = ticking.tick()
    assert third.tags["model"] == "search"
    instance.delete_run(runs[1].run_id)
    running(instance, third)
    assert [request.tags["model"] for request in ticking.tick()] == ["ads"]


def test_the_loops_of_other_cadences_count_too(instance: dg.DagsterInstance) -> None:
    daily = spec("ads").model_copy(update={"cadence": "daily"})
    ticking = Ticking(instance, daily, spec("churn"), max_loops=1)
    report(instance, "2024-01-05", model="ads")
    (request,) = ticking.tick()
    running(instance, request)
    report(instance, WEEKS[0], model="churn")
    assert ticking.tick() == []


@given(weights=st.lists(st.integers(1, 5), max_size=8), active=st.integers(0, 6), max_loops=st.integers(1, 6))
def test_no_more_loops_than_allowed_ever_start_and_no_lighter_one_before_a_heavier(
    weights: list[int], active: int, max_loops: int
) -> None:
    at = datetime(2024, 1, 12, tzinfo=UTC)
    waiting = [Waiting(spec(f"m{i}", weight=w), Alarm(i, "harm", WEEKS[0]), at) for i, w in enumerate(weights)]
    start, hold = chosen(waiting, active, max_loops)
    assert len(start) == min(len(weights), max(max_loops - active, 0))
    assert sorted(item.alarm.record for item in [*start, *hold]) == list(range(len(weights)))
    assert not start or not hold or min(s.spec.weight for s in start) >= max(h.spec.weight for h in hold)


OPENED = "2024-01-12T00:00:00+00:00"


def test_an_acknowledged_alarm_starts_no_loop_and_the_next_one_does(instance: dg.DagsterInstance) -> None:
    ticking = Ticking(instance, spec())
    report(instance, WEEKS[0], opened=OPENED)
    acknowledge(ticking.store, "churn", OPENED, "a known promotion", datetime(2024, 1, 13, tzinfo=UTC))
    assert ticking.tick() == []
    report(instance, WEEKS[1], opened=OPENED)
    assert ticking.tick() == []
    report(instance, WEEKS[3], opened="2024-02-02T00:00:00+00:00")
    (request,) = ticking.tick()
    assert request.partition_key == WEEKS[3]


def test_an_acknowledgement_leaves_the_cooldown_as_it_was(instance: dg.DagsterInstance) -> None:
    ticking = Ticking(instance, spec(cooldown_hours=10 * 24))
    report(instance, WEEKS[0], opened=OPENED)
    assert len(ticking.tick()) == 1
    acknowledge(ticking.store, "churn", OPENED, "seen", datetime(2024, 1, 13, tzinfo=UTC))
    report(instance, WEEKS[2], opened=OPENED)
    assert ticking.tick() == []
    report(instance, WEEKS[3], opened="2024-02-02T00:00:00+00:00")
    assert len(ticking.tick()) == 1


def test_an_alarm_that_nobody_acknowledged_is_asked_again_after_the_cooldown(instance: dg.DagsterInstance) -> None:
    ticking = Ticking(instance, spec(cooldown_hours=10 * 24))
    asked = []
    for week in WEEKS:
        report(instance, week, opened=OPENED)
        asked.append(len(ticking.tick()))
    assert asked == [1, 0, 1, 0, 1]


def recorded(store: MemoryStore, opened: str | None) -> None:
    evidence = (Evidence("inputs", Verdict.FAIL if opened else Verdict.PASS, "why"),)
    alarms = {"open": opened, "count": 1}
    decision = Decision("churn", "drift", datetime(2024, 1, 12, tzinfo=UTC), "why", evidence, {}, {"alarms": alarms})
    store.put(decision_key(decision), decision.to_json())


def test_the_open_alarm_of_the_latest_record_is_acknowledged_once() -> None:
    store, now = MemoryStore(), datetime(2024, 1, 13, tzinfo=UTC)
    with pytest.raises(NotFound, match="no drift check of churn"):
        open_alarm(store, "churn")
    recorded(store, OPENED)
    assert open_alarm(store, "churn") == OPENED
    acknowledge(store, "churn", OPENED, "a known promotion", now)
    with pytest.raises(Conflict, match="acknowledged already: a known promotion"):
        acknowledge(store, "churn", OPENED, "again", now)
    assert acknowledged(store, "churn", Alarm(1, "inputs", WEEKS[0], "", OPENED)) == "a known promotion"
    assert acknowledged(store, "churn", Alarm(1, "inputs", WEEKS[0])) is None


def test_without_an_open_alarm_there_is_nothing_to_acknowledge() -> None:
    store = MemoryStore()
    recorded(store, None)
    with pytest.raises(NotFound, match="no alarm of churn is open"):
        open_alarm(store, "churn")
