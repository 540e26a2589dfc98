"""From logged requests to what a shadow evaluation may use: mature, with an outcome, each request once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.shadow.settings import BLOCK_HOURS, ShadowSettings

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

COLUMNS = ("key", "event_time", "known_at", "label", "champion", "challenger")
MODELS = ("champion", "challenger")


@dataclass(frozen=True, slots=True)
class Usable:
    """`frame`: rows to judge, by event time. `counts`: what became of every row that was given.

    `failed`: (rows,) True where serving gave no answer. `unlabelled`: the champion's scores of mature requests whose
    label never came, as far as they are known.
    """

    frame: pd.DataFrame
    counts: Mapping[str, int]
    failed: Mask
    unlabelled: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def missing_share(self) -> float:
        """Share of mature answered requests whose label never came."""
        mature = self.counts["labels"] + self.counts["missing_labels"]
        return self.counts["missing_labels"] / mature if mature else 0.0


def usable(pairs: pd.DataFrame, settings: ShadowSettings, as_of: datetime) -> Usable:
    """Rows of `pairs` that count at `as_of`, and how many were left out and why.

    A request is counted once, by its last label known at `as_of`; one that failed (column `failed`) is an outcome and
    needs no label. Columns `reports` and `corrected` (labels that came for a key, and whether they disagree) are
    counted when they are there. ValueError: a column is missing, a label or a score is none of the task's. A score
    that is not a number is counted, not dropped: see `unscored`.
    """
    needed = [*COLUMNS, *settings.columns]
    absent = [name for name in needed if name not in pairs.columns]
    if absent:
        raise ValueError(f"pairs: columns {absent} are missing; a shadow evaluation needs {needed}")
    event, known = (microseconds(pairs[name]) for name in ("event_time", "known_at"))
    at = int(as_of.timestamp() * 1e6)
    mature = event <= at - int(settings.maturity_hours * 3.6e9)
    unknown = pairs["known_at"].isna().to_numpy()
    failed = pairs["failed"].to_numpy(np.bool_) if "failed" in pairs else np.zeros(len(pairs), dtype=np.bool_)
    labelled = pairs["label"].notna().to_numpy() & (unknown | (known <= at))
    once, disagree = _once(pairs, labelled & ~failed, known)
    taken = mature & once & (labelled | failed)
    frame, order = _in_order(pairs, event, taken)
    late = taken & ~failed & ~unknown & (known > event + int(settings.maturity_hours * 3.6e9))
    missing = mature & once & ~labelled & ~failed
    n = int((taken & ~failed).sum())
    counts = {
        "rows": len(pairs),
        "labels": n,
        "failed": int((taken & failed).sum()),
        "duplicates": int((~once).sum()),
        "not_mature": int((~mature & once).sum()),
        "missing_labels": int(missing.sum()),
        "late_labels": int(late.sum()),
        "repeated_labels": max(_total(pairs, "reports", taken & ~failed) - n, 0),
        "corrected_labels": _total(pairs, "corrected", taken & ~failed) + disagree,
        "unscored": _checked(frame, failed[order], settings),
    }
    return Usable(frame, counts, failed[order], _known_scores(pairs, missing, settings))


def microseconds(instants: pd.Series) -> NDArray[np.int64]:
    """(n,) since 1970 in UTC; a missing instant is the least number there is."""
    found: NDArray[np.int64] = pd.DatetimeIndex(pd.to_datetime(instants, utc=True)).as_unit("us").asi8
    return found


def _once(pairs: pd.DataFrame, labelled: Mask, known: NDArray[np.int64]) -> tuple[Mask, int]:
    """True for the one row of each key that counts: labelled before unlabelled, then the latest known.

    Beside it the number of keys whose labelled rows disagree.
    """
    key = pairs["key"]
    if key.is_unique:
        return np.ones(len(pairs), dtype=np.bool_), 0
    code = pd.factorize(key, use_na_sentinel=False)[0]
    order = np.lexsort((np.arange(len(code)), known, labelled, code))
    last = np.append(code[order][1:] != code[order][:-1], True)
    once = np.zeros(len(code), dtype=np.bool_)
    once[order[last]] = True
    kept = pairs["label"][once].set_axis(code[once]).reindex(code).to_numpy(np.float64)
    differs = labelled & (pairs["label"].to_numpy(np.float64) != kept)
    return once, len(np.unique(code[differs]))


def _in_order(pairs: pd.DataFrame, event: NDArray[np.int64], taken: Mask) -> tuple[pd.DataFrame, NDArray[np.intp]]:
    """The taken rows by event time, and their positions in `pairs`.

    Rows of one instant are ordered by what they say, not by where they stood: the same rows give the same sums to the
    last bit.
    """
    order = np.flatnonzero(taken)
    times = event[order]
    if not (np.diff(times) > 0).all():
        order = order[np.lexsort((_said(pairs, order), times))]
    whole = len(order) == len(pairs) and bool((np.diff(order) == 1).all())
    return (pairs if whole else pairs.take(order)).reset_index(drop=True), order


def _said(pairs: pd.DataFrame, order: NDArray[np.intp]) -> Floats:
    """One number a row that rows of other labels or scores do not share: weights without a common measure."""
    columns = [pairs["label"].to_numpy(np.float64)[order], *(scores(pairs[name].iloc[order]) for name in MODELS)]
    found = np.zeros(len(order))
    for at, column in enumerate(np.column_stack(columns).T):
        found += column * np.sqrt(at + 2)
    return found


def scores(column: pd.Series) -> Floats:
    """(n,) numbers, or (n, k) where each row holds the chances of k classes; a row without any is NaN throughout."""
    if column.dtype != object:
        plain: Floats = column.to_numpy(np.float64)
        return plain
    rows = [np.atleast_1d(np.asarray(row, dtype=np.float64)) for row in column]
    widths = {len(row) for row in rows if len(row) > 1}
    if len(widths) > 1:
        raise ValueError(f"pairs: {column.name} has rows of {sorted(widths)} classes; every row has as many")
    width = widths.pop() if widths else 1
    found = np.stack([row if len(row) == width else np.full(width, np.nan) for row in rows or [np.empty(width)]])
    return np.asarray(found[: len(rows)] if width > 1 else found[: len(rows), 0], dtype=np.float64)


def answered(found: Floats) -> Mask:
    """(n,) True where every number of a row's score is one."""
    finite: Mask = np.isfinite(found)
    if finite.ndim > 1:
        finite = np.asarray(finite.all(axis=1), dtype=np.bool_)
    return finite


