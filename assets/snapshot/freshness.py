"""Whether the sources still arrive: the age of a snapshot's newest row against its feature set's limit."""

from datetime import datetime

from assets.decision import Evidence
from assets.verdict import Verdict

FRESHNESS = "freshness"
CHECKS = {FRESHNESS: "Did the sources fill this span, up to the hours that the feature set allows?"}


def freshness(newest: datetime | None, as_of: datetime, limit_hours: float) -> Evidence:
    """Age in hours at `as_of` of the newest row; what became known later is no row, so a late source is old too.

    newest: its event time, None without a row, which is no freshness: nothing came at all.
    """
    if newest is None:
        why = f"NO DATA: the sources hold no row of this span that was known at {as_of:%Y-%m-%d %H:%M} UTC"
        return Evidence(FRESHNESS, Verdict.ERROR, f"{why}: are they still filled?", None, limit_hours)
    age = (as_of - newest).total_seconds() / 3600
    if age > limit_hours:
        why = f"the newest row is of {newest:%Y-%m-%d %H:%M} UTC, {age:.0f} h before the snapshot's instant"
        remedy = f"(freshness_hours: {limit_hours:g}): are the sources still filled?"
        return Evidence(FRESHNESS, Verdict.ERROR, f"{why} {remedy}", age, limit_hours)
    why = f"the newest row is {age:.1f} h old at the snapshot's instant"
    return Evidence(FRESHNESS, Verdict.PASS, why, age, limit_hours)
