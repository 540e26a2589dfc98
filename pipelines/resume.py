"""A sensor for rollouts whose driver died: each is resumed within a minute, by one run."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster import RunsFilter
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.canary.asset import ONCE, RESUMES
from assets.canary.driver import load
from assets.canary.lease import orphaned
from assets.canary.rollout import Rollout
from pipelines.factory import rooms_of
from pipelines.jobs import job_name, keys
from pipelines.sensors import ACTIVE
from pipelines.spec import ModelSpec
from resources.store import Store

# A run that was asked for and ended without taking the lease is asked for again after this long.
AGAIN = timedelta(seconds=60)


def lost_lease(rollout: Rollout) -> str:
    """Names one death of a driver: the next driver's lease ends at another instant."""
    return f"{rollout.model}:{(rollout.lease_until or rollout.started_at).isoformat()}"


def build_resume_sensor(
    specs: Iterable[ModelSpec], jobs: Iterable[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """One sensor for all models. Two drivers never act even so: the store's compare-and-swap sees to that."""
    members = tuple(specs)

    @dg.sensor(
        name="resume_rollouts",
        jobs=[job for job in jobs if job.name.startswith("improve_")],
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="A rollout whose driver fell silent goes on where it was.",
    )
    def sensor(context: dg.SensorEvaluationContext, store: dg.ResourceParam[Store]) -> dg.SensorResult:
        now, asked = datetime.now(UTC), json.loads(context.cursor or "{}")
        held, requests, kept = [], [], {}
        for spec in members:
            found = load(store, spec.name)
            if found is None or not orphaned(found[0], now) or not found[0].partition:
                continue
            name = lost_lease(found[0])
            before = asked.get(spec.name, {})
            tries = int(before["tries"]) if before.get("name") == name else 0
            kept[spec.name] = before
            if tries and _running(context.instance, name):
                held.append(f"{spec.name}: is being resumed")
            elif tries and now - datetime.fromisoformat(before["at"]) < AGAIN:
                held.append(f"{spec.name}: asked for at {before['at']}")
            else:
                give_up(context.instance, found[0].driver)
                kept[spec.name] = {"name": name, "tries": tries + 1, "at": now.isoformat()}
                requests.append(request(spec, found[0], tries))
        skipped = None if requests else "; ".join(held) or "every rollout has a driver"
        return dg.SensorResult(run_requests=requests, skip_reason=skipped, cursor=json.dumps(kept))

    return sensor


def request(spec: ModelSpec, rollout: Rollout, tries: int) -> dg.RunRequest:
    """The run that goes on with a rollout; the same death and try ask for the same run."""
    name = lost_lease(rollout)
    return dg.RunRequest(
        run_key=f"{name}:{tries}",
        job_name=job_name("improve", spec.cadence),
        partition_key=rollout.partition,
        asset_selection=keys(spec.name, rooms_of(spec, ("canary_rollout",))),
        tags={"model": spec.name, "trigger": "driver died", RESUMES: name, "rollout/model": spec.name, **ONCE},
    )


def give_up(instance: dg.DagsterInstance, driver: str | None) -> None:
    """The dead driver's run has failed, whether Dagster has seen it or not: it must not hold the model's slots.

    Dagster frees the slots of a run that it saw fail as well, but minutes later.
    """
    run = instance.get_run_by_id(driver) if driver else None
    if run is None:
        return
    if not run.is_finished:
        instance.report_run_failed(run, "its rollout's lease ran out: the process died, or hangs")
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def _running(instance: dg.DagsterInstance, name: str) -> bool:
    return instance.get_runs_count(RunsFilter(tags={RESUMES: name}, statuses=ACTIVE)) > 0
