"""Whole rows, few and evenly in time: what joint distributions are compared by, where columns alone say nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from assets.drift.aggregate import Columns, Marginal
from assets.drift.categorical import Categorical

NULL, NEW = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """columns: name -> (n,) float32, NaN is null, or int32 places among the reference's categories, NULL or NEW.

    block: (n,) int32, the block of each row; rows are in order of time.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    block: npt.NDArray[np.int32]


def sampled(
    batch: Columns,
    times: "pd.Series[pd.Timestamp]",
    index: npt.NDArray[np.int64],
    marginals: Mapping[str, Marginal],
    most: int,
) -> Sample | None:
    """Every k-th row in order of time, `most` at most; None if none are wanted. The order of the rows says nothing."""
    if most == 0 or len(times) == 0:
        return None
    coded = {name: _coded(column, marginals[name]) for name, column in batch.items()}
    # Rows of one instant are ordered by what they hold: sums of irrational multiples differ where the rows do.
    inside = np.zeros(len(times))
    for place, column in enumerate(coded.values(), 1):
        inside += np.nan_to_num(column.astype(np.float64), nan=0.5) * (place * 0.6180339887498949 % 1)
    order = np.lexsort([inside, times.to_numpy()])
    kept = order[np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).astype(np.int64))]
    return Sample({name: column[kept] for name, column in coded.items()}, index[kept].astype(np.int32))


def _coded(column: npt.NDArray[Any], marginal: Marginal) -> npt.NDArray[Any]:
    if not isinstance(marginal, Categorical):
        with np.errstate(over="ignore"):
            return column.astype(np.float32)
    texts = pd.Series(column, dtype=object)
    code = pd.Index(marginal.names, dtype=object).get_indexer(pd.Index(texts))
    return np.where(texts.isna().to_numpy(), NULL, np.where(code < 0, NEW, code)).astype(np.int32)
