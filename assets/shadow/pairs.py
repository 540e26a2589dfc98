"""From logged requests to what a shadow evaluation may use: mature, labelled, each request once."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.shadow.settings import BLOCK_HOURS, ShadowSettings

COLUMNS = ("key", "event_time", "known_at", "label", "champion", "challenger")


@dataclass(frozen=True, slots=True)
class Usable:
    """`frame`: rows to judge, by event time. `counts`: what became of every row that was given."""

    frame: pd.DataFrame
    counts: Mapping[str, int]

    @property
    def missing_share(self) -> float:
        """Share of mature requests whose label never came."""
        mature = self.counts["labels"] + self.counts["missing_labels"]
        return self.counts["missing_labels"] / mature if mature else 0.0


def usable(pairs: pd.DataFrame, settings: ShadowSettings, as_of: datetime) -> Usable:
    """Rows of `pairs` that count at `as_of`, and how many were left out and why.

    A request is counted once, by its last label known at `as_of`. ValueError: a column is missing, a label is neither
    0 nor 1, a probability lies outside [0, 1]. A score that is not a number is counted, not dropped: see `unscored`.
    """
    needed = [*COLUMNS, *settings.columns]
    absent = [name for name in needed if name not in pairs.columns]
    if absent:
        raise ValueError(f"pairs: columns {absent} are missing; a shadow evaluation needs {needed}")
    pairs, at = pairs.reset_index(drop=True), pd.Timestamp(as_of)
    event, known = (pd.to_datetime(pairs[name], utc=True) for name in ("event_time", "known_at"))
    mature = event <= at - timedelta(hours=settings.maturity_hours)
    labelled = pairs["label"].notna() & (known.isna() | (known <= at))
    once = _once(pairs["key"], labelled, known)
    frame = pairs.assign(event_time=event, known_at=known)[mature & labelled & once]
    if frame["event_time"].is_monotonic_increasing and frame["event_time"].is_unique:
        frame = frame.reset_index(drop=True)
    else:
        frame = frame.sort_values(["event_time", "key"], kind="stable", ignore_index=True)
    scores = frame[["champion", "challenger"]].to_numpy(np.float64)
    _check(frame["label"].to_numpy(np.float64), scores)
    counts = {
        "rows": len(pairs),
        "labels": len(frame),
        "duplicates": int((~once).sum()),
        "not_mature": int((~mature & once).sum()),
        "missing_labels": int((mature & ~labelled & once).sum()),
        "unscored": int((~np.isfinite(scores)).any(axis=1).sum()),
    }
    return Usable(frame, counts)


def _once(key: pd.Series, labelled: pd.Series, known: pd.Series) -> pd.Series:
    """True for the one row of each key that counts: labelled before unlabelled, then the latest known."""
    if key.is_unique:
        return pd.Series(True, index=key.index)
    order = pd.DataFrame({"labelled": labelled, "known": known, "row": np.arange(len(key))}, index=key.index)
    order = order.sort_values(["labelled", "known", "row"], na_position="first")
    return ~key.loc[order.index].duplicated(keep="last").loc[key.index]


def _check(label: NDArray[np.float64], scores: NDArray[np.float64]) -> None:
    wrong = label[(label != 0) & (label != 1)]
    if wrong.size:
        raise ValueError(f"pairs: label = {wrong[0]} in {wrong.size} rows; labels are 0 or 1")
    outside = scores[(scores < 0) | (scores > 1)]
    if outside.size:
        raise ValueError(f"pairs: score = {outside[0]} in {outside.size} places; scores are probabilities in [0, 1]")


def block_starts(event_time: pd.Series, settings: ShadowSettings) -> pd.Series:
    """The start of each request's block. UTC has no clock changes, so every block is as long as the next."""
    offset = pd.Timedelta(hours=settings.block_offset_hours)
    return (event_time - offset).dt.floor(f"{BLOCK_HOURS[settings.block]}h") + offset
