"""The sensor that turns what the observer sees live into a drift check at once."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import dagster as dg
from dagster import RunsFilter
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.door import AS_OF_TAG
from pipelines.factory import WATCH
from pipelines.jobs import job_name, keys
from pipelines.sensors import ACTIVE
from pipelines.spec import ModelSpec
from resources.store import Store


def build_live_sensor(
    specs: Iterable[ModelSpec],
    partitions: Mapping[str, dg.TimeWindowPartitionsDefinition],
    jobs: Iterable[UnresolvedAssetJobDefinition],
) -> dg.SensorDefinition:
    """One sensor for all models. The newest alarm of a model asks for one check of the block that it speaks of."""
    members = tuple(specs)

    @dg.sensor(
        name="check_on_live_drift",
        jobs=[job for job in jobs if job.name.startswith("watch_")],
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="What the observer sees drift is checked at once; the scheduled check is the safety net.",
    )
    def sensor(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult:
        cursor: dict[str, str] = json.loads(context.cursor or "{}")
        held, requests = [], []
        for spec in members:
            alarms = store.keys(f"live/{spec.name}/alarms/", after=cursor.get(spec.name, ""))
            if not alarms:
                continue
            job = job_name("watch", spec.cadence)
            busy = RunsFilter(job_name=job, tags={"model": spec.name}, statuses=ACTIVE)
            if context.instance.get_runs_count(busy):
                held.append(f"{spec.name}: a check is running")
                continue
            at = alarm_at(alarms[-1])
            partition = partitions[spec.cadence].get_partition_key_for_timestamp(at.timestamp())
            if partitions[spec.cadence].has_partition_key(partition):
                requests.append(request(spec, job, partition, at))
            else:  # a clock of the clients that is ahead: no partition will ever speak of it
                held.append(f"{spec.name}: {at:%Y-%m-%d %H:%M} UTC lies outside its partitions")
            cursor[spec.name] = alarms[-1]
        skipped = None if requests else "; ".join(held) or "no new alarm"
        return dg.SensorResult(run_requests=requests, skip_reason=skipped, cursor=json.dumps(cursor))

    return sensor


def alarm_at(key: str) -> datetime:
    """The event time that an alarm's key carries.

    >>> alarm_at("live/churn/alarms/1704412800000000-7.json").isoformat()
    '2024-01-05T00:00:00+00:00'
    """
    return datetime.fromtimestamp(int(key.rpartition("/")[2].partition("-")[0]) / 1e6, UTC)


def request(spec: ModelSpec, job: str, partition: str, at: datetime) -> dg.RunRequest:
    """The check that answers an alarm; the same alarm asks for the same run."""
    return dg.RunRequest(
        run_key=f"{spec.name}:live:{at.isoformat()}",
        job_name=job,
        partition_key=partition,
        asset_selection=keys(spec.name, WATCH),
        tags={"model": spec.name, "trigger": "live drift", AS_OF_TAG: at.isoformat()},
    )
