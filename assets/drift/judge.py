"""The drift gate: did the inputs move, is the champion harmed, can we trust what we look at?"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from assets.decision import Decision, Evidence
from assets.drift.aggregate import Columns, Span, blocks, columns, indices, instants, utc
from assets.drift.evidence import day_details, harm_details, harm_evidence, inputs_evidence
from assets.drift.harm import Harm, Rules, watch
from assets.drift.labels import estimated, label_blocks, performance, usable_labels
from assets.drift.naming import Feature, name_features
from assets.drift.quality import freshness, schema, wrong_columns
from assets.drift.reference import Reference
from assets.drift.settings import DriftSettings
from assets.drift.threshold import Judged, Memory, walk
from assets.verdict import Verdict


def judge(
    model: str,
    reference: Reference,
    window: pd.DataFrame,
    labelled: pd.DataFrame,
    previous: Mapping[str, Any] | None,
    settings: DriftSettings,
    start: datetime,
    end: datetime,
    as_of: datetime,
    inputs: Mapping[str, str],
) -> Decision:
    """Judge what serving saw over [start, end) against the reference, and the labels that became known in (start, end].

    window: features and event_time; labelled: event_time, known_at, label, answer of the champion's own answers;
    previous: details of the decision before this window for the same champion and reference, None at the first one.
    Windows that follow one another, and whole blocks each, give exactly what one long window gives. Rows outside the
    window, and labels known after `as_of`, are left out. ValueError: an empty window, or `previous` overlaps it.
    """
    span = Span(start, end, settings.block_length)
    if span.count < 1:
        raise ValueError(f"drift window of {model} is empty: it starts {start} and ends {end}")
    before = _carried(model, previous, reference, start)
    rules = _rules(reference, settings)
    memory = Memory.from_dict(before) if before else Memory(reference.history[-settings.history_cap :])
    harmed = _carried_harm(before, rules)

    window, times = _within(window, "event_time", span)
    faults = wrong_columns(window, reference.features) if len(window) else ""
    judged, after, features = _inputs(window, times, faults, reference, memory, settings, span)
    labels = usable_labels(labelled, span, as_of)
    traces, harmed = watch(label_blocks(labels, judged, memory.active, settings, span), harmed, rules)

    evidence = (
        inputs_evidence(len(window), faults, judged, features, after, settings, span),
        harm_evidence(labels, traces, harmed, rules, settings),
        schema(window, faults, reference, features, settings),
        freshness(times, [item.block for item in judged], settings, start, end),
    )
    details = {
        **{"start": utc(start).isoformat(), "end": utc(end).isoformat()},
        **{"rows": len(window), "reference": reference.digest},
        "features": [asdict(item) for item in features],
        "days": [day_details(item) for item in judged],
        **after.to_dict(),
        "harm": harmed.to_dict() | harm_details(labels, traces, rules),
        **performance(labels),
        "estimated": estimated(window["answer"]) if "answer" in window else None,
    }
    return Decision(model, "drift", as_of, _why(evidence), evidence, dict(inputs), details)


def _carried(
    model: str, previous: Mapping[str, Any] | None, reference: Reference, start: datetime
) -> Mapping[str, Any] | None:
    if not previous or previous.get("reference") != reference.digest:
        return None
    if datetime.fromisoformat(previous["end"]) > utc(start):
        raise ValueError(
            f"drift of {model}: the previous decision ends {previous['end']}, after this window starts at "
            f"{utc(start).isoformat()}: pass the decision before it, or rows would count twice"
        )
    return previous


def _carried_harm(before: Mapping[str, Any] | None, rules: Rules) -> Harm:
    """Evidence of one unit is none of the other: a detector whose kind was changed starts anew."""
    if before is None or before["harm"]["unit"] != rules.unit or len(before["harm"]["log_r"]) != len(rules.bets):
        return rules.fresh()
    return Harm.from_dict(before["harm"])


def _rules(reference: Reference, settings: DriftSettings) -> Rules:
    return Rules(
        bound=reference.loss_bound + settings.tolerance,
        arl_blocks=settings.arl_days * (timedelta(days=1) / settings.block_length),
        labels_per_block=reference.rows / reference.blocks,
        min_labels=settings.min_labels,
        min_block_labels=settings.min_block_rows,
        unit=settings.harm_unit,
    )


def _within(frame: pd.DataFrame, column: str, span: Span) -> tuple[pd.DataFrame, "pd.Series[pd.Timestamp]"]:
    times = instants(frame[column]) if column in frame else instants(pd.Series([], dtype=object))
    inside = ((times >= pd.Timestamp(utc(span.start))) & (times < pd.Timestamp(utc(span.end)))).to_numpy()
    return (frame[inside], times[inside]) if column in frame else (frame.iloc[:0], times)


def _inputs(
    window: pd.DataFrame,
    times: "pd.Series[pd.Timestamp]",
    faults: str,
    reference: Reference,
    memory: Memory,
    settings: DriftSettings,
    span: Span,
) -> tuple[list[Judged], Memory, list[Feature]]:
    batch: Columns = {} if faults or not len(window) else columns(window, reference.features)
    enough = settings.min_block_rows if batch else len(window) + 1  # what can't be compared is no block
    index = indices(times, span.start, span.length)
    found = blocks(batch, index, span.count, reference.marginals, reference.weights, span.start, span.length, enough)
    judged, after = walk(found, memory, settings)
    if not batch:
        return judged, after, []
    features = name_features(reference.marginals, reference.weights, batch, settings.naming_fdr, settings.floor)
    return judged, after, features


def _why(evidence: Sequence[Evidence]) -> str:
    """The sentences that decided; of a pass, the first says it."""
    worst = max(item.verdict for item in evidence)
    if worst is Verdict.PASS:
        return evidence[0].why
    return "; ".join(f"{item.name}: {item.why}" for item in evidence if item.verdict is worst)
