"""Since when did the loss rise? ADWIN over the labels in order of their arrival.

Bifet & Gavalda 2007 (SIAM SDM, Learning from time-changing data with adaptive windowing), ADWIN2: the window is kept
in buckets of 1, 2, 4, ... values; every CLOCK values it is cut wherever the means of its two parts differ by more than
chance explains at DELTA. Step by step river's `drift.ADWIN` (the tests hold it to that), but its state is plain
numbers, so that it goes on from one decision record to the next, and a check is spared the import of river (.9 s).

Labels of one day share its weather, so a cut between single labels is no proof of harm: it says when, and warns.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

DELTA, CLOCK, MOST_BUCKETS, LEAST_PART, GRACE = 0.002, 32, 5, 5, 10

Bucket = tuple[float, float]  # total, sum of squared deviations from its own mean


@dataclass(frozen=True, slots=True)
class Change:
    """A change at value number `at` (from 1, since the first value ever): the means before and after it."""

    at: int
    before: float
    after: float

    @property
    def is_rise(self) -> bool:
        return self.after > self.before


class Adwin:
    """The adaptive window. rows[i] holds buckets of 2**i values, oldest first; a step changes it."""

    def __init__(self) -> None:
        self.rows: list[list[Bucket]] = [[]]
        self.width, self.total, self.variance, self.tick = 0, 0.0, 0.0, 0
        self.seen = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [[list(bucket) for bucket in row] for row in self.rows]
        return {"rows": rows, "variance": self.variance, "total": self.total, "tick": self.tick, "seen": self.seen}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Adwin":
        """The inverse of `to_dict`, to the last bit."""
        found = cls()
        found.rows = [[(float(total), float(spread)) for total, spread in row] for row in value["rows"]]
        found.width = sum(len(row) << place for place, row in enumerate(found.rows))
        found.total, found.variance = float(value["total"]), float(value["variance"])
        found.tick, found.seen = int(value["tick"]), int(value["seen"])
        return found

    def changes(self, values: Iterable[float]) -> list[Change]:
        """Take values in order; the changes among them, up and down. After each the window is new."""
        return [change for value in values if (change := self.step(value))]

    def step(self, value: float) -> Change | None:
        """One more value, and the change that it shows."""
        self.seen += 1
        self._insert(value)
        self.tick += 1
        if self.tick % CLOCK or self.width <= GRACE:
            return None
        change = self._cut()
        if change is None:
            return None
        self.rows, self.width, self.total, self.variance, self.tick = [[]], 0, 0.0, 0.0, 0
        return Change(self.seen, *change)

    def _insert(self, value: float) -> None:
        self.rows[0].append((value, 0.0))
        self.width += 1
        if self.width > 1:
            past = self.width - 1
            self.variance += past * (value - self.total / past) ** 2 / self.width
        self.total += value
        for place, row in enumerate(self.rows):
            if len(row) <= MOST_BUCKETS:
                return
            if place + 1 == len(self.rows):
                self.rows.append([])
            (a, spread_a), (b, spread_b), size = row[0], row[1], 1 << place
            between = size * size * (a / size - b / size) ** 2 / (size + size)
            self.rows[place + 1].append((a + b, spread_a + spread_b + between))
            del row[:2]

    def _cut(self) -> tuple[float, float] | None:
        """Means of the older and the newer part at the first cut that chance does not explain."""
        old, old_total = 0, 0.0
        for place in range(len(self.rows) - 1, -1, -1):
            for total, _ in self.rows[place]:
                old, old_total = old + (1 << place), old_total + total
                new, new_total = self.width - old, self.total - old_total
                if min(old, new) >= LEAST_PART and self._differ(old, new, old_total / old - new_total / new):
                    return old_total / old, new_total / new
        return None

    def _differ(self, old: int, new: int, difference: float) -> bool:
        confidence = math.log(2 * math.log(self.width) / DELTA)
        inverse = 1 / (old - LEAST_PART + 1) + 1 / (new - LEAST_PART + 1)
        chance = math.sqrt(2 * inverse * self.variance / self.width * confidence) + 2 / 3 * confidence * inverse
        return abs(difference) > chance
