"""The split in time: what is judged came later than everything that was fitted."""

from datetime import timedelta

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.retrain.fit import time_split

from .conftest import START, made_up

AS_OF = START + timedelta(days=28)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 400), st.integers(0, 10**6), st.integers(1, 20))
def test_no_label_of_the_hold_out_could_have_been_seen(rows: int, seed: int, days: int) -> None:
    earlier, holdout = time_split(made_up(rows, seed), "late", AS_OF, days)
    if len(earlier) and len(holdout):
        assert earlier["event_time"].max() < holdout["event_time"].min()
        assert earlier["label_known_at"].max() <= holdout["event_time"].max() - timedelta(days=days)
    if len(holdout):
        assert holdout["label_known_at"].max() <= AS_OF
        assert holdout["event_time"].is_monotonic_increasing


def test_a_label_known_too_late_is_in_neither_part() -> None:
    frame = made_up(400, seed=1)
    late = frame.assign(label_known_at=frame["label_known_at"].where(frame.index % 2 == 0, AS_OF + timedelta(hours=1)))
    earlier, holdout = time_split(late, "late", AS_OF, 7)
    assert set(earlier.index) | set(holdout.index) <= set(range(0, 400, 2))


def test_hours_whose_slow_labels_are_still_out_are_not_judged() -> None:
    """Late flights tell after 6 hours, the others at once: the last 6 hours would look better than they were."""
    frame = made_up(5000, seed=2)
    at_once = frame["event_time"] + timedelta(minutes=1)
    uneven = frame.assign(label_known_at=frame["label_known_at"].where(frame["late"] == 1, at_once))
    known = uneven.assign(late=uneven["late"].where(uneven["label_known_at"] <= AS_OF))
    _, holdout = time_split(known, "late", AS_OF, 7)
    assert holdout["event_time"].max() <= AS_OF - timedelta(hours=6)


def test_no_labels_give_two_empty_parts() -> None:
    frame = made_up(50, seed=3).assign(late=float("nan"))
    earlier, holdout = time_split(frame, "late", AS_OF, 7)
    assert earlier.empty
    assert holdout.empty
    assert isinstance(holdout, pd.DataFrame)
