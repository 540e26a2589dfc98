"""Has the canary seen enough KINDS of requests? The share of the reference's cells that it met often enough.

pi: (K,) share of the reference traffic in each cell; C_m = sum of pi over the cells that were seen m times or more.
Statistics of design section 4, 'Coverage of the feature space'.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from assets.canary.settings import CoverageSettings
from assets.cells import HOURS, Cells

Floats = NDArray[np.float64]
# Draws of C_m under random assignment: twenty lie below its quantile of 1 %.
DRAWS = 2000
# More requests than this are no plan but a refusal.
MOST = 1 << 30
# Failures without a cell that are placed one by one; so many more are beyond any budget.
PLACED = 200


def shares(reference: Sequence[int]) -> Floats:
    """pi, (K,) from reference rows by cell."""
    counts = np.asarray(reference, dtype=np.float64)
    pi: Floats = counts / counts.sum()
    return pi


def covered(pi: Floats, seen: ArrayLike, least: int) -> float:
    """C_m. seen: (K,) requests by cell; least: m.

    >>> covered(np.array([0.5, 0.3, 0.2]), [30, 29, 40], 30)
    0.7
    """
    return 1 - float(pi[np.asarray(seen) < least].sum())  # exactly 1 when all are covered


def expected(pi: Floats, requests: int, least: int) -> float:
    """E C_m(n) = sum of pi_k P(Bin(n, pi_k) >= m), where requests fall on cells as the reference did."""
    from scipy.special import bdtrc

    return float(pi @ bdtrc(least - 1, requests, pi)) if requests >= least else 0.0


def requests_needed(pi: Floats, least: int, wanted: float) -> int | None:
    """Fewest n with E C_m(n) >= wanted; None: over a thousand million."""
    few, many = 0, MOST
    if expected(pi, many, least) < wanted:
        return None
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if expected(pi, middle, least) >= wanted else (middle + 1, many)
    return many


def reached(traffic: Iterable[tuple[float, ArrayLike]], least: int) -> Floats:
    """(K,) chance that the canary has seen each cell `least` times, given the traffic and a random assignment.

    traffic: shares of the canary, in (0, 1), and (K,) requests of both arms by cell that had them. A cell's count
    is a sum of binomials, whatever the traffic was: a season that sends other requests than the reference's is no
    sign of a broken assignment.
    """
    from scipy.special import bdtr

    chances = np.ones((0, least))
    for share, both in traffic:
        total, at = np.asarray(both, dtype=np.float64)[:, None], np.arange(least)
        below = np.diff(bdtr(np.minimum(at, total), total, share), axis=1, prepend=0.0)
        if not len(chances):
            chances = below
            continue
        summed = np.zeros_like(chances)
        for more in range(least):
            summed[:, more:] += below[:, more : more + 1] * chances[:, : least - more]
        chances = summed
    result: Floats = np.clip(1 - chances.sum(axis=1), 0.0, 1.0)
    return result


def lowest(pi: Floats, reached: Floats, alpha: float, seed: int = 0) -> float:
    """The alpha-quantile of C_m where cell k is covered with chance reached[k], each by itself; by simulation.

    A few cells carry much of pi, so a normal approximation is off in the tail. Cells of a multinomial lean against
    each other, which makes this quantile cautious for it.
    """
    drawn = np.random.default_rng(seed).random((DRAWS, len(pi))) < reached
    return float(np.quantile(drawn @ pi, alpha, method="lower"))


def worst_failure(pi: Floats, seen: ArrayLike, failed: int, least: int, alpha: float) -> float:
    """Sum of pi_k UCB_k: the share of traffic that could fail for all the canary has shown; 1 for uncovered cells.

    UCB: Clopper-Pearson, one-sided at 1 - alpha. seen: (K,) answered requests by cell. A request that failed left no
    features behind: the `failed` ones are put, one by one, where they weigh most (the bound is concave in them).
    """
    from scipy.special import betaincinv

    answered = np.asarray(seen, dtype=np.float64)
    enough = answered >= least
    left_out = float(pi[~enough].sum())
    if failed > PLACED or not enough.any():
        return 1.0
    weight, good = pi[enough], answered[enough]
    bad = np.zeros_like(good)

    def bound(wrong: Floats) -> Floats:
        limit: Floats = betaincinv(wrong + 1, good, 1 - alpha)
        return limit

    for _ in range(failed):
        bad[np.argmax(weight * (bound(bad + 1) - bound(bad)))] += 1
    return left_out + float(weight @ bound(bad))


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


@dataclass(frozen=True, slots=True)
class Standing:
    """What the canary has seen of the feature space. covered: C_m; expected: E C_m of as many requests that fall as
    the reference's; lowest: what C_m stays above, but for a chance of assignment_alpha, where assignment is random;
    beyond: share of its requests that the reference does not know; could_fail: see `worst_failure`; hours: share of
    the reference's traffic at the hours of day that it saw, which are seen_hours (UTC).
    """

    requests: int
    covered: float
    expected: float
    lowest: float
    beyond: float
    could_fail: float
    hours: float
    seen_hours: tuple[int, ...]


def standing(coverage: Coverage, failed: int, settings: CoverageSettings, *, one_by_one: bool = True) -> Standing:
    """failed: requests of the canary that failed, by the access record. one_by_one: requests were assigned one by one;
    where users stay in their pool nothing is said of how C_m would fall by chance, and lowest is 0.
    """
    pi, seen, least = shares(coverage.reference), coverage.seen, settings.least
    requests = sum(seen)
    traffic = [(part.share, part.both) for part in coverage.parts]
    chances = reached(traffic, least) if traffic else np.zeros(len(pi))
    return Standing(
        requests=requests,
        covered=covered(pi, seen, least),
        expected=expected(pi, requests, least),
        lowest=lowest(pi, chances, settings.assignment_alpha) if one_by_one else 0.0,
        beyond=coverage.beyond / requests if requests else 0.0,
        could_fail=worst_failure(pi, seen, failed, least, settings.error_alpha),
        hours=covered(shares(coverage.reference_hours), coverage.hours, 1) if sum(coverage.reference_hours) else 0.0,
        seen_hours=tuple(hour for hour, count in enumerate(coverage.hours) if count),
    )


def waits_for(stands: Standing, limit: float, budget: float, settings: CoverageSettings) -> str | None:
    """Why the next rung has to wait; None when it need not. limit: least C_m; budget: most could_fail."""
    if stands.beyond >= settings.most_beyond:
        return (
            f"the reference is stale: {stands.beyond:.1%} of {stands.requests} challenger requests lie beyond it, "
            f"less than {settings.most_beyond:.1%} may"
        )
    # A sum of the same parts in another order: rounding is no sign of a broken assignment.
    if stands.covered < stands.lowest - 1e-9:
        return (
            f"assignment is not random: the challenger saw {stands.covered:.1%} of the feature space, by chance it "
            f"would have seen {stands.lowest:.1%} of this traffic"
        )
    if stands.covered < limit:
        return (
            f"{stands.covered:.1%} of the feature space was seen {settings.least} times or more in "
            f"{stands.requests} challenger requests, {limit:.0%} have to be"
        )
    if stands.could_fail > budget:
        return f"up to {stands.could_fail:.1%} of the traffic could still fail, {budget:.0%} is the budget"
    return None


def told(stands: Standing, settings: CoverageSettings) -> str:
    """Where it stands, in a sentence."""
    return (
        f"{stands.covered:.1%} of the feature space seen {settings.least} times or more "
        f"(expected {stands.expected:.1%}, at least {stands.lowest:.1%} by chance); {stands.beyond:.1%} beyond the "
        f"reference; up to {stands.could_fail:.1%} of the traffic could fail; {_hours(stands)}"
    )


def _hours(stands: Standing) -> str:
    """Which hours of day it saw. A canary that saw only the night says so.

    >>> _hours(Standing(9, 0, 0, 0, 0, 0, 0.11, (0, 1, 2, 22, 23)))
    'hours of day seen (UTC): 0-2, 22-23, with 11.0% of the traffic'
    """
    spans: list[list[int]] = []
    for hour in stands.seen_hours:
        if spans and hour == spans[-1][1] + 1:
            spans[-1][1] = hour
        else:
            spans.append([hour, hour])
    shown = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans) or "none"
    return f"hours of day seen (UTC): {shown}, with {stands.hours:.1%} of the traffic"
