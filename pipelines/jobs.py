"""A few named jobs for all models: one job a model would be quadratic in their number."""

from collections.abc import Iterable

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from pipelines.factory import IMPROVE, PAGE, RELEASE, WATCH, rooms_of
from pipelines.spec import ModelSpec

PURPOSES = {
    "watch": (WATCH, "Snapshot and drift check of one partition."),
    "improve": (IMPROVE, "From an alarm to a promoted challenger, or to the record of why not."),
    "page": (PAGE, "The Evidently report of a window that was judged."),
    "release": (RELEASE, "Retrain, profile and roll out without asking whether it pays: a first version."),
}


def job_name(purpose: str, cadence: str) -> str:
    """One job a purpose and cadence, for a job's assets share their partitions.

    >>> job_name("watch", "weekly")
    'watch_weekly'
    """
    return f"{purpose}_{cadence}"


def keys(model: str, rooms: Iterable[str]) -> list[dg.AssetKey]:
    """Asset keys of some rooms of a model."""
    return [dg.AssetKey([model, room]) for room in rooms]


def build_jobs(specs: Iterable[ModelSpec]) -> list[UnresolvedAssetJobDefinition]:
    """The jobs of every cadence in use. In one process: a step process would cost more than most steps."""
    by_cadence: dict[str, list[ModelSpec]] = {}
    for spec in specs:
        by_cadence.setdefault(spec.cadence, []).append(spec)
    return [
        dg.define_asset_job(
            job_name(purpose, cadence),
            selection=dg.AssetSelection.assets(
                *[key for spec in members for key in keys(spec.name, rooms_of(spec, rooms))]
            ),
            executor_def=dg.in_process_executor,
            description=description,
        )
        for cadence, members in by_cadence.items()
        for purpose, (rooms, description) in PURPOSES.items()
    ]
