"""The retrain room's door."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import pandas as pd

from assets.cells import Cells, build_cells, cells_key
from assets.champion import champion, reference_key
from assets.door import check_results, gate, interval, record, room
from assets.drift.labels import losses
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings
from assets.model import Model
from assets.recipe import icon
from assets.reporting import Report, silent
from assets.retrain import child
from assets.retrain.ending import RESTARTS, Ending, cause_of, explained
from assets.retrain.evaluation import Evaluated, Rival, evaluated, job_of, too_little
from assets.retrain.fit import time_split
from assets.retrain.full_fit import FullFit, Job, full_fit
from assets.retrain.gates import loss_bound
from assets.retrain.importance import importance
from assets.retrain.measures import harm_scale
from assets.retrain.picture import importance_figure
from assets.retrain.schema import ACCEPT_TAG, schema_change
from assets.retrain.settings import TrainingSettings
from assets.retrain.window import Window
from assets.retrain.window import window as chosen_window
from assets.scoring import Scorer, score
from assets.snapshot.asset import Snapshot, take
from assets.verdict import Verdict
from resources import limited
from resources.lineage import Lineage, RegisteredVersion
from resources.mlflow_entities import Dataset
from resources.store import Store

CHECKS = {
    "floor": "Does the candidate reach its floor on a later hold-out: AUC, or the error it saves?",
    "champion": "Does it lose no more than the champion, on rows that neither was fitted on?",
    "slices": "Does no slice of the hold-out get worse by more than the spec allows?",
    "calibration": "Do its chances match the frequencies of the hold-out?",
    "parity": "Does the exported ONNX answer as the fitted model does?",
    "schema": "Are its inputs those that are served, or was a change approved?",
}
GIB = 2**30


def candidate_model(
    model: Model,
    partitions: dg.PartitionsDefinition,
    settings: TrainingSettings,
    drift: DriftSettings,
    cells: int = 0,
    memory_gib: float | None = None,
) -> dg.AssetsDefinition:
    """`[model]/candidate_model`: fitted, gated, exported to ONNX, registered. cells: for the canary's coverage.

    memory_gib: the fit gets a process of its own, with what this one leaves of it. Without it the fit runs in this one,
    which saves its imports.
    """

    @room(
        model,
        "candidate_model",
        partitions,
        "A full fit by the recipe: gated on a later hold-out, by slice and against the champion.",
        kinds={icon(model.recipe_file), "onnx", "mlflow"},
        after="shadow_evaluation",
        checks=CHECKS,
        gate=True,
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: dg.ResourceParam[Store],
        lineage: dg.ResourceParam[Lineage],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        as_of = interval(context).as_of
        window = _window(model.name, store, lineage, settings, as_of)
        # So many days before the hold-out as well: the fit that is judged sees as much as the one that is registered.
        start = as_of - window.length - timedelta(days=settings.holdout_days)
        snapshot = take(model, store, start, as_of, as_of)
        data = Dataset(f"{model.name} snapshot", snapshot.digest, snapshot.key, len(snapshot.frame))
        features, label = snapshot.features.features, snapshot.features.label
        earlier, holdout = time_split(snapshot.frame, label, as_of, settings.holdout_days)
        if earlier.empty or holdout.empty:
            decision = too_little(model.name, len(earlier), len(holdout), as_of)
            yield from gate(context, decision, record(context, decision, store, lineage, dataset=data), CHECKS)
            return
        context.log.info(
            f"fitting on {len(earlier)} rows of {window.days:g} days, judging on the {len(holdout)} that came after"
        )
        recipe, frame = model.recipe(), snapshot.frame
        job = job_of(recipe, model.task, frame, features, label, earlier, holdout, window, as_of, settings.seed)
        fitted, training = _fit(context, job, lineage, model.name, data, memory_gib)
        rival = _rival(context, model.name, lineage, store, job, holdout, settings)
        made = evaluated(model.name, job, fitted, holdout, rival, settings, window, snapshot.digest, as_of, training)
        metadata = record(context, made.decision, store, lineage, artifacts=made.pictures, dataset=data)
        if training is not None:
            metadata["training_run"] = dg.MetadataValue.url(lineage.page(training))
        if made.decision.verdict is not Verdict.PASS:
            yield from gate(context, made.decision, metadata, CHECKS)
            return
        version, about = _register(context, model.name, lineage, store, made, snapshot, drift)
        if cells:
            distilled = _cells(made, rival, snapshot, lineage, model.name, cells)
            store.put(cells_key(model.name, version.version), distilled.to_bytes())
        lineage.set_alias(model.name, "challenger", version.version)
        yield dg.MaterializeResult(
            asset_key=context.asset_key,
            metadata=metadata | about,
            data_version=dg.DataVersion(str(version.version)),
            tags={"mlflow/run_id": version.run_id, "mlflow/version": str(version.version)},
        )
        yield from check_results(context, made.decision, CHECKS)

    return asset


def _window(name: str, store: Store, lineage: Lineage, settings: TrainingSettings, as_of: datetime) -> Window:
    prefix = f"decisions/{name}/shadow/{as_of:%Y%m%dT%H%MZ}/"
    records = [(Path(key).stem, json.loads(store.get(key))) for key in store.keys(prefix)]
    current = lineage.version_of(name, "champion")
    return chosen_window(records, current.version if current else None, settings.lookback_days)


def _fit(
    context: dg.AssetExecutionContext,
    job: Job,
    lineage: Lineage,
    model: str,
    data: Dataset,
    memory_gib: float | None,
) -> tuple[FullFit, str | None]:
    """The fit, and the run of MLflow that it was told to while it went on: none for a recipe that tells nothing."""
    if not job.recipe.reports:
        return _placed(context, job, silent, memory_gib), None
    tags = {"dagster.asset": context.asset_key.to_user_string(), "dagster.partition": context.partition_key}
    with lineage.training(model, dagster_run_id=context.run_id, tags=tags, dataset=data) as told:
        fitted = _placed(context, job, told, memory_gib)
    if told.why:
        context.log.warning(f"{told.dropped} reports of the fit are missing in MLflow: {told.why}")
    return fitted, told.run_id


def _placed(context: dg.AssetExecutionContext, job: Job, report: Report, memory_gib: float | None) -> FullFit:
    """In this process, or in one of its own whose end does not end ours."""
    if memory_gib is None:
        return full_fit(job, report)
    import psutil

    def heard(line: str) -> None:
        if (found := child.heard(line)) is not None:
            report(*found)

    limit = max(int(memory_gib * GIB) - psutil.Process().memory_info().rss, 0)
    with TemporaryDirectory() as place:
        folder = Path(place)
        child.write_job(folder, job)
        ended = limited.run([sys.executable, "-m", child.__name__, place, str(limit)], heard)
        if ended.code == 0:
            return child.read_result(folder)
        ending = Ending(ended.code, error=child.read_error(folder), said=ended.said, oom_kills=ended.oom_kills)
    raise _consequence(context, ending, memory_gib)


def _consequence(context: dg.AssetExecutionContext, ending: Ending, memory_gib: float) -> Exception:
    """What Dagster is told: to start the step again, or that it failed and why."""
    cause = cause_of(ending)
    again = context.retry_number < RESTARTS[cause]
    why = explained(ending, memory_gib, again)
    if again:
        context.log.warning(why)
        return dg.RetryRequested(max_retries=RESTARTS[cause])
    metadata = {
        "cause": dg.MetadataValue.text(cause.value),
        "exit_code": dg.MetadataValue.int(ending.code or 0),
        "memory_gib": dg.MetadataValue.float(float(memory_gib)),
        "said": dg.MetadataValue.text(ending.error or ending.said),
    }
    return dg.Failure(why, metadata=metadata, allow_retries=False)


def _rival(
    context: dg.AssetExecutionContext,
    model: str,
    lineage: Lineage,
    store: Store,
    job: Job,
    holdout: pd.DataFrame,
    settings: TrainingSettings,
) -> Rival:
    current = champion(model, lineage, store)
    if current is None:
        return Rival()
    scorer = Scorer(lineage.onnx(model, current.version))
    change = schema_change(scorer.features, job.features, settings.accept_schema, context.run.tags.get(ACCEPT_TAG, ""))
    scores = scorer(holdout, scorer.features) if change.comparable else None
    return Rival(current.version, change, scores, Reference.from_bytes(current.reference).end)


def _register(
    context: dg.AssetExecutionContext,
    model: str,
    lineage: Lineage,
    store: Store,
    made: Evaluated,
    snapshot: Snapshot,
    drift: DriftSettings,
) -> tuple[RegisteredVersion, dict[str, dg.MetadataValue]]:
    """The version with its reference, and what its page shows of it."""
    job, holdout, decision = made.job, made.holdout, made.decision
    days = pd.to_datetime(holdout["event_time"]).dt.floor("D").to_numpy()
    scale = harm_scale(made.labels, made.scores, job.task)
    bound = loss_bound(losses(made.labels, made.scores, scale), days)
    weights = importance(made.fitted.onnx, holdout, job.features, job.target, job.seed)
    known = made.seen(snapshot.frame)
    answered = known.assign(answer=score(made.fitted.onnx, known, job.features))
    reference = build_reference(answered, job.features, weights, drift, bound, scale)
    origin = {
        "decision": decision.digest,
        "as_of": decision.as_of.isoformat(),
        "source": "trimtab",
        "dagster.asset": context.asset_key.to_user_string(),
        "dagster.partition": context.partition_key,
    }
    version = lineage.register(
        model,
        made.fitted.onnx,
        dagster_run_id=context.run_id,
        snapshot_digest=snapshot.digest,
        snapshot_uri=snapshot.key,
        params={
            "recipe": job.recipe.digest,
            "framework": made.fitted.framework,
            "seed": str(job.seed),
            "rows": str(len(known)),
        },
        metrics={e.name: e.statistic for e in decision.evidence if e.statistic is not None},
        artifacts={**made.pictures, **importance_figure(weights), "decision.json": decision.to_json()},
        tags=origin | ({"training.run_id": made.training} if made.training else {}),
    )
    store.put(reference_key(model, version.version), reference.to_bytes())
    return version, {
        "version": dg.MetadataValue.int(version.version),
        "mlflow_version": dg.MetadataValue.url(lineage.model_page(model, version.version)),
        "framework": dg.MetadataValue.text(made.fitted.framework),
        "snapshot": dg.MetadataValue.text(snapshot.key),
        "loss_bound": dg.MetadataValue.float(round(bound, 5)),
        "weights": dg.MetadataValue.json({name: round(value, 4) for name, value in weights.items()}),
    }


def _cells(made: Evaluated, rival: Rival, snapshot: Snapshot, lineage: Lineage, model: str, cells: int) -> Cells:
    """Distilled from what serves now, where the challenger has to do no worse; from itself where that cannot answer."""
    job = made.job
    known = made.seen(snapshot.frame)
    answers = rival.version is not None and rival.scores is not None
    serving = lineage.onnx(model, rival.version) if answers and rival.version else made.fitted.onnx
    scorer = Scorer(serving)
    return build_cells(known, job.features, scorer(known, scorer.features), cells)
