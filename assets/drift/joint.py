"""Did the features move together where each alone stands still? A classifier two-sample test on whole rows.

If a classifier can tell rows of the window from rows of the reference, the two differ (Friedman 2003, SLAC-PUB-10325;
Lopez-Paz & Oquab 2017, arXiv 1610.06545). Here it is Fisher's discriminant on standardised ranks and indicators of
categories and on their products in pairs: what correlates anew shows, and it is refitted in a millisecond. Its AUC is
of rows in blocks that it did not see: fitted on every second block, judged on the others, and the other way about.

Chance is measured on the reference itself: each run of as many blocks, taken as the window, against the blocks that
are left. So seasons and days that resemble their neighbours are in the null, and p = (1 + runs with an AUC as
large)/(1 + runs) keeps its level if the reference is stationary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assets.drift.sample import NULL, Sample

Floats = npt.NDArray[np.float64]
MOST_FEATURES, MOST_CATEGORIES, MOST_RUNS, RIDGE = 16, 3, 60, 0.1
# Fewer blocks of the window leave too little to judge by; fewer of the reference give no p-value worth its name.
LEAST_WINDOW, LEAST_PAST = 4, 20


@dataclass(frozen=True, slots=True)
class Joint:
    """auc: of telling the window's rows from the reference's, on unseen blocks; alone: the same without products."""

    auc: float
    alone: float
    p_value: float
    runs: int


def joint_drift(reference: Sample, window: Sample, weights: Mapping[str, float]) -> Joint | None:
    """The test; None where there are too few blocks. The features of most weight are looked at."""
    from threadpoolctl import threadpool_limits

    # Products this small are finished before other threads have woken, which then spin: ten times the CPU.
    with threadpool_limits(1, user_api="blas"):
        return _joint_drift(reference, window, weights)


def _joint_drift(reference: Sample, window: Sample, weights: Mapping[str, float]) -> Joint | None:
    _, late = np.unique(window.block, return_inverse=True)
    _, early = np.unique(reference.block, return_inverse=True)
    size, past = int(late.max(initial=-1)) + 1, int(early.max(initial=-1)) + 1
    if size < LEAST_WINDOW or past < max(LEAST_PAST, 2 * size):
        return None
    names = sorted(reference.columns, key=lambda name: (-weights.get(name, 0.0), name))[:MOST_FEATURES]
    columns = [np.concatenate([window.columns[name], reference.columns[name]]) for name in names]
    block = np.concatenate([late, early + size]).astype(np.int64)
    base = _standard(np.column_stack([part for column in columns for part in _parts(column)]))
    left, right = np.triu_indices(base.shape[1], 1)
    folds = _folds(_standard(np.column_stack([base, base[:, left] * base[:, right]])), block)

    real, old = np.arange(size), np.arange(size, size + past)
    starts = np.unique(np.linspace(0, past, min(past, MOST_RUNS), endpoint=False).astype(np.int64))
    runs = [np.roll(old, -int(start)) for start in starts]
    auc = _auc(folds, real, old)
    chance = np.array([_auc(folds, run[:size], run[size:]) for run in runs])
    alone = _auc(_folds(base, block), real, old)
    return Joint(auc, alone, (1 + int((chance >= auc).sum())) / (1 + len(runs)), len(runs))


def _parts(column: npt.NDArray[Any]) -> list[Floats]:
    """A numeric column as its rank and its nulls; one of categories as indicators of the commonest and of null."""
    if column.dtype.kind == "f":
        null = np.isnan(column)
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        rank = (np.cumsum(counts) - (counts + 1) / 2)[place] / len(column)
        return [np.where(null, 0.5, rank), null.astype(np.float64)]
    codes, counts = np.unique(column, return_counts=True)
    kept = codes[np.argsort(-counts, kind="stable")][:MOST_CATEGORIES]
    return [(column == code).astype(np.float64) for code in sorted({*kept.tolist(), NULL})]


def _standard(table: Floats) -> Floats:
    """Columns of mean 0 and spread 1; those without spread are left out, but for one."""
    spread = table.std(axis=0)
    kept = spread > 1e-9
    if not kept.any():
        return np.zeros((len(table), 1))
    standard: Floats = (table[:, kept] - table[:, kept].mean(axis=0)) / spread[kept]
    return standard


@dataclass(frozen=True, slots=True, eq=False)
class _Fold:
    """The rows of every second block. table: (n, k); block: (n,); sums: (blocks, k) and rows: (blocks,) of each block,
    so that a discriminant of any choice of blocks takes no look at rows; inverse: (k, k) of their spread."""

    table: Floats
    block: npt.NDArray[np.int64]
    sums: Floats
    rows: Floats
    inverse: Floats


def _folds(table: Floats, block: npt.NDArray[np.int64]) -> tuple[_Fold, _Fold]:
    count, found = int(block.max()) + 1, []
    for half in (0, 1):
        mine = block % 2 == half
        part, place = table[mine], block[mine]
        order = np.argsort(place, kind="stable")
        present, first = np.unique(place[order], return_index=True)
        sums, rows = np.zeros((count, table.shape[1])), np.bincount(place, minlength=count).astype(np.float64)
        sums[present] = np.add.reduceat(part[order], first)
        spread = part.T @ part / len(part) + RIDGE * np.eye(table.shape[1])
        found.append(_Fold(part, place, sums, rows, np.linalg.inv(spread)))
    return found[0], found[1]


def _auc(folds: tuple[_Fold, _Fold], inside: npt.NDArray[np.int64], outside: npt.NDArray[np.int64]) -> float:
    """Of telling the blocks `inside` from those `outside`: the mean of both ways round."""
    found = []
    for fitted, judged in (folds, folds[::-1]):
        means = [fitted.sums[part].sum(axis=0) / max(fitted.rows[part].sum(), 1) for part in (inside, outside)]
        score = judged.table @ (fitted.inverse @ (means[0] - means[1]))
        side = np.zeros(len(judged.rows), dtype=np.int8)
        side[outside], side[inside] = 1, 2
        asked = side[judged.block]
        found.append(_area(score[asked > 0], asked[asked > 0] == 2))
    return float(np.mean(found))


def _area(score: Floats, positive: npt.NDArray[np.bool_]) -> float:
    ranks = np.empty(len(score))
    ranks[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    ones = int(positive.sum())
    zeros = len(score) - ones
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros)) if ones and zeros else 0.5
