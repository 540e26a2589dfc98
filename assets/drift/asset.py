"""The drift room's door."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
import pandas as pd

from assets.champion import Champion, champion
from assets.decision import Decision, Evidence
from assets.door import check_results, interval, record, room
from assets.drift.judge import judge
from assets.drift.picture import figure, sparkline
from assets.drift.reference import Reference
from assets.drift.settings import DriftSettings
from assets.model import Model
from assets.verdict import Verdict
from resources.lineage import Lineage
from resources.store import Store
from resources.traffic import Traffic

CHECKS = ("inputs", "harm", "schema", "freshness", "estimate", "joint", "rise", "labels")


def drift_report(
    model: Model, partitions: dg.PartitionsDefinition, settings: DriftSettings, label_delay: timedelta
) -> dg.AssetsDefinition:
    """`[model]/drift_report`: did the inputs move, is the champion harmed? Four checks decide, four are hints."""

    @room(
        model,
        "drift_report",
        partitions,
        "What serving saw against what the champion was trained on, and the champion's loss on labels.",
        kinds={"scipy", "s3", "mlflow"},
        after="feature_snapshot",
        checks=CHECKS,
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: dg.ResourceParam[Store],
        lineage: dg.ResourceParam[Lineage],
        traffic: dg.ResourceParam[Traffic],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        span = interval(context)
        current = champion(model.name, lineage, store)
        if current is None:
            decision = _no_champion(model.name, span.as_of)
        else:
            traffic.flush()
            decision = _judge(model.name, current, settings, traffic, store, span.start, span.end, label_delay)
        context.log.info(f"drift: {decision.verdict.name}: {decision.why}")
        # A quiet week has its sparkline; drawing the figure takes longer than judging the week.
        shown = decision.verdict is not Verdict.PASS and decision.details.get("days")
        artifacts = {"drift.png": figure(decision.details)} if shown else {}
        metadata = record(context, decision, store, lineage, artifacts=artifacts, picture=_picture(decision))
        yield dg.MaterializeResult(asset_key=context.asset_key, metadata=metadata)
        yield from check_results(context, decision, CHECKS)

    return asset


def _judge(
    name: str,
    current: Champion,
    settings: DriftSettings,
    traffic: Traffic,
    store: Store,
    start: datetime,
    end: datetime,
    label_delay: timedelta,
) -> Decision:
    reference = Reference.from_bytes(current.reference)
    labelled = traffic.labelled(name, start - label_delay, end, as_of=end)
    fresh = labelled[(labelled["known_at"] > start) & (labelled["version"] == str(current.version))]
    inputs = {"champion": str(current.version), "reference": reference.digest}
    previous = previous_details(store, name, start, str(current.version))
    window: pd.DataFrame = traffic.answers(name, start, end)
    return judge(name, reference, window, fresh, previous, settings, start, end, end, inputs)


def _picture(decision: Decision) -> str | None:
    days = decision.details.get("days", [])
    levels = [day["threshold"] for day in days if day["threshold"] is not None]
    aggregates = [day["aggregate"] for day in days if day["aggregate"] is not None]
    return sparkline(aggregates, levels[-1] if levels else None) if aggregates else None


def previous_details(store: Store, name: str, before: datetime, version: str) -> Mapping[str, Any] | None:
    """Details of the latest decision taken at or before an instant, if the same champion served then."""
    limit = f"decisions/{name}/drift/{before:%Y%m%dT%H%MZ}/~"
    keys = [key for key in store.keys(f"decisions/{name}/drift/") if key <= limit]
    if not keys:
        return None
    last = json.loads(store.get(keys[-1]))
    details: Mapping[str, Any] = last["details"]
    return details if last["inputs"].get("champion") == version else None


def _no_champion(name: str, as_of: datetime) -> Decision:
    why = "no champion serves yet: release a first version"
    evidence = tuple(Evidence(check, Verdict.INCONCLUSIVE, why) for check in CHECKS)
    return Decision(name, "drift", as_of, why, evidence)
