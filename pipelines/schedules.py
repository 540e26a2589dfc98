"""Schedules: snapshot and drift of every model by its cadence."""

from collections.abc import Iterable, Iterator

import dagster as dg

from pipelines.compute import run_tags
from pipelines.factory import WATCH
from pipelines.jobs import job_name, keys
from pipelines.spec import ModelSpec

# A few minutes after the hour: the last requests of a partition are logged and their labels have begun to arrive.
CRON = {"hourly": "5 * * * *", "daily": "15 0 * * *", "weekly": "30 0 * * {weekday}"}


def build_schedules(
    specs: Iterable[ModelSpec], partitions: dict[str, dg.TimeWindowPartitionsDefinition]
) -> list[dg.ScheduleDefinition]:
    """One schedule a cadence; each tick requests one run a model. They start stopped: turn them on in the UI."""
    by_cadence: dict[str, list[ModelSpec]] = {}
    for spec in specs:
        by_cadence.setdefault(spec.cadence, []).append(spec)
    return [_schedule(cadence, members, partitions[cadence]) for cadence, members in by_cadence.items()]


def _schedule(
    cadence: str, members: list[ModelSpec], partitions: dg.TimeWindowPartitionsDefinition
) -> dg.ScheduleDefinition:
    cron = CRON[cadence].format(weekday=(members[0].start.weekday() + 1) % 7)

    @dg.schedule(
        name=job_name("watch", cadence),
        job_name=job_name("watch", cadence),
        cron_schedule=cron,
        execution_timezone="UTC",
        description=f"Snapshot and drift check of every {cadence} model, for the partition that just ended.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        ended = partitions.get_prev_partition_window(context.scheduled_execution_time)
        if ended is None or ended.start < partitions.start:
            return
        partition = partitions.get_partition_key_for_timestamp(ended.start.timestamp())
        for spec in members:
            yield dg.RunRequest(
                run_key=f"{spec.name}:{partition}",
                partition_key=partition,
                asset_selection=keys(spec.name, WATCH),
                tags={"model": spec.name, "trigger": "schedule", **run_tags(spec.resources)},
            )

    return schedule
