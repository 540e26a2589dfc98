"""Cells of the feature space: the leaves of one shallow tree distilled from a model's score, and one for the rest.

A canary that saw many requests may still have seen few kinds of them. The tree says what the kinds are: where the
score differs, the model does something else. Plain arrays, versioned with the snapshot they were made of.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.arrays import pack, unpack
from assets.scoring import as_served

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

FORMAT = 1
# A leaf with fewer reference rows says nothing about how much traffic it gets.
LEAST_ROWS = 30
# Bounds the time of an assignment; best-first growth needs more than log2(cells).
DEPTH = 14
# Rows the tree is grown on: more would draw the same map, later.
MOST_ROWS = 20_000
# Rows that stay in the processor's cache while they walk down the tree.
CHUNK_ROWS = 8192
HOURS = 24


def cells_key(model: str, version: int) -> str:
    """Where the cells made with a version's snapshot lie, beside its reference."""
    return f"references/{model}/{version}-cells.npz"


class Assigned(NamedTuple):
    """cell: (n,) index of each row's cell. beyond: (n,) rows that the reference does not know: a number out of its
    range, a new category, a null in a column that had none.
    """

    cell: NDArray[np.int32]
    beyond: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cells:
    """A partition into K leaves and, as the last cell, the rows with nulls or beyond the reference.

    words, ranks: by string feature, its categories in order and the rank of each by mean score; low, high: (F,) range
    of each feature; nulls: (F,) had the reference nulls in it; feature, threshold: (nodes,) of the tree, `x <=
    threshold` goes left; child: (2 * nodes,) left and right of node i at 2i and 2i + 1, a leaf is its own child; leaf:
    (nodes,) cell of a leaf; counts: (K + 1,) reference rows a cell; hours: (24,) reference rows by UTC hour of day.
    """

    features: Mapping[str, str]
    words: Mapping[str, tuple[str, ...]]
    ranks: Mapping[str, NDArray[np.float32]]
    low: Floats
    high: Floats
    nulls: NDArray[np.bool_]
    feature: NDArray[np.int32]
    threshold: Floats
    child: NDArray[np.int32]
    leaf: NDArray[np.int32]
    depth: int
    counts: Counts
    hours: Counts

    @property
    def outside(self) -> int:
        """The cell of rows with nulls or beyond the reference."""
        return len(self.counts) - 1

    def assign(self, frame: pd.DataFrame) -> Assigned:
        """The cell of each row. KeyError names a feature that the frame lacks."""
        n = len(frame)
        table, beyond, null = np.empty((n, len(self.features)), np.float32), np.zeros(n, bool), np.zeros(n, bool)
        for at, (name, kind) in enumerate(self.features.items()):
            column, missing = self._column(name, kind, frame[name])
            with np.errstate(invalid="ignore"):
                known = (column >= self.low[at]) & (column <= self.high[at])
            beyond |= ~known & ~missing
            if missing.any():
                null |= missing
                if not self.nulls[at]:
                    beyond |= missing
            table[:, at] = column
        cell = np.empty(n, np.int32)
        for start in range(0, n, CHUNK_ROWS):
            cell[start : start + CHUNK_ROWS] = self._walk(table[start : start + CHUNK_ROWS])
        cell[beyond | null] = self.outside
        return Assigned(cell, beyond)

    def _column(self, name: str, kind: str, values: pd.Series) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(n,) numbers and (n,) nulls. A category that the reference does not know lies below every range."""
        if kind == "string":
            code = self._indices[name].get_indexer(pd.Index(values.to_numpy(dtype=object)))
            ranks = np.append(self.ranks[name], np.float32(-1))
            missing = np.zeros(len(code), bool)
            unknown = np.flatnonzero(code < 0)
            missing[unknown] = values.iloc[unknown].isna() | (values.iloc[unknown] == "")
            return ranks[code], missing
        column = values.to_numpy(dtype=np.float32, na_value=np.nan)
        return column, np.isnan(column)

    @cached_property
    def _indices(self) -> dict[str, pd.Index]:
        return {name: pd.Index(np.array(words, dtype=object)) for name, words in self.words.items()}

    def _walk(self, table: NDArray[np.float32]) -> NDArray[np.int32]:
        flat, row = table.ravel(), np.arange(len(table)) * table.shape[1]
        node = np.zeros(len(table), np.int64)
        for _ in range(self.depth):
            right = flat.take(row + self.feature.take(node)) > self.threshold.take(node)
            node = self.child.take(2 * node + right)
        cell: NDArray[np.int32] = self.leaf.take(node)
        return cell

    def to_bytes(self) -> bytes:
        """A compressed npz of plain arrays: nothing in it is ever executed."""
        meta = {
            "format": FORMAT,
            "features": dict(self.features),
            "words": {name: list(words) for name, words in self.words.items()},
            "depth": self.depth,
        }
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {f"ranks/{name}": ranks for name, ranks in self.ranks.items()}
        return pack(json.dumps(meta).encode(), arrays)

    @classmethod
    def from_bytes(cls, body: bytes) -> "Cells":
        """The inverse of `to_bytes`. ValueError says what is wrong with the bytes."""
        meta, arrays = unpack(body, "cells", FORMAT, "train the model again")
        words = {name: tuple(found) for name, found in meta["words"].items()}
        return cls(
            features=meta["features"],
            words=words,
            ranks={name: arrays[f"ranks/{name}"] for name in words},
            depth=meta["depth"],
            **{name: arrays[name] for name in ARRAYS},
        )


ARRAYS = ("low", "high", "nulls", "feature", "threshold", "child", "leaf", "counts", "hours")


def build_cells(
    frame: pd.DataFrame, features: Mapping[str, str], scores: Floats, cells: int, least_rows: int = LEAST_ROWS
) -> Cells:
    """At most `cells` leaves of at least `least_rows` reference rows each, where `scores` (n,) differ most.

    frame: n reference rows, features and event_time. Rows with a null are left to the last cell. ValueError without
    rows or with fewer than two cells.
    """
    from sklearn.tree import DecisionTreeRegressor

    if not len(frame) or len(scores) != len(frame) or cells < 2:
        raise ValueError(f"{len(scores)} scores of {len(frame)} rows, {cells} cells: give a score a row, two cells up")
    served = as_served(frame, features)
    words, ranks = _ranked(served, features, scores)
    columns = [
        served[name].map(dict(zip(words[name], ranks[name], strict=True))).fillna(np.nan)
        if kind == "string"
        else served[name]
        for name, kind in features.items()
    ]
    table = np.stack([column.to_numpy(dtype=np.float32) for column in columns], axis=1)
    missing = np.isnan(table)
    complete = ~missing.any(axis=1)
    low = np.where(missing, np.inf, table).min(axis=0).astype(np.float64)
    high = np.where(missing, -np.inf, table).max(axis=0).astype(np.float64)
    tree = DecisionTreeRegressor(max_leaf_nodes=cells, min_samples_leaf=least_rows, max_depth=DEPTH, random_state=0)
    chosen = np.flatnonzero(complete)[:: len(frame) // MOST_ROWS + 1]
    if len(chosen):
        grown = tree.fit(table[chosen], scores[chosen]).tree_
    else:  # nothing to tell apart: one leaf that nothing reaches
        grown = tree.fit(np.zeros((1, table.shape[1])), np.zeros(1)).tree_
    bare = _from_tree(grown, dict(features), words, ranks, low, high, missing.any(axis=0))
    counts = np.bincount(bare.assign(frame).cell, minlength=len(bare.counts))
    hours = np.bincount(pd.to_datetime(frame["event_time"], utc=True).dropna().dt.hour, minlength=HOURS)
    return replace(bare, counts=counts.astype(np.int64), hours=hours.astype(np.int64))


def _from_tree(
    tree: Any,
    features: Mapping[str, str],
    words: Mapping[str, tuple[str, ...]],
    ranks: Mapping[str, NDArray[np.float32]],
    low: Floats,
    high: Floats,
    nulls: NDArray[np.bool_],
) -> Cells:
    """The plain arrays of a fitted tree. Its leaves loop to themselves, so every row takes `depth` steps."""
    node = np.arange(tree.node_count)
    is_leaf = tree.children_left < 0
    child = np.stack([np.where(is_leaf, node, side) for side in (tree.children_left, tree.children_right)], axis=1)
    leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)
    return Cells(
        features=features,
        words=words,
        ranks=ranks,
        low=low,
        high=high,
        nulls=nulls,
        feature=np.where(is_leaf, 0, tree.feature).astype(np.int32),
        threshold=np.where(is_leaf, np.inf, tree.threshold),
        child=child.ravel().astype(np.int32),
        leaf=leaf.astype(np.int32),
        depth=int(tree.max_depth),
        counts=np.zeros(int(is_leaf.sum()) + 1, np.int64),
        hours=np.zeros(HOURS, np.int64),
    )


def _ranked(
    served: pd.DataFrame, features: Mapping[str, str], scores: Floats
) -> tuple[dict[str, tuple[str, ...]], dict[str, NDArray[np.float32]]]:
    """Categories in order of name, and the rank of each by its mean score: near in rank is near in what it does."""
    words: dict[str, tuple[str, ...]] = {}
    ranks: dict[str, NDArray[np.float32]] = {}
    for name, kind in features.items():
        if kind != "string":
            continue
        means = pd.Series(scores).groupby(served[name].to_numpy()).mean().drop("", errors="ignore").sort_index()
        words[name] = tuple(means.index)
        ranks[name] = means.rank(method="first").to_numpy(dtype=np.float32)
    return words, ranks
