"""The total variation distance of categories from a fixed reference, with mass for nulls and for new categories."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Categorical:
    """Distribution of a feature of strings. names: (K,) sorted; counts: (K,) rows of each; the other rows are null."""

    names: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    rows: int
    kind: Literal["categorical"] = "categorical"

    @classmethod
    def of(cls, column: npt.NDArray[Any], most: int | None = None) -> "Categorical":
        """column: (n,) of str, None is null. Categories are kept exactly, so `most` has no use here."""
        found = pd.Series(column, dtype=object).dropna().value_counts().sort_index()
        return cls(tuple(map(str, found.index)), found.to_numpy().astype(np.int64), len(column))

    @property
    def null_share(self) -> float:
        """Share of rows without a value."""
        return 1 - int(self.counts.sum()) / self.rows

    @property
    def singletons(self) -> float:
        """Share of categories seen once: what Good and Turing expect of the unseen ones (Biometrika 40, 1953)."""
        return int((self.counts == 1).sum()) / self.rows

    def cells(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Rows of `batch` (m,) in each known category, then in new ones, then null: (K + 2,)."""
        column = pd.Series(batch, dtype=object)
        null = column.isna().to_numpy()
        code = pd.Index(self.names, dtype=object).get_indexer(pd.Index(column[~null], dtype=object))
        known = np.bincount(code[code >= 0], minlength=len(self.names))
        return np.concatenate([known, [(code < 0).sum(), null.sum()]]).astype(np.int64)

    @property
    def own_cells(self) -> npt.NDArray[np.int64]:
        """The reference in the same cells."""
        return np.concatenate([self.counts, [0, self.rows - self.counts.sum()]]).astype(np.int64)

    def distance(self, batch: npt.NDArray[Any]) -> float:
        """Half the sum of |p - q|, in [0, 1]."""
        if len(batch) == 0:
            raise ValueError("an empty batch has no distribution: ask for rows first")
        return tvd(self.own_cells / self.rows, self.cells(batch) / len(batch))

    def expected(self, rows: int, reference_rows: int | None = None) -> float:
        """Mean distance that sampling alone gives `rows` rows of the same distribution."""
        other = reference_rows or self.rows
        return expected_tvd(self.own_cells / self.rows, rows * other / (rows + other))

    def p_value(self, batch: npt.NDArray[Any], distance: float | None = None) -> float:
        """Chi-square of homogeneity; cells that expect fewer than five rows are judged together."""
        from scipy.special import chdtrc

        table = np.stack([self.own_cells, self.cells(batch)]).astype(float)
        sizes = table.sum(axis=1, keepdims=True)
        rare = table.sum(axis=0) * sizes.min() / sizes.sum() < 5
        table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
        table = table[:, table.sum(axis=0) > 0]
        expected = sizes * table.sum(axis=0) / sizes.sum()
        freedom = table.shape[1] - 1
        return float(chdtrc(freedom, ((table - expected) ** 2 / expected).sum())) if freedom > 0 else 1.0

    def unseen(self, batch: npt.NDArray[Any]) -> float:
        """Share of the rows in categories that the reference never had."""
        return int(self.cells(batch)[-2]) / len(batch)


def tvd(p: Floats, q: Floats) -> float:
    """Total variation distance of two distributions over the same cells.

    >>> tvd(np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.25, 0.25]))
    0.25
    """
    return min(float(np.abs(p - q).sum()) / 2, 1.0)


def expected_tvd(shares: Floats, size: float) -> float:
    """Mean of TVD(sample of `size`, shares): normal error of each share, where that exceeds what one row can do.

    >>> round(expected_tvd(np.array([0.5, 0.5]), 100), 4)
    0.0399
    """
    spread = shares * (1 - shares)
    return min(float(np.minimum(np.sqrt(spread / (2 * np.pi * size)), spread).sum()), 1.0)
