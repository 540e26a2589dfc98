"""The labels that became known in a window, as losses in order, and what they say of the champion."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from assets.drift.aggregate import Span, indices, instants, utc
from assets.drift.harm import LabelBlock
from assets.drift.settings import DriftSettings
from assets.drift.threshold import Judged

Floats = npt.NDArray[np.float64]


def losses(label: Floats, answer: Floats, scale: float | None) -> Floats:
    """(n,) in [0, 1], as the detector of harm counts them: Brier of a chance; else |error| / scale, at most 1.

    >>> losses(np.array([1.0]), np.array([0.5]), None).tolist(), losses(np.array([7.0]), np.array([9.0]), 4.0).tolist()
    ([0.25], [0.5])
    """
    if scale is None:
        return np.square(answer - label)
    return np.minimum(np.abs(answer - label) / scale, 1.0)


def usable_labels(labelled: pd.DataFrame, span: Span, as_of: datetime, scale: float | None = None) -> pd.DataFrame:
    """Usable labels that became known in (start, end], in order of known_at; with event_time, label, answer, loss.

    scale: of the reference, None where labels are 0 or 1 and answers are chances.
    Ties are ordered by what else is known of them, so that the order of rows in the frame changes nothing.
    """
    if not len(labelled):
        return pd.DataFrame({name: [] for name in ("known_at", "event_time", "label", "answer", "loss")})
    known, label = instants(labelled["known_at"]), pd.to_numeric(labelled["label"], errors="coerce")
    answer = pd.to_numeric(labelled["answer"], errors="coerce")
    event = instants(labelled["event_time"]) if "event_time" in labelled else known
    frame = pd.DataFrame({"known_at": known, "event_time": event, "label": label, "answer": answer})
    identity = [name for name in ("request_id", "key", "row") if name in labelled]
    frame[identity] = labelled[identity]
    latest = min(utc(span.end), utc(as_of))
    low, high = (0.0, 1.0) if scale is None else (-sys.float_info.max, sys.float_info.max)
    usable = (known > pd.Timestamp(utc(span.start))) & (known <= pd.Timestamp(latest)) & label.between(low, high)
    frame = frame[(usable & answer.between(low, high)).to_numpy()]
    frame = frame.sort_values(["known_at", "event_time", "answer", "label"], kind="stable")
    if "request_id" in identity or "key" in identity:
        frame = frame.drop_duplicates([*identity, "event_time"], keep="last")
    found = frame[["known_at", "event_time", "label", "answer"]]
    return found.assign(loss=losses(found["label"].to_numpy(float), found["answer"].to_numpy(float), scale))


def label_blocks(
    labels: pd.DataFrame, judged: Sequence[Judged], active: bool, settings: DriftSettings, span: Span
) -> list[LabelBlock]:
    """Labels by the block they became known in. A block's weight is fixed by the inputs of the block before it."""
    losses = labels["loss"].to_numpy(float)
    # Blocks are (k, k + 1] for labels: a decision at k + 1 knows what became known at that instant.
    first = indices(instants(labels["known_at"]) - pd.Timedelta(1, "us"), span.start, span.length)
    edges = np.searchsorted(first, np.arange(span.count + 1))
    found = []
    for number, item in enumerate(judged):
        inside = losses[edges[number] : edges[number + 1]]
        w = 1.0 if active else settings.quiet_weight
        found.append(LabelBlock(item.block.start.isoformat(), tuple(map(float, inside)), w))
        active = item.active
    return found


def performance(labels: pd.DataFrame, scale: float | None = None) -> dict[str, Any]:
    """Brier loss and AUC of the window, or the mean absolute error; None where nothing can be computed."""
    label, answer = labels["label"].to_numpy(float), labels["answer"].to_numpy(float)
    if scale is not None:
        return {"absolute_error": float(np.mean(np.abs(answer - label))) if len(labels) else None}
    if not len(labels):
        return {"brier": None, "auc": None}
    return {"brier": float(np.mean((answer - label) ** 2)), "auc": auc(label, answer)}


def estimated(answers: "pd.Series[Any]") -> dict[str, Any]:
    """Brier loss and AUC to expect before labels come, if the answers are the true probabilities (CBPE).

    Blind to concept drift: where the same inputs now mean other labels, the answers do not know.

    >>> estimated(pd.Series([0.1, 0.9]))
    {'brier': 0.09, 'auc': 0.9}
    """
    p = pd.to_numeric(answers, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    p = np.sort(p[(p >= 0) & (p <= 1)])
    positive, negative = float(p.sum()), float((1 - p).sum())
    if positive == 0 or negative == 0:
        return {"brier": float(np.mean(p * (1 - p))) if len(p) else None, "auc": None}
    # Of each value: negatives below it, and half of those at it.
    first, last = p.searchsorted(p, "left"), p.searchsorted(p, "right")
    total = np.concatenate([[0.0], np.cumsum(1 - p)])
    won = float((p * (total[first] + total[last]) / 2).sum())
    return {"brier": round(float(np.mean(p * (1 - p))), 6), "auc": round(won / (positive * negative), 6)}


def auc(label: npt.NDArray[np.float64], answer: npt.NDArray[np.float64]) -> float | None:
    """Area under the ROC curve by midranks; None where only one class is present.

    >>> auc(np.array([0.0, 1.0, 1.0]), np.array([0.2, 0.2, 0.9]))
    0.75
    """
    positive = label > 0.5
    n1, n0 = int(positive.sum()), int((~positive).sum())
    if n1 == 0 or n0 == 0:
        return None
    _, place, counts = np.unique(answer, return_inverse=True, return_counts=True)
    midrank = np.cumsum(counts) - (counts - 1) / 2
    return float((midrank[place][positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))
