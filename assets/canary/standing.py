"""Where the coverage of the feature space stands, and why the next rung has to wait for it."""

from dataclasses import dataclass

import numpy as np

from assets.canary.coverage import Coverage
from assets.canary.curves import covered, expected, lowest, reached, shares, worst_failure
from assets.canary.settings import CoverageSettings


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
