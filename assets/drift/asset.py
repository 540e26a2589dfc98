"""The drift room's door."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
import pandas as pd

from assets.champion import champion, champion_version
from assets.decision import Decision, Evidence
from assets.door import check_results, decision_key, interval, record, room
from assets.drift import alarms, history
from assets.drift.joint import LEAST_WINDOW
from assets.drift.judge import judge
from assets.drift.page import page
from assets.drift.picture import figure, sparkline
from assets.drift.reference import Reference
from assets.drift.replay import Basis, newest, seen
from assets.drift.settings import DriftSettings
from assets.model import Model
from assets.snapshot.profile import profile
from assets.verdict import Verdict
from resources.errors import NotFound
from resources.lineage import Lineage
from resources.store import Store
from resources.traffic import Traffic

CHECKS = {
    "inputs": "Are the served inputs as near to the training reference as in quiet times?",
    "harm": "Is the champion's loss on known labels no worse than it was?",
    "schema": "Do columns, types and categories fit the reference?",
    "freshness": "Does the inference log still fill?",
    "estimate": "Hint, never an alarm: the loss estimated without labels.",
    "joint": "Hint, never an alarm: can a classifier tell served rows from the reference's?",
    "rise": "Hint, never an alarm: did the loss step up within the window?",
    "labels": "Hint, never an alarm: do labels go missing unlike the rows they belong to?",
}
PAGE_FILE = "evidently.html"


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
        decision, window = decide(model.name, settings, label_delay, store, lineage, traffic, span.start, span.end)
        context.log.info(f"drift: {decision.verdict.name}: {decision.why}")
        # A quiet week has its sparkline; drawing the figure takes longer than judging the week.
        shown = decision.verdict is not Verdict.PASS and decision.details.get("days")
        artifacts = {"drift.png": figure(decision.details)} if shown else {}
        metadata = record(context, decision, store, lineage, artifacts=artifacts, picture=_picture(decision))
        profile_key = profile_key_of(decision)
        if window is not None:
            metadata |= {"profile": profile_key, "alarms": alarms.sentence(decision.details["alarms"])}
        yield dg.MaterializeResult(asset_key=context.asset_key, metadata=metadata)
        opened = decision.details.get("alarms", {}).get("open")
        yield from check_results(context, decision, CHECKS, {"alarm": opened} if opened else None)
        # After the alarm is out: whylogs takes its time. A profile carries its creation time and is written once.
        if window is not None and not store.keys(profile_key):
            store.put(profile_key, profile(window))

    return asset


def drift_page(model: Model, partitions: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """`[model]/drift_page`: the Evidently report of a window that was judged, for people."""

    @room(
        model,
        "drift_page",
        partitions,
        "The Evidently report of the window, drawn after an alarm or on demand; it decides nothing.",
        kinds={"evidently", "s3", "mlflow"},
        after="drift_report",
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: dg.ResourceParam[Store],
        lineage: dg.ResourceParam[Lineage],
        traffic: dg.ResourceParam[Traffic],
    ) -> dg.MaterializeResult:
        span = interval(context)
        keys = history.at(store.keys(history.prefix(model.name)), model.name, span.as_of)
        taken = _taken(store, keys, span.as_of)
        if taken is None:
            raise NotFound(f"{model.name} was not judged as of {span.as_of.isoformat()}: run its drift_report first")
        basis, found = taken
        reference = champion_version(model.name, int(basis.champion), store).reference
        window = seen(traffic.answers(model.name, span.start, span.end), basis.seen_until)
        html = page(reference, window, found)
        tags = {"as_of": span.as_of.isoformat(), "verdict": found["verdict"]}
        run = lineage.run(
            model.name, "drift_page", dagster_run_id=context.run_id, tags=tags, artifacts={PAGE_FILE: html}
        )
        link = dg.MetadataValue.url(lineage.file_page(model.name, run, PAGE_FILE))
        report = dg.AssetKey([model.name, "drift_report"])
        context.log_event(dg.AssetObservation(report, partition=context.partition_key, metadata={"evidently": link}))
        return dg.MaterializeResult(metadata={"evidently": link, "bytes": len(html), "verdict": found["verdict"]})

    return asset


def decide(
    name: str,
    settings: DriftSettings,
    label_delay: timedelta,
    store: Store,
    lineage: Lineage,
    traffic: Traffic,
    start: datetime,
    end: datetime,
) -> tuple[Decision, pd.DataFrame | None]:
    """The decision at `end`, and the features and answers it judged; None without a champion.

    What was decided before at this instant is decided again on the same: by the champion of then, after the decisions
    of then, on the log as it was seen then.
    """
    keys = store.keys(history.prefix(name))
    taken = _taken(store, history.at(keys, name, end), end)
    basis = taken[0] if taken else None
    current = champion_version(name, int(basis.champion), store) if basis else champion(name, lineage, store)
    if current is None:
        return _no_champion(name, end), None
    traffic.flush()
    labelled = traffic.labelled(name, start - label_delay, end, as_of=end)
    recent = traffic.answers(name, min(start, end - LEAST_WINDOW * settings.block_length), end)
    if basis is None:
        previous = history.latest(keys, name, start, inclusive=True)
        last = history.latest(keys, name, end, inclusive=False)
        basis = Basis(str(current.version), previous, last, newest(recent, labelled))
    reference = Reference.from_bytes(current.reference)
    labelled, recent = seen(labelled, basis.seen_until), seen(recent, basis.seen_until)
    window = recent[recent["event_time"] >= start]
    fresh = labelled[(labelled["known_at"] > start) & (labelled["version"] == basis.champion)]
    before = _record(store, basis.previous)
    details = before["details"] if before and before["inputs"].get("champion") == basis.champion else None
    inputs = {**basis.inputs(), "reference": reference.digest}
    decision = judge(name, reference, window, fresh, details, settings, start, end, end, inputs, recent)
    followed = _followed(decision, _record(store, basis.alarms_after), basis.champion, start)
    told = alarms.report(followed, end, settings.alarms_per_year)
    shown = [column for column in (*reference.features, "answer") if column in window]
    return replace(decision, details={**decision.details, "alarms": told}), window[shown]


def _taken(store: Store, keys: list[str], as_of: datetime) -> tuple[Basis, Mapping[str, Any]] | None:
    """What a decision at this instant was taken on, and its record; of several the one about the newest champion."""
    records = [json.loads(store.get(key)) for key in keys]
    now = [item for item in records if datetime.fromisoformat(item["as_of"]) == as_of]
    found = [(basis, item) for item in now if (basis := Basis.of(item))]
    return max(found, key=lambda pair: int(pair[0].champion), default=None)


def _record(store: Store, key: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = json.loads(store.get(key)) if key else None
    return found


def _followed(decision: Decision, before: Mapping[str, Any] | None, version: str, start: datetime) -> alarms.Alarms:
    told = before["details"].get("alarms") if before else None
    state = alarms.Alarms.from_dict(told) if told else alarms.Alarms(start.isoformat())
    verdicts = {item.name: item.verdict for item in decision.evidence}
    retrained = before is not None and before["inputs"].get("champion") != version
    return alarms.follow(state, verdicts, decision.as_of, retrained)


def profile_key_of(decision: Decision) -> str:
    """Where the whylogs profile of the window that a decision judged lies."""
    return decision_key(decision).replace("decisions/", "profiles/", 1).removesuffix(".json") + ".whylogs.bin"


def _picture(decision: Decision) -> str | None:
    days = decision.details.get("days", [])
    levels = [day["threshold"] for day in days if day["threshold"] is not None]
    aggregates = [day["aggregate"] for day in days if day["aggregate"] is not None]
    return sparkline(aggregates, levels[-1] if levels else None) if aggregates else None


def _no_champion(name: str, as_of: datetime) -> Decision:
    why = "no champion serves yet: release a first version"
    evidence = tuple(Evidence(check, Verdict.INCONCLUSIVE, why) for check in CHECKS)
    return Decision(name, "drift", as_of, why, evidence)