def _checked(frame: pd.DataFrame, failed: Mask, settings: ShadowSettings) -> int:
    """Requests that were answered and lack a score. ValueError: a label or a score is none of the task's."""
    label = frame["label"].to_numpy(np.float64)[~failed]
    if settings.task == "binary" and (wrong := label[(label != 0) & (label != 1)]).size:
        raise ValueError(f"pairs: label = {wrong[0]} in {wrong.size} rows; labels are 0 or 1")
    if settings.task == "regression" and (wrong := label[~np.isfinite(label)]).size:
        raise ValueError(f"pairs: label = {wrong[0]} in {wrong.size} rows; labels are finite numbers")
    without = np.zeros(len(frame), dtype=np.bool_)
    for name in MODELS:
        found = scores(frame[name])
        without |= ~answered(found)
        if settings.task != "regression":
            _check_chances(found, label, settings.task == "multiclass")
    return int((without & ~failed).sum())


def _check_chances(found: Floats, label: Floats, classes: bool) -> None:
    outside = found[(found < 0) | (found > 1)]
    if outside.size:
        raise ValueError(f"pairs: score = {outside[0]} in {outside.size} places; scores are probabilities in [0, 1]")
    if not classes or not len(found):
        return
    if found.ndim < 2:
        raise ValueError("pairs: scores are single numbers; task: multiclass needs the chance of every class")
    odd = np.abs(found.sum(axis=1) - 1) > 1e-3
    if odd.any():
        raise ValueError(f"pairs: {odd.sum()} rows of chances sum to {found[odd][0].sum():.4g}; they sum to 1")
    wrong = label[(label != np.floor(label)) | (label < 0) | (label >= found.shape[1])]
    if wrong.size:
        raise ValueError(
            f"pairs: label = {wrong[0]} in {wrong.size} rows; labels are numbers of classes, 0 to {found.shape[1] - 1}"
        )


def _known_scores(pairs: pd.DataFrame, missing: Mask, settings: ShadowSettings) -> Floats:
    if settings.task == "multiclass" or not missing.any():
        return np.empty(0)
    found: Floats = pairs["champion"].to_numpy(np.float64)[missing]
    return np.asarray(found[np.isfinite(found)])


def _total(pairs: pd.DataFrame, name: str, taken: Mask) -> int:
    return int(pairs[name].to_numpy()[taken].sum()) if name in pairs else 0


def blocks(event_us: NDArray[np.int64], settings: ShadowSettings) -> tuple[NDArray[np.intp], list[datetime]]:
    """(n,) each request's block, counted from 0 in order of time, and the start of each block that has requests.

    UTC has no clock changes, so every block is as long as the next.
    """
    length = BLOCK_HOURS[settings.block] * 3_600_000_000
    offset = round(settings.block_offset_hours * 3.6e9)
    number = (event_us - offset) // length
    if not len(number):
        return number.astype(np.intp), []
    first = int(number.min())
    seen = np.flatnonzero(np.bincount(number - first))
    position = np.zeros(seen[-1] + 1, dtype=np.intp)
    position[seen] = np.arange(len(seen))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    starts = [epoch + timedelta(microseconds=int((first + at) * length + offset)) for at in seen]
    return position[number - first], starts
