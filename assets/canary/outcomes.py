"""What became of the requests, by labels that are known while the rollout runs: what the business guard counts.

A request counts at the share it was assigned with, however late its label comes: given that it has the event, which of
the two pools it went to is a coin with known odds, as for errors. So that each counts once and for good, a key counts
at its first request, with its first label, and where the split is sticky a user's first event stands for all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Self

import numpy as np
import pandas as pd

from assets.canary.settings import OutcomeSettings


@dataclass(frozen=True, slots=True)
class Span:
    """Requests that began in [start, end) were assigned with this share of the canary, in (0, 1)."""

    share: float
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Known:
    """Requests of one share whose label is known, and events among them, the canary's and the baseline's."""

    share: float
    canary: int
    canary_events: int
    baseline: int
    baseline_events: int

    def __post_init__(self) -> None:
        if not (0 <= self.canary_events <= self.canary and 0 <= self.baseline_events <= self.baseline):
            raise ValueError(f"outcomes: {self}: events are among the requests")

    def plus(self, other: Self) -> "Known":
        """Both together; they must have the same share."""
        mine, theirs = astuple(self), astuple(other)
        return Known(self.share, *(one + two for one, two in zip(mine[1:], theirs[1:], strict=True)))

    def minus(self, other: Self) -> "Known | None":
        """What came since `other`; None for nothing. A row that vanished from the log takes nothing back."""
        mine, theirs = astuple(self), astuple(other)
        a, b, c, d = (max(one - two, 0) for one, two in zip(mine[1:], theirs[1:], strict=True))
        return Known(self.share, a, min(a, b), c, min(c, d)) if a or c else None


def together(parts: Iterable[Known]) -> tuple[Known, ...]:
    """Summed by share, in order of first appearance."""
    sums: dict[float, Known] = {}
    for part in parts:
        sums[part.share] = sums[part.share].plus(part) if part.share in sums else part
    return tuple(sums.values())


def fresh(all_known: Iterable[Known], counted: Iterable[Known]) -> tuple[Known, ...]:
    """Of all that is known, what was not counted before, by share."""
    before = {part.share: part for part in counted}
    parts = (part.minus(before.get(part.share, Known(part.share, 0, 0, 0, 0))) for part in all_known)
    return tuple(part for part in parts if part is not None)


def extended(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    """With one span more; one that goes on where the last of its share ended makes that one longer."""
    if spans and (spans[-1].share, spans[-1].end) == (span.share, span.start):
        return (*spans[:-1], Span(span.share, spans[-1].start, span.end))
    return (*spans, span)


def known(
    access: pd.DataFrame,
    answers: pd.DataFrame,
    labels: pd.DataFrame,
    spans: Sequence[Span],
    pools: tuple[str, str],
    settings: OutcomeSettings,
) -> tuple[Known, ...]:
    """By share, all that is known of the requests of these spans, which are in order and do not overlap.

    access, answers: rows of the log; labels: the first of each key (key, label, known_at); pools: the canary's and the
    baseline's. A label that was known before its request is no outcome of it.
    """
    rows = _labelled(access, answers, labels, spans)
    event = _event(rows, settings)
    if len(rows):
        named = rows["unit"] != ""
        event &= ~named | (event.groupby(rows["unit"]).cumsum() == 1)
    found = []
    for share in dict.fromkeys(span.share for span in spans):
        mine, theirs = ((rows["share"] == share) & (rows["pool"] == pool) for pool in pools)
        counts = (int(part.sum()) for part in (mine, mine & event, theirs, theirs & event))
        found.append(Known(share, *counts))
    return tuple(found)


def _labelled(access: pd.DataFrame, answers: pd.DataFrame, labels: pd.DataFrame, spans: Sequence[Span]) -> pd.DataFrame:
    """One row a key, in the order in which they became known: pool, unit, share, answer and label."""
    sent = access[["request_id", "pool", "unit", "seen_at", "event_time"]]
    starts = pd.DatetimeIndex([span.start for span in spans], tz="UTC")
    ends = pd.DatetimeIndex([span.end for span in spans], tz="UTC")
    at = starts.searchsorted(pd.DatetimeIndex(sent["seen_at"]), side="right") - 1
    inside = (at >= 0) & (pd.DatetimeIndex(sent["seen_at"]) < ends[np.maximum(at, 0)])
    sent = sent.assign(share=np.array([span.share for span in spans])[np.maximum(at, 0)])[inside]
    rows = sent.merge(answers[["request_id", "row", "key", "answer"]], on="request_id")
    rows = rows.sort_values(["seen_at", "request_id", "row"], kind="stable").drop_duplicates("key")
    rows = rows.merge(labels[["key", "label", "known_at"]], on="key")
    return rows[rows["known_at"] >= rows["event_time"]].sort_values("known_at", kind="stable").reset_index(drop=True)


def _event(rows: pd.DataFrame, settings: OutcomeSettings) -> "pd.Series[bool]":
    if settings.event == "wrong":
        found: pd.Series[bool] = (rows["answer"] - rows["label"]).abs() > settings.wrong_by
    else:
        found = rows["label"] == (1.0 if settings.event == "label_1" else 0.0)
    return found
