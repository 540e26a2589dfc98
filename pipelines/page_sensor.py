"""The sensor that has the Evidently report of a window drawn, beside the loop that an alarm starts."""

import json
from collections.abc import Iterable, Mapping

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord

from assets.door import AS_OF_TAG
from pipelines.factory import PAGE
from pipelines.jobs import job_name, keys
from pipelines.sensors import ALARMS, alarm_in, evaluated, looping
from pipelines.spec import ModelSpec


def build_page_sensor(specs: Iterable[ModelSpec], jobs: Iterable[UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    """One sensor for all models: a page for each alarm, or each check, as the spec's `evidently_report` wants."""
    members = tuple(spec for spec in specs if spec.drift.evidently_report != "never")

    @dg.sensor(
        name="draw_drift_page",
        jobs=[job for job in jobs if job.name.startswith("page_")],
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="After an alarm (or each check, if the spec says so) the Evidently report of the window is drawn.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cursor: dict[str, int] = json.loads(context.cursor or "{}")
        names = {(spec.name, check): _key(spec, check) for spec in members for check in ALARMS}
        records = evaluated(context.instance, list(names.values()))
        requests, held = [], []
        running: list[str] | None = None
        for spec in members:
            found = [records.get(names[spec.name, check]) for check in ALARMS]
            asked = [item for check, record in zip(ALARMS, found, strict=True) if (item := _asked(spec, check, record))]
            newest = max(asked, key=lambda item: item[0], default=None)
            if newest is None or newest[0] <= cursor.get(spec.name, 0):
                continue
            if running is None:
                running = looping(context.instance, (member.cadence for member in members))
            if running:  # nobody waits for a page, and clients wait for what a loop promotes
                held.append(f"{spec.name}: after the loops that run")
            else:
                cursor[spec.name] = newest[0]
                requests.append(request(spec, *newest))
        skipped = None if requests else "; ".join(held) or "no new alarm"
        return dg.SensorResult(run_requests=requests, skip_reason=skipped, cursor=json.dumps(cursor))

    return sensor


def _key(spec: ModelSpec, check: str) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(dg.AssetKey([spec.name, "drift_report"]), check)


def _asked(
    spec: ModelSpec, check: str, record: AssetCheckExecutionRecord | None
) -> tuple[int, Mapping[str, str]] | None:
    """(place in the event log, partition and instant) of an evaluation that wants a page."""
    event = record.event.dagster_event if record and record.event else None
    if record is None or event is None:
        return None
    if spec.drift.evidently_report == "on_alarm" and alarm_in(check, record) is None:
        return None
    told = event.asset_check_evaluation_data.metadata
    return record.id, {name: str(told[name].value) for name in ("partition", "as_of") if name in told}


def request(spec: ModelSpec, record: int, told: Mapping[str, str]) -> dg.RunRequest:
    """The run that draws the page of one evaluation; the same evaluation asks for the same run."""
    return dg.RunRequest(
        run_key=f"{spec.name}:page:{record}",
        job_name=job_name("page", spec.cadence),
        partition_key=told["partition"],
        asset_selection=keys(spec.name, PAGE),
        tags={
            **{"model": spec.name, "trigger": "drift report"},
            **({AS_OF_TAG: told["as_of"]} if "as_of" in told else {}),
        },
    )
