"""The drift gate: did the inputs move, is the champion harmed, can we trust what we look at?"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from assets.decision import Decision, Evidence
from assets.drift.aggregate import ANSWER, Columns, Span, blocks, columns, indices, utc, within
from assets.drift.evidence import day_details, harm_details, harm_evidence, inputs_evidence
from assets.drift.harm import Harm, Rules, watch
from assets.drift.hints import estimate, fair, joint, rise, window_sample
from assets.drift.labels import label_blocks, performance, usable_labels
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
    recent: pd.DataFrame | None = None,
) -> Decision:
    """Judge what serving saw over [start, end) against the reference, and the labels that became known in (start, end].

    window: features and event_time; labelled: event_time, known_at, label, answer of the champion's own answers;
    previous: details of the decision before this window for the same champion and reference, None at the first one.
    recent: as window, but from further back, for the hint that takes several blocks.
    Windows that follow one another, and whole blocks each, give exactly what one long window gives. Rows outside the
    window, and labels known after `as_of`, are left out. ValueError: an empty window, or `previous` overlaps it.
    """
    span = Span(start, end, settings.block_length)
    if span.count < 1:
        raise ValueError(f"drift window of {model} is empty: it starts {start} and ends {end}")
    digest = reference.digest
    before = _carried(model, previous, digest, start)
    rules = harm_rules(reference, settings)
    memory = Memory.from_dict(before) if before else first_memory(reference, settings)
    harmed = _carried_harm(before, rules)

    window, times = within(window, "event_time", span)
    faults = wrong_columns(window, reference.features) if len(window) else ""
    if ANSWER not in window or not window[ANSWER].notna().any():
        reference = reference.without_answers()
    batch: Columns = {} if faults or not len(window) else columns(window, reference.columns)
    judged, after, features = _inputs(len(window), batch, times, reference, memory, settings, span)
    labels = usable_labels(labelled, span, as_of, reference.loss_scale)
    traces, harmed = watch(label_blocks(labels, judged, memory.active, settings, span), harmed, rules)

    evidence = (
        inputs_evidence(len(window), faults, judged, features, after, settings, span),
        harm_evidence(labels, traces, harmed, rules, settings),
        schema(window, faults, reference, features, settings),
        freshness(times, [item.block for item in judged], settings, start, end),
    )
    expected, estimated = estimate(window, rules.bound, settings, reference.loss_scale is None)
    sample = window_sample(batch, times, recent, reference, settings, span)
    together, found = joint(sample, reference, settings)
    risen, adwin = rise(labels, before.get("adwin") if before else None, rules.bound)
    spoken = fair(labels, window, times, settings, span)
    hints = tuple(item for item in (expected, together, risen, spoken) if item)
    details = {
        **{"start": utc(start).isoformat(), "end": utc(end).isoformat()},
        **{"rows": len(window), "reference": digest},
        "features": [asdict(item) for item in features],
        "days": [day_details(item) for item in judged],
        **after.to_dict(),
        "harm": harmed.to_dict() | harm_details(labels, traces, rules),
        **performance(labels, reference.loss_scale),
        "estimated": estimated,
        "joint": asdict(found) if found else None,
        "adwin": adwin,
    }
    return Decision(model, "drift", as_of, _why(evidence), (*evidence, *hints), dict(inputs), details)


def _carried(model: str, previous: Mapping[str, Any] | None, digest: str, start: datetime) -> Mapping[str, Any] | None:
    if not previous or previous.get("reference") != digest:
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


def first_memory(reference: Reference, settings: DriftSettings) -> Memory:
    """What a new champion is held against: the blocks it was trained on."""
    return Memory(reference.history[-settings.history_cap :], tagged=reference.tagged)


def harm_rules(reference: Reference, settings: DriftSettings) -> Rules:
    """The numbers of the detector of harm: the reference's bound, the settings' patience."""
    return Rules(
        bound=reference.loss_bound + settings.tolerance,
        arl_blocks=settings.arl_days * (timedelta(days=1) / settings.block_length),
        labels_per_block=reference.rows / reference.blocks,
        min_labels=settings.min_labels,
        min_block_labels=settings.min_block_rows,
        unit=settings.harm_unit,
    )


def _inputs(
    rows: int,
    batch: Columns,
    times: "pd.Series[pd.Timestamp]",
    reference: Reference,
    memory: Memory,
    settings: DriftSettings,
    span: Span,
) -> tuple[list[Judged], Memory, list[Feature]]:
    enough = settings.min_block_rows if batch else rows + 1  # what can't be compared is no block
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
