"""The shadow room's door."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd

from assets.champion import champion
from assets.decision import Decision
from assets.door import decision_key, gate, interval, record, room
from assets.drift.reference import Reference
from assets.model import Model
from assets.scoring import as_served, score
from assets.shadow.expected import Pair
from assets.shadow.judge import judge
from assets.shadow.picture import figure, sparkline
from assets.shadow.realised import GATE, Past, history, pending, realised
from assets.shadow.settings import ShadowSettings
from assets.shadow.several import Contender, judge_all
from assets.snapshot.asset import take
from assets.snapshot.maturity import matured
from assets.task import answers
from resources.lineage import Lineage
from resources.store import Store
from resources.traffic import Traffic

# Columns of the log that a comparison reads, beside the scores and those that the settings name.
JUDGED = ("key", "event_time", "known_at", "label", "failed", "reports", "corrected")
# A realised gain costs a fit: what has waited longer is told by the next evaluations.
MOST_AT_ONCE = 4


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
    """Champion and challengers fitted before the evaluation window, on its logged and labelled requests."""
    traffic.flush()
    current = champion(model.name, lineage, store)
    if current is None:
        return judge(model.name, _no_pairs(settings), settings, as_of, {})
    # What the champion was trained on proves nothing about it.
    first, matured_at = settings.window(as_of)
    start, inputs = max(first, Reference.from_bytes(current.reference).end), {"champion": str(current.version)}
    room = _Room(model, settings, store, lineage, traffic, seed)
    logged = room.logged(start, matured_at, as_of) if start < matured_at else pd.DataFrame()
    if logged.empty:
        return judge(model.name, _no_pairs(settings), settings, as_of, inputs)
    features = model.registry.resolve(model.feature_set, start).features
    pairs = room.pairs(logged, current.version, features)
    if logged["label"].isna().all():
        return judge(model.name, pairs.assign(challenger=np.nan), settings, as_of, inputs)
    looks = {item.name: timedelta(days=item.lookback_days) for item in settings.challengers}
    contenders = {name: room.contender(logged, start, look) for name, look in (looks or {"default": lookback}).items()}
    known = room.learned(as_of, lookback) if settings.rule == "expected_loss" else []
    return judge_all(model.name, pairs, contenders, settings, as_of, inputs, known)


@dataclass(frozen=True, slots=True)
class _Room:
    """The ports of one evaluation, and what is asked of them."""

    model: Model
    settings: ShadowSettings
    store: Store
    lineage: Lineage
    traffic: Traffic
    seed: int

    def logged(self, start: datetime, end: datetime, as_of: datetime) -> pd.DataFrame:
        """Every request of [start, end), with its label where one is known; those that got no answer come last."""
        answered = self.traffic.outcomes(self.model.name, start, end, as_of)
        failed = self.traffic.failures(self.model.name, start, end)
        failed = failed[~failed["request_id"].isin(answered["request_id"])]
        n = len(answered)
        both = answered if failed.empty else answered.reindex(range(n + len(failed)))
        for name, column in (("key", "request_id"), ("event_time", "event_time")):
            both.loc[n:, name] = failed[column].to_numpy()
        return both.assign(failed=np.arange(len(both)) >= n)

    def pairs(self, logged: pd.DataFrame, version: int, features: Mapping[str, str]) -> pd.DataFrame:
        """What is judged, but for the challenger. Who lacks a label is scored too: are they like the others?"""
        answered, scores = ~logged["failed"].to_numpy(), np.full(len(logged), np.nan)
        scores[answered] = score(self.lineage.onnx(self.model.name, version), logged[answered], features)
        return logged[[*JUDGED, *self.settings.columns]].assign(champion=scores)

    def contender(self, logged: pd.DataFrame, at: datetime, lookback: timedelta) -> Contender:
        """A challenger fitted on what was known at an instant, and its scores of the labelled requests."""
        past = take(self.model, self.store, at - lookback, at, at)
        estimator = self.model.fit(matured(past.frame, past.features.label, at), past.features, self.seed)
        labelled, scores = logged["label"].notna().to_numpy(), np.full(len(logged), np.nan)
        rows = as_served(logged[labelled], past.features.features)
        scores[labelled] = answers(estimator, rows, self.settings.task)
        return Contender(lookback / timedelta(days=1), scores, past.digest)

    def learned(self, as_of: datetime, lookback: timedelta) -> list[Pair]:
        """What became of past decisions, known at `as_of`; what can be told since the last time is recorded first."""
        records = self._records(GATE)
        past = [found for record in self._records("shadow") if (found := Past.of(record)) is not None]
        for item in pending(past, records, self.settings, as_of)[:MOST_AT_ONCE]:
            decision = self._told(item, timedelta(days=item.lookback_days) if item.lookback_days else lookback)
            self.store.put(decision_key(decision), decision.to_json())
            records.append(decision.to_dict())
        return history(records, self.settings, as_of)

    def _told(self, past: Past, lookback: timedelta) -> Decision:
        """The champion of a past decision against the model refitted then, on the requests that came after it."""
        end = past.at + timedelta(days=self.settings.learning.horizon_days)
        logged = self.logged(past.at, end, past.told_at(self.settings))
        if logged["label"].notna().any():
            contender = self.contender(logged, past.at, lookback)
            features = self.model.registry.resolve(self.model.feature_set, past.at).features
            pairs = self.pairs(logged, past.champion, features).assign(challenger=contender.scores)
            inputs = {"champion": str(past.champion), "challenger_snapshot": contender.snapshot}
        else:
            pairs, inputs = _no_pairs(self.settings), {"champion": str(past.champion)}
        return realised(self.model.name, past, pairs, self.settings, inputs)

    def _records(self, gate: str) -> list[dict[str, Any]]:
        return [json.loads(self.store.get(key)) for key in self.store.keys(f"decisions/{self.model.name}/{gate}/")]


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
