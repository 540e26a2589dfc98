"""Which cells of the feature space the canary has seen, counted look by look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from assets.canary.curves import covered, expected, shares
from assets.cells import HOURS, Cells


@dataclass(frozen=True, slots=True)
class Seen:
    """Answered requests of one look, by cell: the canary's and both arms'; of the canary's, those beyond the reference
    and their UTC hours of day. share: assigned share of the canary, in (0, 1); rung: the ladder's, the same unless
    these are requests of cells in need.
    """

    share: float
    canary: tuple[int, ...]
    both: tuple[int, ...]
    beyond: int
    hours: tuple[int, ...]
    rung: float | None = None


def tally(answers: pd.DataFrame, cells: Cells, share: float, version: int, rung: float | None = None) -> Seen:
    """answers: rows of the log that both arms answered (features, event_time, version); version: the canary's.

    The log of a quiet look has no columns of features, and a client may leave one out: what lacks counts as null.
    """
    lacks = [name for name in cells.features if name not in answers]
    assigned = cells.assign(answers.assign(**dict.fromkeys(lacks, np.nan)))
    mine = (answers["version"] == str(version)).to_numpy()
    hours = answers.loc[mine, "event_time"].dt.hour
    return Seen(
        share,
        tuple(np.bincount(assigned.cell[mine], minlength=len(cells.counts)).tolist()),
        tuple(np.bincount(assigned.cell, minlength=len(cells.counts)).tolist()),
        int(assigned.beyond[mine].sum()),
        tuple(np.bincount(hours, minlength=HOURS).tolist()),
        rung,
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """Answered requests of one share on a rung, by cell: the canary's and both arms'; of the canary's, those beyond."""

    rung: float
    share: float
    canary: tuple[int, ...]
    both: tuple[int, ...]
    beyond: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """All looks so far. reference, reference_hours: reference rows by cell and by UTC hour of day; parts: what was
    counted, in order of first appearance; hours: the canary's requests by UTC hour of day.
    """

    reference: tuple[int, ...]
    reference_hours: tuple[int, ...]
    parts: tuple[Counted, ...] = ()
    hours: tuple[int, ...] = (0,) * HOURS

    @classmethod
    def of(cls, cells: Cells) -> Self:
        """Before the first look."""
        return cls(tuple(cells.counts.tolist()), tuple(cells.hours.tolist()))

    def plus(self, look: Seen) -> "Coverage":
        """With one look more. ValueError when it counts other cells."""
        if len(look.canary) != len(self.reference):
            raise ValueError(f"coverage: a look of {len(look.canary)} cells, the reference has {len(self.reference)}")
        rung, none = look.share if look.rung is None else look.rung, (0,) * len(self.reference)
        sums = {(part.rung, part.share): part for part in self.parts}
        old = sums.get((rung, look.share), Counted(rung, look.share, none, none, 0))
        sums[rung, look.share] = replace(
            old,
            canary=_sum(old.canary, look.canary),
            both=_sum(old.both, look.both),
            beyond=old.beyond + look.beyond,
        )
        return replace(self, parts=tuple(sums.values()), hours=_sum(self.hours, look.hours))

    @property
    def seen(self) -> tuple[int, ...]:
        """The canary's answered requests by cell."""
        total = (0,) * len(self.reference)
        for part in self.parts:
            total = _sum(total, part.canary)
        return total

    @property
    def beyond(self) -> int:
        """The canary's answered requests that the reference does not know."""
        return sum(part.beyond for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "reference": list(self.reference),
            "reference_hours": list(self.reference_hours),
            "parts": [[part.rung, part.share, list(part.canary), list(part.both), part.beyond] for part in self.parts],
            "hours": list(self.hours),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        parts = [Counted(rung, share, tuple(mine), tuple(both), n) for rung, share, mine, both, n in value["parts"]]
        reference, hours = tuple(value["reference"]), tuple(value["reference_hours"])
        return cls(reference, hours, tuple(parts), tuple(value["hours"]))


def _sum(one: Sequence[int], two: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, two, strict=True))


def curve(coverage: Coverage, least: int) -> list[dict[str, float]]:
    """After each rung: the canary's answered requests so far, C_m, and E C_m of so many by the reference."""
    pi, seen, points = shares(coverage.reference), np.zeros(len(coverage.reference)), {}
    for part in coverage.parts:
        seen = seen + np.asarray(part.canary)
        requests = int(seen.sum())
        points[part.rung] = {
            "percent": round(100 * part.rung),
            "requests": requests,
            "covered": covered(pi, seen, least),
            "expected": expected(pi, requests, least),
        }
    return list(points.values())
