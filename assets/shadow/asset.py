"""The shadow room's door."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import dagster as dg
import pandas as pd

from assets.champion import champion
from assets.decision import Decision
from assets.door import gate, interval, record, room
from assets.drift.reference import Reference
from assets.model import Model
from assets.scoring import as_served, score
from assets.shadow.judge import judge
from assets.shadow.picture import figure, sparkline
from assets.shadow.settings import ShadowSettings
from assets.snapshot.asset import take
from assets.snapshot.maturity import matured
from resources.lineage import Lineage
from resources.store import Store
from resources.traffic import Traffic


def shadow_evaluation(
    model: Model, partitions: dg.PartitionsDefinition, settings: ShadowSettings, lookback: timedelta, seed: int
) -> dg.AssetsDefinition:
    """`[model]/shadow_evaluation`: does retraining pay, on the very requests the champion answered?"""

    @room(
        model,
        "shadow_evaluation",
        partitions,
        "A challenger fitted on what was known before, scored beside the champion on the same requests.",
        kinds={"onnx", "s3", "mlflow"},
        after="drift_report",
        checks=settings.checks,
        gate=True,
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: dg.ResourceParam[Store],
        lineage: dg.ResourceParam[Lineage],
        traffic: dg.ResourceParam[Traffic],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        as_of = interval(context).as_of
        decision = evaluate(model, settings, store, lineage, traffic, as_of, lookback, seed)
        drawn = bool(decision.details.get("path"))
        metadata = record(
            context,
            decision,
            store,
            lineage,
            artifacts={"shadow.png": figure(decision.details)} if drawn else {},
            picture=sparkline(decision.details) if drawn else None,
        )
        yield from gate(context, decision, metadata, settings.checks)

    return asset


def evaluate(
    model: Model,
    settings: ShadowSettings,
    store: Store,
    lineage: Lineage,
    traffic: Traffic,
    as_of: datetime,
    lookback: timedelta,
    seed: int,
) -> Decision:
    """Champion and a challenger fitted before the evaluation window, on its logged and labelled requests."""
    traffic.flush()
    current = champion(model.name, lineage, store)
    if current is None:
        return judge(model.name, _no_pairs(settings), settings, as_of, {})
    # What the champion was trained on proves nothing about it.
    first, matured_at = settings.window(as_of)
    start = max(first, Reference.from_bytes(current.reference).end)
    logged = traffic.labelled(model.name, start, matured_at, as_of=as_of) if start < matured_at else pd.DataFrame()
    if logged.empty:
        return judge(model.name, _no_pairs(settings), settings, as_of, {"champion": str(current.version)})
    past = take(model, store, start - lookback, start, start)
    features = past.features.features
    challenger = model.fit(matured(past.frame, past.features.label, start), past.features, seed)
    pairs = logged[["key", "event_time", "known_at", "label", *settings.columns]].assign(
        champion=score(lineage.onnx(model.name, current.version), logged, features),
        challenger=challenger.predict_proba(as_served(logged, features))[:, 1],
    )
    inputs = {"champion": str(current.version), "challenger_snapshot": past.digest}
    return judge(model.name, pairs, settings, as_of, inputs)


def _no_pairs(settings: ShadowSettings) -> pd.DataFrame:
    times = pd.Series([], dtype="datetime64[us, UTC]")
    numbers = pd.Series([], dtype="float64")
    return pd.DataFrame(
        {
            "key": pd.Series([], dtype="object"),
            "event_time": times,
            "known_at": times,
            "label": numbers,
            "champion": numbers,
            "challenger": numbers,
            **{name: pd.Series([], dtype="object") for name in settings.columns},
        }
    )
