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
# Where steps run: in the process of their run, or each in a pod of its own as its tags say.
IN_PROCESS, KUBERNETES = "in_process", "kubernetes"
# A finished pod stays for an hour: Dagster takes one that is gone too early for a failure.
POD_KEPT_S = 3600


def step_executor(name: str) -> dg.ExecutorDefinition:
    """The executor of that name."""
    if name == IN_PROCESS:
        return dg.in_process_executor
    from dagster_k8s import k8s_job_executor

    kept = {"job_spec_config": {"ttl_seconds_after_finished": POD_KEPT_S}}
    # Owner references: the pod of a step goes with that of its run, also when that dies.
    config = {"step_k8s_config": kept, "enable_owner_references": True}
    executor: dg.ExecutorDefinition = k8s_job_executor.configured(config, name=KUBERNETES)
    return executor


def job_name(purpose: str, cadence: str) -> str:
    """One job a purpose and cadence, for a job's assets share their partitions.

    >>> job_name("watch", "weekly")
    'watch_weekly'
    """
    return f"{purpose}_{cadence}"


def keys(model: str, rooms: Iterable[str]) -> list[dg.AssetKey]:
    """Asset keys of some rooms of a model."""
    return [dg.AssetKey([model, room]) for room in rooms]


def build_jobs(specs: Iterable[ModelSpec], executor: str = IN_PROCESS) -> list[UnresolvedAssetJobDefinition]:
    """The jobs of every cadence in use. executor: of the rooms that have pods of their own on Kubernetes."""
    by_cadence: dict[str, list[ModelSpec]] = {}
    for spec in specs:
        by_cadence.setdefault(spec.cadence, []).append(spec)
    return [
        dg.define_asset_job(
            job_name(purpose, cadence),
            selection=dg.AssetSelection.assets(
                *[key for spec in members for key in keys(spec.name, rooms_of(spec, rooms))]
            ),
            # A pod a step costs more than watching does.
            executor_def=step_executor(IN_PROCESS if purpose in ("watch", "page") else executor),
            description=description,
        )
        for cadence, members in by_cadence.items()
        for purpose, (rooms, description) in PURPOSES.items()
    ]
