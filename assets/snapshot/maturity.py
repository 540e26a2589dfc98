"""Which rows of a snapshot may teach: those so old that nearly every label of their time is known."""

from datetime import datetime, timedelta

import pandas as pd

# The share of labels that has come in by the time a row counts as mature.
MATURE_SHARE = 0.999


def matured(frame: pd.DataFrame, label: str, as_of: datetime) -> pd.DataFrame:
    """Labelled rows, by event time, of events so old that nearly every label of their time is known at `as_of`.

    Labels that come early are no fair sample of their hour: a cancelled flight is known before a late one lands.
    """
    known = frame[frame[label].notna() & (frame["label_known_at"] <= as_of)]
    if known.empty:
        return known
    delay_s = (known["label_known_at"] - known["event_time"]).dt.total_seconds().quantile(MATURE_SHARE)
    latest = as_of - timedelta(seconds=float(delay_s))
    return known[known["event_time"] <= latest].sort_values("event_time", kind="stable")
