"""The split in time: a candidate is judged on what came after everything it saw."""

from datetime import datetime, timedelta

import pandas as pd

# The share of labels that has come in by the time a row counts as mature.
MATURE_SHARE = 0.999


def matured(frame: pd.DataFrame, target: str, as_of: datetime) -> pd.DataFrame:
    """Labelled rows, by event time, of events so old that nearly every label of their time is known at `as_of`.

    Labels that come early are no fair sample of their hour: a cancelled flight is known before a late one lands.
    """
    known = frame[frame[target].notna() & (frame["label_known_at"] <= as_of)]
    if known.empty:
        return known
    delay_s = (known["label_known_at"] - known["event_time"]).dt.total_seconds().quantile(MATURE_SHARE)
    return known[known["event_time"] <= as_of - timedelta(seconds=float(delay_s))].sort_values(
        "event_time", kind="stable"
    )


def time_split(
    frame: pd.DataFrame, target: str, as_of: datetime, holdout_days: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(earlier, hold-out) of the matured rows, each by event time.

    The hold-out is their last `holdout_days`. Earlier rows are those whose label was known when the hold-out begins,
    as for a model fitted then.
    """
    known = matured(frame, target, as_of)
    if known.empty:
        return known, known
    begins = known["event_time"].max() - timedelta(days=holdout_days)
    earlier = known[(known["event_time"] < begins) & (known["label_known_at"] <= begins)]
    return earlier, known[known["event_time"] >= begins]
