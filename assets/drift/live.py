"""How far what serving sees now lies from the reference, feature by feature, at a few microseconds a value.

The reference is fixed, so the line of a numeric feature is cut once into 2n + 1 cells: one for each of n reference
values, one for each gap. A row adds to one cell a feature, and what leaves the window is subtracted again. Then
D = max |cumsum(counts)/W - F| is exact at the n values and, as F and G rise, at most 1/n below that on the line.

The window is the last block of event time in slots of a 24th, so that the level learned from blocks fits it.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from assets.drift.aggregate import Columns, expected
from assets.drift.categorical import Categorical
from assets.drift.ks import Numeric
from assets.drift.reference import Reference
from assets.drift.threshold import conformal_threshold, needed

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
POINTS, SLOTS = 1_000, 24
# Slots in a row above the level before an alarm. Each slot looks at the last block anew, so a level that one block in
# twenty exceeds is exceeded by some slot every few days. 24 simulated months without drift, daily season, hours that
# resemble their neighbours (.9): 6 in a row ask twice a month, 12 once, 18 .4 times, 24 .2 times; a shift of .6
# deviations in half of the features is asked about after 12, 18, 24 and 30 h. An ask costs one check, which decides.
ABOVE = SLOTS * 3 // 4


@dataclass(frozen=True, slots=True)
class Reading:
    """The window after its newest row. level: None while it is not full, or too few rows or blocks are known."""

    slot: int
    at_us: int
    rows: int
    aggregate: float
    level: float | None
    distances: dict[str, float]


@dataclass(frozen=True, slots=True)
class Watch:
    """What is carried from reading to reading. asked: one alarm, until the aggregate is back below its level."""

    slot: int = -1
    above: int = 0
    asked: bool = False

    def after(self, reading: Reading) -> "tuple[Watch, bool]":
        """The watch after a reading, and whether that is an alarm. A slot counts once, by its first reading."""
        if reading.level is None or reading.slot <= self.slot:
            return self, False
        above = self.above + 1 if reading.aggregate > reading.level else 0
        alarm = above >= ABOVE and not self.asked
        return Watch(reading.slot, above, above > 0 and (self.asked or alarm)), alarm


class LiveWindow:
    """Counts of the last block of event time against one reference. Not thread-safe."""

    def __init__(self, reference: Reference, points: int = POINTS) -> None:
        self.reference = reference
        self.slot_us = max(int(reference.settings.block_length.total_seconds() * 1e6) // SLOTS, 1)
        numeric = {n: m for n, m in reference.marginals.items() if isinstance(m, Numeric)}
        texts = {n: m for n, m in reference.marginals.items() if isinstance(m, Categorical)}
        self._names = [*numeric, *texts]
        self._weights = np.array([reference.weights[name] for name in self._names])
        grids = [_grid(marginal, points) for marginal in numeric.values()]
        width = max((len(line) for _, line in grids), default=0)
        self._lines = np.array([np.pad(line, (0, width - len(line)), mode="edge") for _, line in grids])
        most = max((len(m.names) for m in texts.values()), default=0)
        self._shares = np.array([_shares(marginal, most) for marginal in texts.values()])
        self._cells: list[Callable[[npt.NDArray[Any]], Ints]] = [
            *(_of_number(grid, width, at * (width + 1)) for at, (grid, _) in enumerate(grids)),
            *(
                _of_text(m.names, most, len(grids) * (width + 1) + at * (most + 2))
                for at, m in enumerate(texts.values())
            ),
        ]
        size = len(grids) * (width + 1) + len(texts) * (most + 2)
        self._counts, self._total = np.zeros((SLOTS, size), dtype=np.int32), np.zeros(size, dtype=np.int32)
        self._rows = np.zeros(SLOTS, dtype=np.int64)
        self._first = self._newest = self._at_us = -1
        self.out_of_window = 0

    def add(self, event_us: Ints, batch: Columns) -> None:
        """Rows with their event times in Unix microseconds, (m,), and every feature as `aggregate.columns` has it."""
        if len(event_us) == 0:
            return
        slot = event_us // self.slot_us
        first, newest = _together(slot)
        self._advance(first, newest)
        kept = (slot > self._newest - SLOTS) & (slot <= self._newest)
        self.out_of_window += len(slot) - int(kept.sum())
        if not kept.any():
            return
        self._at_us = max(self._at_us, int(event_us[kept].max()))
        cells = np.stack([find(batch[name][kept]) for name, find in zip(self._names, self._cells, strict=True)])
        slot = slot[kept]
        for number in range(int(slot.min()), int(slot.max()) + 1):
            here = cells[:, slot == number].ravel()
            np.add.at(self._counts[number % SLOTS], here, 1)
            np.add.at(self._total, here, 1)
            self._rows[number % SLOTS] += len(here) // len(self._names)

    def _advance(self, first: int, newest: int) -> None:
        if first - self._newest >= SLOTS or self._newest - newest >= SLOTS:  # a silence as long as the window
            self._counts[:], self._total[:], self._rows[:] = 0, 0, 0
            self._first, self._newest, self._at_us = first, newest, -1
        for number in range(max(self._newest, newest - SLOTS) + 1, newest + 1):
            self._total -= self._counts[number % SLOTS]
            self._counts[number % SLOTS] = 0
            self._rows[number % SLOTS] = 0
        self._newest = max(newest, self._newest)

    @property
    def rows(self) -> int:
        return int(self._rows.sum())

    @property
    def newest(self) -> int:
        """The newest slot, in slots since 1970."""
        return self._newest

    @property
    def is_full(self) -> bool:
        """Whether it reaches over a whole block."""
        return self._newest - self._first >= SLOTS

    def distances(self) -> Floats:
        """(features,) in [0, 1], numeric ones first."""
        parts = self._lines.size
        table = self._total[: parts + len(self._lines)].reshape(len(self._lines), -1)[:, :-1] if parts else None
        found = [] if table is None else [_ks(self._lines, np.cumsum(table, axis=1, dtype=np.int32), self.rows)]
        if len(self._shares):
            shares = self._total[parts + len(self._lines) :].reshape(self._shares.shape) / self.rows
            found.append(np.minimum(np.abs(self._shares - shares).sum(axis=1) / 2, 1.0))
        return np.concatenate(found)

    def read(self) -> Reading | None:
        """None while there are no rows."""
        rows, settings = self.rows, self.reference.settings
        if rows == 0:
            return None
        distances = self.distances()
        level = None
        if self.is_full and rows >= settings.min_block_rows:
            past = conformal_threshold(self._like()[-settings.history_cap :], settings.alpha)
            noise = expected(self.reference.marginals, self.reference.weights, rows)
            level = max(past + noise, settings.floor) if np.isfinite(past) else None
        aggregate = float(self._weights @ distances)
        named = dict(zip(self._names, map(float, distances), strict=True))
        return Reading(self._newest, self._at_us, rows, aggregate, level, named)

    def _like(self) -> tuple[float, ...]:
        """The blocks that this one is held against: those of its tag if they give a level, else the ordinary ones."""
        settings = self.reference.settings
        start = datetime.fromtimestamp((self._newest - SLOTS + 1) * self.slot_us / 1e6, UTC)
        tagged = self.reference.tagged.get(settings.tag_of(start), ())
        return tagged if len(tagged) >= needed(settings.alpha) else self.reference.history

    def to_bytes(self, watch: Watch) -> bytes:
        """Everything, with the watch over it, as a compressed npz of plain arrays."""
        slot, cell = np.nonzero(self._counts)
        state = [self._first, self._newest, self._at_us, self.out_of_window, watch.slot, watch.above, watch.asked]
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            reference=np.frombuffer(bytes.fromhex(self.reference.digest), dtype=np.uint8),
            state=np.array(state, dtype=np.int64),
            rows=self._rows,
            slot=slot.astype(np.int8),
            cell=cell.astype(np.int32),
            count=self._counts[slot, cell],
        )
        return buffer.getvalue()

    def resume(self, body: bytes) -> Watch | None:
        """Go on from what an earlier process saved; None, and nothing is changed, if it was of another reference."""
        try:
            with np.load(io.BytesIO(body), allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
            if arrays["reference"].tobytes().hex() != self.reference.digest:
                return None
            counts = np.zeros_like(self._counts)
            counts[arrays["slot"], arrays["cell"]] = arrays["count"]
            first, newest, at_us, out, slot, above, asked = map(int, arrays["state"])
        except Exception:  # a half-written or foreign file is no window: a new one fills within a block
            return None
        self._counts, self._rows = counts, arrays["rows"].astype(np.int64)
        self._total = counts.sum(axis=0, dtype=np.int32)
        self._first, self._newest, self._at_us, self.out_of_window = first, newest, at_us, out
        return Watch(slot, above, bool(asked))


def _together(slot: Ints) -> tuple[int, int]:
    """First and last slot of most rows, a window's silence apart from others: one wrong clock moves nothing."""
    ordered = np.sort(slot)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - SLOTS) >= SLOTS)
    at = int(np.searchsorted(starts, len(ordered) // 2, side="right"))
    last = int(starts[at]) if at < len(starts) else len(ordered)
    return int(ordered[starts[at - 1]]), int(ordered[last - 1])


def _grid(marginal: Numeric, points: int) -> tuple[Floats, Floats]:
    """Values at even ranks, and F just before and at each of them, then at the line's end: (n,), (2n + 1,)."""
    counts, keep = marginal.counts, np.arange(len(marginal.counts))
    if len(keep) > points:
        keep = np.unique(np.searchsorted(counts, np.linspace(counts[0], counts[-1], points)))
    line = np.zeros(2 * len(keep) + 1)
    line[:-1:2] = np.concatenate([[0], counts])[keep] / marginal.rows
    line[1::2] = counts[keep] / marginal.rows
    line[-1] = 1 - marginal.null_share
    return marginal.values[keep], line


def _shares(marginal: Categorical, most: int) -> Floats:
    own = marginal.own_cells / marginal.rows
    return np.concatenate([own[:-2], np.zeros(most - len(marginal.names)), own[-2:]])


def _of_number(grid: Floats, width: int, base: int) -> Callable[[npt.NDArray[Any]], Ints]:
    # What lies beyond the last value meets NaN, which equals nothing.
    ends = np.append(grid, np.nan)

    def cells(column: npt.NDArray[Any]) -> Ints:
        left = grid.searchsorted(column)
        found: Ints = 2 * left + (ends[left] == column) + base
        null = np.isnan(column)
        if null.any():
            found[null] = base + width
        return found

    return cells


def _of_text(names: Sequence[str], most: int, base: int) -> Callable[[npt.NDArray[Any]], Ints]:
    place = {name: base + at for at, name in enumerate(names)} | {None: base + most + 1}

    def cells(column: npt.NDArray[Any]) -> Ints:
        return np.fromiter((place.get(value, base + most) for value in column), dtype=np.int64, count=len(column))

    return cells


def _ks(reference: Floats, counts: npt.NDArray[np.int32], rows: int) -> Floats:
    """`ks.ks_distance` of many features at once: F, and rows of the batch, at or below each cell: (features, cells)."""
    difference = reference * rows
    difference -= counts
    last = difference[:, -1]
    highest, lowest = np.maximum(difference.max(axis=1), 0), np.minimum(difference.min(axis=1), 0)
    found: Floats = np.max([highest, -lowest, last - lowest, highest - last], axis=0)
    return np.minimum(found / rows, 1.0)
