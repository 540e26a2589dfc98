"""One number a block: the weighted distance of all features from the reference."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from assets.drift.categorical import Categorical
from assets.drift.ks import Numeric

Marginal = Numeric | Categorical
Columns = Mapping[str, npt.NDArray[Any]]
# The champion's own score, a column of the log that no model may call a feature.
ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a window: its place, its rows, the weighted distance and what sampling alone would give."""

    index: int
    start: datetime
    rows: int
    aggregate: float | None
    expected: float | None


@dataclass(frozen=True, slots=True)
class Span:
    """A window cut into blocks of one length from its start; the last may be shorter."""

    start: datetime
    end: datetime
    length: timedelta

    @property
    def count(self) -> int:
        return -(-(utc(self.end) - utc(self.start)) // self.length)


def utc(moment: datetime) -> datetime:
    """A moment without a zone is UTC."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def instants(column: "pd.Series[Any]") -> "pd.Series[pd.Timestamp]":
    """Any times as UTC; a time without a zone is UTC; what is no time is NaT."""
    return pd.to_datetime(column, utc=True, errors="coerce")


def within(frame: pd.DataFrame, column: str, span: Span) -> tuple[pd.DataFrame, "pd.Series[pd.Timestamp]"]:
    """The rows whose time lies in [start, end), and their times; none of a frame without the column."""
    times = instants(frame[column]) if column in frame else instants(pd.Series([], dtype=object))
    inside = ((times >= pd.Timestamp(utc(span.start))) & (times < pd.Timestamp(utc(span.end)))).to_numpy()
    return (frame[inside], times[inside]) if column in frame else (frame.iloc[:0], times)


def numbers(column: "pd.Series[Any]", type_: str) -> npt.NDArray[Any]:
    """A numeric column as (n,) float64, null and unreadable as NaN.

    Floats pass through float32, the precision that serving sees: else .1 served lies beside .1 trained,
    and every atom of the distribution reads as a shift.
    """
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64) if type_ == "float" else values


def strings(column: "pd.Series[Any]") -> npt.NDArray[Any]:
    """A column of strings as (n,) of str, null as None. Bytes are UTF-8, as they come from the wire."""
    plain = column.astype(object)
    found = [
        None if value is None or value is pd.NA or value is pd.NaT or value != value
        else value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        for value in plain
    ]  # fmt: skip
    return np.array(found, dtype=object)


def columns(frame: pd.DataFrame, features: Mapping[str, str]) -> dict[str, npt.NDArray[Any]]:
    """The features of a frame in the form that distances are computed in."""
    return {
        name: strings(frame[name]) if type_ == "string" else numbers(frame[name], type_)
        for name, type_ in features.items()
    }


def normalised(weights: Mapping[str, float], features: Sequence[str]) -> dict[str, float]:
    """Weights of the features that sum to 1: negative and absent ones are 0, and if none is left all are equal.

    >>> normalised({"a": 3.0, "b": -1.0, "c": 1.0}, ["a", "b", "c"])
    {'a': 0.75, 'b': 0.0, 'c': 0.25}
    """
    kept = {name: float(weights.get(name, 0.0)) for name in features}
    kept = {name: weight if math.isfinite(weight) and weight > 0 else 0.0 for name, weight in kept.items()}
    total = sum(kept.values())
    return {name: weight / total if total else 1 / len(kept) for name, weight in kept.items()}


def aggregate(marginals: Mapping[str, Marginal], weights: Mapping[str, float], batch: Columns) -> float:
    """A = sum of w_j D_j, in [0, 1]."""
    return sum(weights[name] * marginals[name].distance(batch[name]) for name in marginals if weights[name] > 0)


def expected(
    marginals: Mapping[str, Marginal], weights: Mapping[str, float], rows: int, reference_rows: int | None = None
) -> float:
    """The aggregate that sampling alone gives a block of `rows`."""
    return sum(
        weights[name] * marginals[name].expected(rows, reference_rows) for name in marginals if weights[name] > 0
    )


def indices(times: "pd.Series[pd.Timestamp]", start: datetime, block: timedelta) -> npt.NDArray[np.int64]:
    """Which block after `start` each moment lies in, blocks being [k, k + 1)."""
    return ((times - pd.Timestamp(utc(start))) // pd.Timedelta(block)).to_numpy().astype(np.int64)


def groups(index: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each block that has rows, with the places of its rows, in order."""
    order = np.argsort(index, kind="stable")
    found, first = np.unique(index[order], return_index=True)
    for number, places in zip(found, np.split(order, first)[1:], strict=True):
        yield int(number), places


def blocks(
    batch: Columns,
    index: npt.NDArray[np.int64],
    count: int,
    marginals: Mapping[str, Marginal],
    weights: Mapping[str, float],
    start: datetime,
    length: timedelta,
    min_rows: int,
) -> list[Block]:
    """All `count` blocks of a window in order; one with fewer than `min_rows` rows has no aggregate."""
    rows_of = dict(groups(index))
    found = []
    for number in range(count):
        places = rows_of.get(number, np.array([], dtype=np.int64))
        value = noise = None
        if len(places) >= min_rows:
            value = aggregate(marginals, weights, {name: column[places] for name, column in batch.items()})
            noise = expected(marginals, weights, len(places))
        found.append(Block(number, utc(start) + number * length, len(places), value, noise))
    return found
