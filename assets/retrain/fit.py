"""The split in time: a candidate is judged on what came after everything it saw."""

from datetime import datetime, timedelta

import pandas as pd

from assets.snapshot.maturity import matured


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
