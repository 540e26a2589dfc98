"""Sensors: one for all models starts the loop when a drift check fails."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from assets.door import AS_OF_TAG
from assets.drift.alarms import acknowledgement_key
from pipelines.factory import IMPROVE, rooms_of
from pipelines.jobs import job_name, keys
from pipelines.spec import ModelSpec
from resources.errors import NotFound
from resources.store import Store

ALARMS = ("inputs", "harm")
EVALUATED = (AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED)
ACTIVE = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A failed drift check: its place in the event log, its partition, the instant if that was before its end, and
    when the alarm opened that it belongs to."""

    record: int
    check: str
    partition: str
    as_of: str = ""
    opened: str = ""


def evaluated(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, AssetCheckExecutionRecord]:
    """The latest evaluation of each check, one query for all; those that are just running anew cost one each."""
    storage = instance.event_log_storage
    found = dict(storage.get_latest_asset_check_execution_by_key(list(keys)))
    for key, record in found.items():
        if record.status not in EVALUATED:
            history = storage.get_asset_check_execution_history(key, limit=10)
            found[key] = next((item for item in history if item.status in EVALUATED), record)
    return {key: record for key, record in found.items() if record.status in EVALUATED}


def alarm_in(check: str, record: AssetCheckExecutionRecord | None) -> Alarm | None:
    """The alarm that an evaluation is; a warning (no data, no labels) is none."""
    event = record.event.dagster_event if record and record.event else None
    if record is None or event is None:
        return None
    evaluation = event.asset_check_evaluation_data
    if evaluation.passed or evaluation.severity is not dg.AssetCheckSeverity.ERROR:
        return None
    as_of, opened = (
        str(evaluation.metadata[name].value) if name in evaluation.metadata else "" for name in ("as_of", "alarm")
    )
    return Alarm(record.id, check, str(evaluation.metadata["partition"].value), as_of, opened)


def acknowledged(store: Store, model: str, alarm: Alarm) -> str | None:
    """Why a person silenced the alarm; None if nobody did."""
    if not alarm.opened:
        return None
    try:
        return str(json.loads(store.get(acknowledgement_key(model, alarm.opened)))["reason"])
    except NotFound:
        return None


def cooled_down(last: str | None, at: datetime, cooldown: timedelta) -> bool:
    """Whether a new loop may start at `at`, in the data's own time. last: ISO instant of the loop before."""
    return last is None or at - datetime.fromisoformat(last) >= cooldown


@dataclass(frozen=True, slots=True)
class Waiting:
    """A model whose alarm asks for a loop. at: the end of the alarm's partition."""

    spec: ModelSpec
    alarm: Alarm
    at: datetime


def chosen(waiting: Iterable[Waiting], running: int, max_loops: int) -> tuple[list[Waiting], list[Waiting]]:
    """(to start, to hold): the heaviest model first, among equals the earlier alarm, as many as may run."""
    ordered = sorted(waiting, key=lambda item: (-item.spec.weight, item.alarm.record))
    free = max(max_loops - running, 0)
    return ordered[:free], ordered[free:]


def looping(instance: dg.DagsterInstance, cadences: Iterable[str]) -> list[str]:
    """Models with a loop that is queued or running: a release by hand is one as well. One query a job."""
    names = [job_name(purpose, cadence) for cadence in sorted(set(cadences)) for purpose in ("improve", "release")]
    filters = [RunsFilter(job_name=name, statuses=ACTIVE) for name in names]
    return [run.tags.get("model", "") for wanted in filters for run in instance.get_runs(wanted)]


def build_drift_sensor(
    specs: Iterable[ModelSpec],
    partitions: Mapping[str, dg.TimeWindowPartitionsDefinition],
    jobs: Iterable[UnresolvedAssetJobDefinition],
    max_loops: int = 4,
) -> dg.SensorDefinition:
    """One sensor for all models; a loop a model at a time, a cooldown between its loops, and max_loops in all."""
    members = tuple(specs)

    @dg.sensor(
        name="improve_on_drift",
        jobs=[job for job in jobs if job.name.startswith("improve_")],
        minimum_interval_seconds=2,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="A failed drift check (inputs or harm) starts shadow, retrain, profile and canary of that model.",
    )
    def sensor(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult:
        cursor: dict[str, dict[str, str]] = json.loads(context.cursor or "{}")
        check_keys = {
            (spec.name, check): dg.AssetCheckKey(dg.AssetKey([spec.name, "drift_report"]), check)
            for spec in members
            for check in ALARMS
        }
        records = evaluated(context.instance, list(check_keys.values()))
        held: list[str] = []
        waiting: list[Waiting] = []
        running: list[str] | None = None
        for spec in members:
            alarms = [alarm_in(check, records.get(check_keys[spec.name, check])) for check in ALARMS]
            alarm = max(filter(None, alarms), key=lambda item: item.record, default=None)
            seen = cursor.get(spec.name, {})
            if alarm is None or alarm.record <= int(seen.get("record", 0)):
                continue
            at = partitions[spec.cadence].time_window_for_partition_key(alarm.partition).end
            at = datetime.fromisoformat(alarm.as_of) if alarm.as_of else at
            if running is None:
                running = looping(context.instance, (member.cadence for member in members))
            if spec.name in running:
                held.append(f"{spec.name}: a loop is running")
            elif not cooled_down(seen.get("at"), at, timedelta(hours=spec.cooldown_hours)):
                held.append(f"{spec.name}: in cooldown since {seen['at']}")
            elif reason := acknowledged(store, spec.name, alarm):
                context.log.info(f"{spec.name}: the alarm since {alarm.opened} is acknowledged: {reason}")
                cursor[spec.name] = {**seen, "record": str(alarm.record)}
            else:
                waiting.append(Waiting(spec, alarm, at))
        starting, later = chosen(waiting, len(running or ()), max_loops)
        for item in starting:
            cursor[item.spec.name] = {**{k: str(v) for k, v in asdict(item.alarm).items()}, "at": item.at.isoformat()}
        held += [f"{item.spec.name}: {max_loops} loops run already, heavier models go first" for item in later]
        requests = [request(item.spec, item.alarm) for item in starting]
        if requests and held:
            context.log.info("; ".join(held))
        skipped = None if requests else "; ".join(held) or "no new alarm"
        return dg.SensorResult(run_requests=requests, skip_reason=skipped, cursor=json.dumps(cursor))

    return sensor


def request(spec: ModelSpec, alarm: Alarm) -> dg.RunRequest:
    """The run that answers an alarm; the same alarm asks for the same run."""
    return dg.RunRequest(
        run_key=f"{spec.name}:{alarm.record}",
        job_name=job_name("improve", spec.cadence),
        partition_key=alarm.partition,
        asset_selection=keys(spec.name, rooms_of(spec, IMPROVE)),
        tags={
            **{"model": spec.name, "trigger": f"drift {alarm.check}", "rollout/model": spec.name},
            **({AS_OF_TAG: alarm.as_of} if alarm.as_of else {}),
        },
    )
