"""From a spec to Dagster definitions: six rooms a model, shared partitions a cadence."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

import dagster as dg

from assets.canary.asset import canary_rollout
from assets.drift.asset import drift_page, drift_report
from assets.fallback.asset import fallback_copy
from assets.model import Model
from assets.profile.asset import serving_profile
from assets.retrain.asset import candidate_model
from assets.shadow.asset import shadow_evaluation
from assets.snapshot.asset import feature_snapshot
from pipelines.compute import op_tags
from pipelines.spec import ModelSpec
from resources.errors import SpecError
from resources.features import FeatureRegistry

WATCH = ("feature_snapshot", "drift_report")
IMPROVE = ("shadow_evaluation", "candidate_model", "serving_profile", "canary_rollout")
RELEASE = IMPROVE[1:]
PAGE = ("drift_page",)
FALLBACK = "fallback_copy"


def build_model_defs(spec: ModelSpec, partitions: dg.PartitionsDefinition | None = None) -> dg.Definitions:
    """One model's six assets, in walking order, and a seventh where its spec asks for a fallback copy.

    Partitions default to the spec's own cadence and start.
    """
    partitions = partitions or partitions_by_cadence([spec])[spec.cadence]
    model = model_of(spec)
    lookback = timedelta(days=spec.training.lookback_days)
    return dg.Definitions(
        assets=[
            feature_snapshot(model, partitions),
            drift_report(model, partitions, spec.drift, timedelta(hours=spec.label_delay_hours)),
            drift_page(model, partitions),
            shadow_evaluation(model, partitions, spec.shadow, lookback, spec.training.seed),
            candidate_model(
                model,
                partitions,
                spec.training,
                spec.drift,
                spec.canary.coverage.cells,
                spec.resources.retrain.memory_gib,
            ),
            serving_profile(model, partitions, spec.profile),
            canary_rollout(model, partitions, spec.canary),
            *([fallback_copy(model, partitions, spec.fallback, spec.training)] if spec.fallback.enabled else []),
        ]
    )


def rooms_of(spec: ModelSpec, rooms: tuple[str, ...]) -> tuple[str, ...]:
    """The rooms of a model that a run of these walks through: after a rollout its fallback copy, if it keeps one."""
    return (*rooms, FALLBACK) if spec.fallback.enabled and rooms[-1:] == IMPROVE[-1:] else rooms


def model_of(spec: ModelSpec) -> Model:
    """What the rooms are told about a model."""
    return Model(
        name=spec.name,
        description=spec.description,
        owners=spec.owners,
        feature_set=spec.feature_set,
        registry=FeatureRegistry.load(spec.features),
        recipe_file=spec.recipe,
        op_tags=op_tags(spec.resources),
        task=spec.task,
    )


def partitions_by_cadence(specs: Iterable[ModelSpec]) -> Mapping[str, dg.TimeWindowPartitionsDefinition]:
    """One partitioning a cadence, from the earliest start: a job can only hold assets that share theirs."""
    starts: dict[str, ModelSpec] = {}
    for spec in specs:
        first = starts.setdefault(spec.cadence, spec)
        if spec.cadence == "weekly" and spec.start.weekday() != first.start.weekday():
            remedy = f"weekly models share one weekday: {first.name} starts on a {first.start:%A}"
            raise SpecError(f"model {spec.name}", "start", spec.start.isoformat(), remedy)
        if spec.start < first.start:
            starts[spec.cadence] = spec
    return {cadence: _partitions(spec) for cadence, spec in starts.items()}


def _partitions(spec: ModelSpec) -> dg.TimeWindowPartitionsDefinition:
    # The open partition is there as well: a live alarm asks for a check of it before it ends.
    match spec.cadence:
        case "hourly":
            return dg.HourlyPartitionsDefinition(spec.start, end_offset=1)
        case "daily":
            return dg.DailyPartitionsDefinition(spec.start, end_offset=1)
        case _:
            # Dagster counts weekdays from Sunday, Python from Monday.
            return dg.WeeklyPartitionsDefinition(spec.start, day_offset=(spec.start.weekday() + 1) % 7, end_offset=1)
