"""What a person may want to look at beside the verdict. Hints warn (INCONCLUSIVE) and never alarm: none decides.

estimate: the loss to expect before labels come; joint: features that moved together; rise: since when the loss rose;
labels: whether those that came speak for all requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from assets.decision import Evidence
from assets.drift.adwin import Adwin, Change
from assets.drift.aggregate import ANSWER, Columns, Span, columns, indices, instants, numbers, utc, within
from assets.drift.joint import LEAST_PAST, LEAST_WINDOW, Joint, joint_drift
from assets.drift.ks import Numeric, critical_value
from assets.drift.labels import estimated
from assets.drift.naming import plural, short
from assets.drift.quality import wrong_columns
from assets.drift.reference import Reference
from assets.drift.sample import Sample, sampled
from assets.drift.settings import DriftSettings
from assets.verdict import Verdict

# An AUC below it is no drift that a person could find in the rows.
LEAST_AUC = 0.55
# What pairs have to add to the AUC of the features alone: less is drift that single features show.
LEAST_GAIN = 0.02
# Share of a window's labels, by event time, after which the youngest requests are still without theirs.
SETTLED = 0.9
# Distance of the answers that got a label from all answers which is no matter of a few late ones.
LEAST_BIAS = 0.1


def estimate(
    window: pd.DataFrame, bound: float, settings: DriftSettings, chances: bool = True
) -> tuple[Evidence | None, dict[str, Any] | None]:
    """The mean loss by CBPE against the one that is accepted, and its details; (None, None) without a single answer.

    chances: whether the answers are; a number does not say how far off it may be.
    """
    if ANSWER not in window or window.empty:
        return None, None
    if not chances:
        why = (
            "no loss can be expected before labels come: numbers are answered, and only chances say how often they err"
        )
        return _hint("estimate", Verdict.PASS, why), None
    details = estimated(window[ANSWER])
    loss = details["brier"]
    if loss is None or len(window) < settings.min_rows:
        return None, details
    what = f"mean loss {short(loss)} if the answers are true probabilities, {short(bound)} accepted"
    blind = "blind to concept drift: only labels prove it"
    if loss <= bound:
        return _hint("estimate", Verdict.PASS, f"{what}; {blind}", loss, bound), details
    return _hint("estimate", Verdict.INCONCLUSIVE, f"early warning: {what}; {blind}", loss, bound), details


def window_sample(
    batch: Columns,
    times: "pd.Series[pd.Timestamp]",
    recent: pd.DataFrame | None,
    reference: Reference,
    settings: DriftSettings,
    span: Span,
) -> Sample | None:
    """Whole rows of the window, coded as the reference's are; None where there are none to compare.

    A window of fewer than LEAST_WINDOW blocks, a day, says too little: `recent` is looked at, so far back from its end.
    """
    if reference.sample is None or not batch:
        return None
    if recent is not None and span.count < LEAST_WINDOW:
        span = replace(span, start=utc(span.end) - LEAST_WINDOW * span.length)
        rows, times = within(recent, "event_time", span)
        if wrong_columns(rows, reference.features):
            return None
        batch = columns(rows, reference.features)
    features = {name: batch[name] for name in reference.features}
    index = indices(times, span.start, span.length)
    return sampled(features, times, index, reference.marginals, settings.joint_rows)


def joint(sample: Sample | None, reference: Reference, settings: DriftSettings) -> tuple[Evidence | None, Joint | None]:
    """Whether whole rows tell the window from the reference; (None, None) where there are none to compare."""
    if sample is None or reference.sample is None:
        return None, None
    found = joint_drift(reference.sample, sample, reference.weights)
    if found is None:
        why = (
            f"joint drift takes {LEAST_WINDOW} {settings.word}s up to the window's end, and of the reference "
            f"{LEAST_PAST} and twice as many"
        )
        return _hint("joint", Verdict.INCONCLUSIVE, why), None
    what = f"whole rows tell this window from the reference with AUC {short(found.auc)} (p {short(found.p_value)})"
    if found.p_value > settings.alpha or found.auc < LEAST_AUC:
        return _hint("joint", Verdict.PASS, f"{what}, as chance may", found.auc, LEAST_AUC), found
    if found.auc < found.alone + LEAST_GAIN:
        return _hint("joint", Verdict.PASS, f"{what}, and so do single features", found.auc, LEAST_AUC), found
    why = f"{what}; without their pairs {short(found.alone)}: features moved together"
    return _hint("joint", Verdict.INCONCLUSIVE, why, found.auc, LEAST_AUC), found


def rise(
    labels: pd.DataFrame, before: Mapping[str, Any] | None, bound: float
) -> tuple[Evidence | None, dict[str, Any]]:
    """Changes of the loss among this window's labels, and the state to carry. before: that of the last window.

    Only a rise beyond the accepted loss that no fall has ended is worth a look: single labels share a day's weather.
    """
    adwin = Adwin.from_dict(before["state"]) if before else Adwin()
    first = adwin.seen
    changes = adwin.changes(map(float, labels["loss"]))
    known = [labels["known_at"].iloc[item.at - first - 1].isoformat() for item in changes]
    details = {
        "state": adwin.to_dict(),
        "changes": [
            {"known_at": at, "before": item.before, "after": item.after}
            for at, item in zip(known, changes, strict=True)
        ],
    }  # fmt: skip
    return (_rise(changes, known, len(labels), bound) if len(labels) else None), details


def _rise(changes: Sequence[Change], known: Sequence[str], labels: int, bound: float) -> Evidence:
    rises = [(item, at) for item, at in zip(changes, known, strict=True) if item.is_rise]
    if not rises:
        return _hint("rise", Verdict.PASS, f"no rise of the loss within {plural(labels, 'label')} (ADWIN)")
    last, at = rises[-1]
    why = f"the loss rose from {short(last.before)} to {short(last.after)}, seen on {at[:16].replace('T', ' ')} UTC"
    if changes[-1] is not last:
        return _hint("rise", Verdict.PASS, f"{why}, and fell again (ADWIN)", last.after, bound)
    if last.after <= bound:
        return _hint(
            "rise", Verdict.PASS, f"{why}, and stays below the {short(bound)} accepted (ADWIN)", last.after, bound
        )
    why += f" (ADWIN), beyond the {short(bound)} accepted: the detector of harm weighs whole days"
    return _hint("rise", Verdict.INCONCLUSIVE, why, last.after, bound)


def fair(
    labels: pd.DataFrame, window: pd.DataFrame, times: "pd.Series[pd.Timestamp]", settings: DriftSettings, span: Span
) -> Evidence | None:
    """Whether the requests that got a label were answered as all were; None while too few of this window did.

    Labels that come only where the champion said yes, or only for good outcomes, can't speak of the rest.
    """
    inside = labels[(instants(labels["event_time"]) >= pd.Timestamp(utc(span.start))).to_numpy()]
    if ANSWER not in window or len(inside) < settings.min_labels:
        return None
    events, asked_at = (column.to_numpy("datetime64[ns]") for column in (instants(inside["event_time"]), times))
    until = np.sort(events)[int(SETTLED * (len(events) - 1))]
    asked = numbers(window[ANSWER][asked_at <= until], "float")
    labelled = numbers(inside["answer"][events <= until], "float")
    asked = asked[~np.isnan(asked)]
    if not len(asked) or not len(labelled):
        return None
    distance = Numeric.of(asked).distance(labelled)
    limit = max(LEAST_BIAS, critical_value(0.001, len(labelled), len(asked)))
    share = f"{len(labelled)} of {plural(len(asked), 'request')} have a label"
    if distance <= limit:
        return _hint("labels", Verdict.PASS, f"{share}, and were answered as all were", distance, limit)
    why = f"{share}, and they were answered otherwise than all: what the loss of the others is, they can't say"
    return _hint("labels", Verdict.INCONCLUSIVE, why, distance, limit)


def _hint(
    name: str, verdict: Verdict, why: str, statistic: float | None = None, threshold: float | None = None
) -> Evidence:
    return Evidence(name, verdict, why, statistic, threshold, decides=False)
