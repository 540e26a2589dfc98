"""What the walk over inputs and the detector on losses found, in sentences people understand alone."""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pandas as pd

from assets.decision import Evidence
from assets.drift.aggregate import Block, Span, utc
from assets.drift.harm import Harm, Rules, Trace
from assets.drift.naming import Feature, listed, plural, short
from assets.drift.settings import DriftSettings
from assets.drift.threshold import Judged, Memory, needed
from assets.verdict import Verdict


def inputs_evidence(
    rows: int,
    faults: str,
    judged: Sequence[Judged],
    features: Sequence[Feature],
    memory: Memory,
    settings: DriftSettings,
    span: Span,
) -> Evidence:
    seen = [item for item in judged if item.block.aggregate is not None]
    silence = _too_little(rows, faults, seen, memory, settings, span)
    if silence:
        return Evidence("inputs", Verdict.INCONCLUSIVE, silence)
    active = [item for item in seen if item.active]
    worst = max([i for i in active if i.alarm] or active or seen, key=_excess)
    value, level = worst.block.aggregate or 0.0, worst.threshold or 0.0
    rule = f"{settings.persistence_hits} of the last {plural(settings.persistence_of, settings.word)}"
    peak = f"{short(value)} on {_date(worst.block, settings)}"
    if active:
        when = f"since {_date(active[0].block, settings)}, worst {peak}" if worst.alarm else "before this window began"
        why = f"{rule} above the alarm level {short(level)} ({when}): {listed(features)}"
        return Evidence("inputs", Verdict.FAIL, why, value, level)
    alarms = sum(bool(item.alarm) for item in seen)
    count = f"{alarms} of {plural(len(seen), settings.word)}" if alarms else f"no {settings.word} of {len(seen)}"
    why = f"{count} above the alarm level {short(level)}, an alarm takes {rule}; nearest to it: {peak}"
    return Evidence("inputs", Verdict.PASS, why, value, level)


def _excess(item: Judged) -> float:
    return (item.block.aggregate or 0.0) - (item.threshold or 0.0)


def _too_little(
    rows: int, faults: str, seen: Sequence[Judged], memory: Memory, settings: DriftSettings, span: Span
) -> str:
    """Why the inputs can't be judged; empty if they can."""
    if faults:
        return f"the inputs can't be compared: {faults}"
    if rows < settings.min_rows:
        return f"{plural(rows, 'request')} of the {settings.min_rows} needed"
    if not seen:
        return f"no {settings.word} has the {settings.min_block_rows} requests needed"
    if utc(span.end) - utc(span.start) < span.length:
        return f"the window is shorter than one block ({settings.block}): set drift.block to the cadence"
    if all(item.threshold == math.inf for item in seen):
        past, enough = len(memory.history), needed(settings.alpha)
        have = plural(past, f"past {settings.word}")
        return f"warming up: {have} of the {enough} that a {settings.alpha:.0%} level needs"
    return ""


def _date(block: Block, settings: DriftSettings) -> str:
    return f"{block.start:%Y-%m-%d}" if settings.block_length >= timedelta(days=1) else f"{block.start:%Y-%m-%d %H:%M}"


def day_details(item: Judged) -> dict[str, Any]:
    """One block as the record keeps it; a level that is not yet known is None."""
    level = item.threshold if item.threshold is not None and math.isfinite(item.threshold) else None
    return {
        "day": item.block.start.isoformat(),
        "rows": item.block.rows,
        "aggregate": item.block.aggregate,
        "threshold": level,
        "alarm": item.alarm,
        "active": item.active,
        **({"tag": item.tag} if item.tag else {}),
    }


def harm_evidence(
    labels: pd.DataFrame,
    traces: Sequence[Trace],
    harmed: Harm,
    rules: Rules,
    settings: DriftSettings,
) -> Evidence:
    last = next((trace for trace in reversed(traces) if trace.alarm), traces[-1])
    bound = f"{short(rules.bound)} accepted (the reference's bound and a tolerance of {short(settings.tolerance)})"
    if last.alarm:
        mean = f"mean loss {short(float(labels['loss'].mean()))} over {plural(len(labels), 'label')}"
        why = f"{mean}, at most {bound}: evidence {_times(last)} what an alarm needs, on {last.name[:10]}"
        return Evidence("harm", Verdict.FAIL, why, last.log_evidence, last.log_level)
    if harmed.labels < settings.min_labels:
        why = f"{plural(harmed.labels, 'label')} of the {settings.min_labels} needed to judge the loss"
        return Evidence("harm", Verdict.INCONCLUSIVE, why)
    if not len(labels):
        return Evidence("harm", Verdict.INCONCLUSIVE, "no label became known in this window: silence is no proof")
    mean = f"mean loss {short(float(labels['loss'].mean()))} over {plural(len(labels), 'label')}"
    why = f"{mean}, at most {bound}; evidence of harm {_times(last)} of what an alarm needs"
    finite = math.isfinite(last.log_evidence)
    return Evidence(
        "harm", Verdict.PASS, why, last.log_evidence if finite else None, last.log_level if finite else None
    )


def _times(trace: Trace) -> str:
    ratio = math.exp(min(trace.log_evidence - trace.log_level, 20)) if math.isfinite(trace.log_level) else 0.0
    return f"{ratio:.2g} times" if ratio >= 1 else f"{ratio:.1%}"


def harm_details(labels: pd.DataFrame, traces: Sequence[Trace], rules: Rules) -> dict[str, Any]:
    """What a page shows of the loss in this window."""
    return {
        "bound": rules.bound,
        "unit": rules.unit,
        "window_labels": len(labels),
        "mean_loss": float(labels["loss"].mean()) if len(labels) else None,
        "alarm": any(trace.alarm for trace in traces),
        "days": [
            {
                "day": trace.name,
                "labels": trace.labels,
                "mean_loss": trace.mean_loss,
                "weight": trace.w,
                "log_evidence": _finite(trace.log_evidence),
                "log_level": _finite(trace.log_level),
                "alarm": trace.alarm,
            }
            for trace in traces
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
