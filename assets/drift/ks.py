"""The Kolmogorov-Smirnov distance of a batch from a fixed reference, exact with ties, unequal sizes and nulls."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from assets.drift.categorical import expected_tvd

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Mean of the Kolmogorov distribution: sqrt(pi/2) ln 2 (Marsaglia, Tsang, Wang, J. Stat. Softw. 8(18), 2003).
MEAN_KOLMOGOROV = 0.8687311606361592
FEW_VALUES = 64
# Values of the reference that a large batch is compared at before cells are refined.
CELLS = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Numeric:
    """Distribution of a numeric feature. values: (K,) distinct, ascending; counts: (K,) rows at or below each value.

    `rows` counts all rows, nulls too: nulls are an atom that lies beside the line, below all values and above them.
    """

    values: Floats
    counts: Ints
    rows: int
    kind: Literal["numeric"] = "numeric"

    @classmethod
    def of(cls, column: Floats, most: int | None = None) -> "Numeric":
        """column: (n,), NaN is null. Above `most` distinct values those at even ranks stay: D moves by 1/most."""
        values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
        total = np.cumsum(counts, dtype=np.int64)
        if most is not None and len(values) > most:
            ranks = np.linspace(total[0], total[-1], most)
            keep = np.unique(np.searchsorted(total, ranks))
            values, total = values[keep], total[keep]
        return cls(values.astype(np.float64), total, len(column))

    @property
    def null_share(self) -> float:
        """Share of rows without a value."""
        return 1 - int(self.counts[-1]) / self.rows if len(self.counts) else 1.0

    def distance(self, batch: Floats) -> float:
        """D in [0, 1] of `batch` (m,), NaN is null."""
        return ks_distance(self.values, self.counts, self.rows, batch)

    def expected(self, rows: int, reference_rows: int | None = None) -> float:
        """Mean distance that sampling alone gives `rows` rows of the same distribution."""
        size = effective(rows, reference_rows or self.rows)
        mean: float = MEAN_KOLMOGOROV / size**0.5
        if len(self.values) > FEW_VALUES:
            return min(mean, 1.0)
        shares = np.append(np.diff(self.counts / self.rows, prepend=0.0), self.null_share)
        return min(mean, expected_tvd(shares, size))  # atoms move less: for a flag this is exact

    def p_value(self, batch: Floats, distance: float | None = None) -> float:
        """Asymptotic; conservative with ties. distance: of this batch, where it is known."""
        from scipy.special import kolmogorov

        distance = self.distance(batch) if distance is None else distance
        return float(kolmogorov(distance * effective(len(batch), self.rows) ** 0.5))

    def unseen(self, batch: Floats) -> float:
        """No number is a new category."""
        return 0.0


def ks_distance(values: Floats, counts: Ints, rows: int, batch: Floats) -> float:
    """sup |F - G|: counts[k] of ALL the reference's rows are <= values[k]; batch (m,) is unsorted, NaN is null.

    F jumps at `values` and G at the batch, so the supremum lies at a value or just before one. Nulls count on both
    sides of the line, so D is at least the difference of the null shares.

    >>> ks_distance(np.array([1.0, 2.0]), np.array([1, 2]), 2, np.array([2.0, 2.0, 3.0]))
    0.5
    """
    if len(batch) == 0:
        raise ValueError("an empty batch has no distribution: ask for rows first")
    # A small batch asks the reference, m log K; a large one is asked by it, and at few of its values.
    highest, lowest, last = (_by_batch if len(batch) < CELLS else _by_reference)(values, counts, rows, batch)
    # Differences of F - G over the line with the nulls above it; nulls below it shift all by the null shares.
    highest, lowest = max(highest, last, 0.0), min(lowest, last, 0.0)
    return min(max(highest, -lowest, last - lowest, highest - last), 1.0)


def _upto(counts: Ints, rows: int, place: Ints) -> Floats:
    """F after the first `place` values. Only what is asked for is divided: the reference may be a thousand times it."""
    found: Floats = np.where(place > 0, counts[np.maximum(place - 1, 0)], 0) / rows
    return found


def _by_batch(values: Floats, counts: Ints, rows: int, batch: Floats) -> tuple[float, float, float]:
    """Highest, lowest and last of F - G on the line, looking at each value of the batch."""
    points, sizes = np.unique(batch[~np.isnan(batch)], return_counts=True)
    if len(values) == 0:
        present = int(sizes.sum()) / len(batch)
        return 0.0, -present, -present
    total = np.cumsum(sizes)
    at_or_below, below = total / len(batch), (total - sizes) / len(batch)
    reference_at = _upto(counts, rows, np.searchsorted(values, points, side="right"))
    reference_below = _upto(counts, rows, np.searchsorted(values, points, side="left"))
    highest, lowest = (reference_below - below).max(initial=0.0), (reference_at - at_or_below).min(initial=0.0)
    last = int(counts[-1]) / rows - (at_or_below[-1] if len(points) else 0.0)
    return float(highest), float(lowest), float(last)


def _by_reference(values: Floats, counts: Ints, rows: int, batch: Floats) -> tuple[float, float, float]:
    """The same by branch and bound: the reference's values cut into CELLS cells, and only cells that can hold more.

    F and G rise, so between the grid values i < j no F - G exceeds F just before j less G at i, no G - F exceeds G
    just before j less F at i. Rounding keeps the order of what it rounds: the result is exact to the last bit.
    """
    # NaN sorts last, so one search counts the nulls.
    ordered = np.sort(batch)
    present = int(np.searchsorted(ordered, np.nan)) / len(batch)
    if len(values) == 0:
        return 0.0, -present, -present
    size = min(CELLS, len(values))
    grid = np.arange(size) * (len(values) - 1) // max(size - 1, 1)
    before, at = _shares(ordered, values[grid])
    reference_before, reference_at = _upto(counts, rows, grid), _upto(counts, rows, grid + 1)
    # F - G is highest at a value, lowest just before one, or at the end of the line.
    highest = float((reference_at - at).max())
    last = float(reference_at[-1] - present)
    lowest = min(float((reference_before - before).min()), last)
    promising = (reference_before[1:] - at[:-1] > highest) | (reference_at[:-1] - before[1:] < lowest)
    inside = _between(grid[:-1][promising], grid[1:][promising])
    if len(inside):
        before, at = _shares(ordered, values[inside])
        highest = max(highest, float((_upto(counts, rows, inside + 1) - at).max()))
        lowest = min(lowest, float((_upto(counts, rows, inside) - before).min()))
    return highest, lowest, last


def _shares(ordered: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Share of the batch below each of the ascending points, and at or below it."""
    below = np.searchsorted(ordered, points, side="left")
    at = below.copy()
    met = ordered[np.minimum(below, len(ordered) - 1)] == points
    at[met] = np.searchsorted(ordered, points[met], side="right")
    return below / len(ordered), at / len(ordered)


def _between(left: Ints, right: Ints) -> Ints:
    """All whole numbers strictly between each left and its right.

    >>> _between(np.array([0, 7]), np.array([3, 9])).tolist()
    [1, 2, 8]
    """
    sizes = right - left - 1
    starts = np.repeat(left + 1 - np.cumsum(sizes) + sizes, sizes)
    return starts + np.arange(sizes.sum())


def critical_value(alpha: float, rows: int, reference_rows: int) -> float:
    """Distance that two samples of one distribution exceed with probability alpha at most (asymptotic).

    The first term of Kolmogorov's series, which bounds it: sqrt(-ln(alpha/2)/2).

    >>> round(critical_value(0.05, 2, 2), 7), round(critical_value(0.001, 2, 2), 7)
    (1.3581015, 1.9494746)
    """
    return math.sqrt(-math.log(alpha / 2) / 2 / effective(rows, reference_rows))


def effective(rows: int, reference_rows: int) -> float:
    """nm / (n + m): the size of one sample that varies as the difference of two does."""
    return rows * reference_rows / (rows + reference_rows)
