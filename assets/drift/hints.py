"""What a person may want to look at beside the verdict. Hints warn (INCONCLUSIVE) and never alarm: none decides.

estimate: the loss to expect before labels come; joint: features that moved together; rise: since when the loss rose.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from assets.decision import Evidence
from assets.drift.adwin import Adwin, Rise
from assets.drift.aggregate import ANSWER, Columns, Span, indices
from assets.drift.joint import LEAST_PAST, LEAST_WINDOW, Joint, joint_drift
from assets.drift.labels import estimated
from assets.drift.naming import plural, short
from assets.drift.reference import Reference
from assets.drift.sample import Sample, sampled
from assets.drift.settings import DriftSettings
from assets.verdict import Verdict

# An AUC below it is no drift that a person could find in the rows.
LEAST_AUC = 0.55


def estimate(
    window: pd.DataFrame, bound: float, settings: DriftSettings
) -> tuple[Evidence | None, dict[str, Any] | None]:
    """The mean loss by CBPE against the one that is accepted, and its details; (None, None) without an answer."""
    if ANSWER not in window:
        return None, None
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
    batch: Columns, times: "pd.Series[pd.Timestamp]", reference: Reference, settings: DriftSettings, span: Span
) -> Sample | None:
    """Whole rows of the window, coded as the reference's are; None where the reference keeps none."""
    if reference.sample is None or not batch:
        return None
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
            f"joint drift takes {LEAST_WINDOW} {settings.word}s of the window, and of the reference {LEAST_PAST} and "
            "twice as many"
        )
        return _hint("joint", Verdict.INCONCLUSIVE, why), None
    moved = found.p_value <= settings.alpha and found.auc >= LEAST_AUC
    what = f"whole rows tell this window from the reference with AUC {short(found.auc)} (p {short(found.p_value)})"
    why = f"{what}; without their pairs {short(found.alone)}" if moved else f"{what}, as chance may"
    return _hint("joint", Verdict.INCONCLUSIVE if moved else Verdict.PASS, why, found.auc, LEAST_AUC), found


def rise(labels: pd.DataFrame, before: Mapping[str, Any] | None) -> tuple[Evidence | None, dict[str, Any]]:
    """Rises of the loss among the labels of this window, and the state to carry. before: that of the last window."""
    adwin = Adwin.from_dict(before["state"]) if before else Adwin()
    first = adwin.seen
    rises = adwin.rises(map(float, labels["loss"]))
    known = [labels["known_at"].iloc[item.at - first - 1].isoformat() for item in rises]
    details = {
        "state": adwin.to_dict(),
        "rises": [
            {"known_at": at, "before": item.before, "after": item.after}
            for at, item in zip(known, rises, strict=True)
        ],
    }  # fmt: skip
    return (_rise(rises, known, len(labels)) if len(labels) else None), details


def _rise(rises: Sequence[Rise], known: Sequence[str], labels: int) -> Evidence:
    if not rises:
        return _hint("rise", Verdict.PASS, f"no rise of the loss within {plural(labels, 'label')} (ADWIN)")
    last, when = rises[-1], known[-1][:16].replace("T", " ")
    why = f"the loss rose from {short(last.before)} to {short(last.after)}, seen on {when} UTC (ADWIN)"
    why += f", the last of {plural(len(rises), 'rise')}" if len(rises) > 1 else ""
    return _hint("rise", Verdict.INCONCLUSIVE, f"{why}: days of bad weather do that too", last.after, last.before)


def _hint(
    name: str, verdict: Verdict, why: str, statistic: float | None = None, threshold: float | None = None
) -> Evidence:
    return Evidence(name, verdict, why, statistic, threshold, decides=False)
