"""The retrain room's door."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import dagster as dg
import pandas as pd

from assets.cells import build_cells, cells_key
from assets.champion import champion, reference_key
from assets.decision import Decision, Evidence
from assets.door import check_results, gate, interval, record, room
from assets.drift.reference import build_reference
from assets.drift.settings import DriftSettings
from assets.model import Model
from assets.retrain.export import parity, to_onnx
from assets.retrain.fit import time_split
from assets.retrain.gates import judge, loss_bound
from assets.retrain.importance import importance
from assets.retrain.picture import figures
from assets.retrain.settings import TrainingSettings
from assets.scoring import score
from assets.snapshot.asset import take
from assets.snapshot.maturity import matured
from assets.verdict import Verdict
from resources.lineage import Lineage
from resources.store import Store

CHECKS = ("floor", "champion", "slices", "calibration", "parity", "schema")


def candidate_model(
    model: Model, partitions: dg.PartitionsDefinition, settings: TrainingSettings, drift: DriftSettings, cells: int = 0
) -> dg.AssetsDefinition:
    """`[model]/candidate_model`: fitted, gated, exported to ONNX, registered. cells: for the canary's coverage."""

    @room(
        model,
        "candidate_model",
        partitions,
        "A full fit by the recipe: gated on a later hold-out, by slice and against the champion.",
        kinds={"lightgbm", "onnx", "mlflow"},
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
        snapshot = take(model, store, as_of - timedelta(days=settings.lookback_days), as_of, as_of)
        features, label = snapshot.features.features, snapshot.features.label
        earlier, holdout = time_split(snapshot.frame, label, as_of, settings.holdout_days)
        if earlier.empty or holdout.empty:
            decision = _too_little(model.name, len(earlier), len(holdout), as_of)
            yield from gate(context, decision, record(context, decision, store, lineage), CHECKS)
            return
        context.log.info(f"fitting on {len(earlier)} rows, judging on the {len(holdout)} that came after")
        scores = score(to_onnx(model.fit(earlier, snapshot.features, settings.seed), features), holdout, features)
        current = champion(model.name, lineage, store)
        champion_scores = (
            score(lineage.onnx(model.name, current.version), holdout, features) if current is not None else None
        )

        # What is registered has seen the hold-out too: its gates were passed by the same recipe without it.
        known = matured(snapshot.frame, label, as_of)
        estimator = model.fit(known, snapshot.features, settings.seed)
        onnx = to_onnx(estimator, features)
        difference = parity(estimator, onnx, holdout, features)
        inputs = {"snapshot": snapshot.digest, "recipe": model.recipe().digest}
        if current is not None:
            inputs["champion"] = str(current.version)
        decision = judge(model.name, holdout, label, scores, champion_scores, settings, difference, as_of, inputs)
        pictures = figures(holdout[label].to_numpy(), scores, champion_scores)
        metadata = record(context, decision, store, lineage, artifacts=pictures)
        if decision.verdict is not Verdict.PASS:
            yield from gate(context, decision, metadata, CHECKS)
            return

        losses = (scores - holdout[label].to_numpy()) ** 2
        days = pd.to_datetime(holdout["event_time"]).dt.floor("D").to_numpy()
        bound = loss_bound(losses, days)
        weights = importance(onnx, holdout, features, label, settings.seed)
        answered = known.assign(answer=score(onnx, known, features))
        reference = build_reference(answered, features, weights, drift, bound)
        version = lineage.register(
            model.name,
            onnx,
            dagster_run_id=context.run_id,
            snapshot_digest=snapshot.digest,
            snapshot_uri=snapshot.key,
            params={"recipe": inputs["recipe"], "seed": str(settings.seed), "rows": str(len(known))},
            metrics={e.name: e.statistic for e in decision.evidence if e.statistic is not None},
            artifacts=pictures,
            tags={"as_of": as_of.isoformat(), "decision": decision.digest, "source": "trimtab"},
        )
        store.put(reference_key(model.name, version.version), reference.to_bytes())
        if cells:
            # Distilled from what serves now: there the challenger has to do no worse.
            serving = onnx if current is None else lineage.onnx(model.name, current.version)
            made = build_cells(known, features, score(serving, known, features), cells)
            store.put(cells_key(model.name, version.version), made.to_bytes())
        lineage.set_alias(model.name, "challenger", version.version)
        metadata |= {
            "version": version.version,
            "snapshot": snapshot.key,
            "loss_bound": round(bound, 5),
            "weights": dg.MetadataValue.json({name: round(value, 4) for name, value in weights.items()}),
        }
        yield dg.MaterializeResult(
            asset_key=context.asset_key, metadata=metadata, data_version=dg.DataVersion(str(version.version))
        )
        yield from check_results(context, decision, CHECKS)

    return asset


def _too_little(name: str, earlier: int, holdout: int, as_of: datetime) -> Decision:
    why = f"{earlier} labelled rows to fit on and {holdout} later ones to judge on: both are needed"
    return Decision(name, "retrain", as_of, why, (Evidence("floor", Verdict.INCONCLUSIVE, why),))
