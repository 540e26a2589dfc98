"""Tagged days: read by the clocks of their place, compared with their like, and learned while they are few."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from scipy import stats

from assets.drift.aggregate import Block
from assets.drift.calendar import When, tag_of
from assets.drift.settings import DriftSettings
from assets.drift.threshold import Memory, adapted, conformal_threshold, walk

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
NEW_YORK = "America/New_York"


def days(values: Sequence[float | None]) -> list[Block]:
    return [
        Block(i, START + i * DAY, 100, value, None if value is None else 0.0) for i, value in enumerate(values)
    ]  # fmt: skip


def on(*numbers: int) -> DriftSettings:
    """Days of that number are holidays."""
    holidays = tuple(str((START + number * DAY).date()) for number in numbers)
    return DriftSettings(calendar={"holiday": holidays}, floor=0.0, persistence_hits=1, persistence_of=1)


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ("2013-12-25", ["2013-12-25"], ["2013-12-24", "2014-12-25"]),
        ("12-25", ["2013-12-25", "2040-12-25"], ["2013-12-26"]),
        ("02-29", ["2012-02-29"], ["2013-02-28", "2013-03-01"]),
        ("2013-12-24/2013-12-26", ["2013-12-24", "2013-12-26"], ["2013-12-23", "2013-12-27"]),
        ("2013-03-08T18/2013-03-09T20", ["2013-03-09"], ["2013-03-07", "2013-03-10"]),
    ],
)
def test_every_form_of_an_entry_tags_its_days(entry: str, inside: list[str], outside: list[str]) -> None:
    for dates, tag in ((inside, "x"), (outside, "")):
        for date in dates:
            start = datetime.fromisoformat(date).replace(tzinfo=UTC)
            assert tag_of({"x": [entry]}, "UTC", start, DAY) == tag, date


@pytest.mark.parametrize("entry", ["christmas", "2013-13-01", "2013-12-26/2013-12-24", "13-01", "2013-12-24T10Z", ""])
def test_an_entry_that_is_no_date_is_refused_with_the_forms(entry: str) -> None:
    with pytest.raises(ValueError, match="2013-12-24/2013-12-26"):
        DriftSettings(calendar={"holiday": (entry,)})


def test_a_place_without_clocks_and_a_tag_without_a_name_are_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        DriftSettings(calendar_zone="Mars/Olympus")
    with pytest.raises(ValueError, match="has no name"):
        DriftSettings(calendar={"": ("12-25",)})


def test_local_days_of_23_and_25_hours_tag_the_hours_they_have() -> None:
    for date, hours in (("2013-03-10", 23), ("2013-11-03", 25), ("2013-06-01", 24)):
        midnight = datetime.fromisoformat(date).replace(tzinfo=UTC)
        tagged = [
            at for at in range(-12, 48) if tag_of({"x": [date]}, NEW_YORK, midnight + at * HOUR, HOUR)
        ]  # fmt: skip
        assert len(tagged) == hours
        assert tagged == list(range(tagged[0], tagged[0] + hours))


def test_a_time_that_a_change_of_the_clock_skips_is_no_gap() -> None:
    night = {"x": ["2013-03-10T01/2013-03-10T04"]}  # 02:00 to 03:00 never was
    start = datetime(2013, 3, 10, tzinfo=UTC)
    assert sum(bool(tag_of(night, NEW_YORK, start + at * HOUR, HOUR)) for at in range(24)) == 2


def test_half_of_a_block_or_half_of_the_entry_decides() -> None:
    assert tag_of({"x": ["2013-01-01"]}, NEW_YORK, datetime(2013, 1, 1, tzinfo=UTC), DAY) == "x"
    assert tag_of({"x": ["2013-01-01"]}, NEW_YORK, datetime(2013, 1, 2, tzinfo=UTC), DAY) == ""
    sale = {"x": ["2013-01-01T22/2013-01-02T04"]}
    assert tag_of(sale, "UTC", datetime(2013, 1, 2, tzinfo=UTC), DAY) == "x"
    assert tag_of(sale, "UTC", datetime(2013, 1, 1, tzinfo=UTC), DAY) == ""


def test_the_first_tag_of_the_spec_counts() -> None:
    both = {"sale": ["2013-12-20/2013-12-31"], "holiday": ["12-25"]}
    assert tag_of(both, "UTC", datetime(2013, 12, 25, tzinfo=UTC), DAY) == "sale"
    assert When.parse("12-25").yearly


def test_nineteen_like_days_set_the_level_and_ordinary_ones_do_not() -> None:
    memory = Memory((0.01,) * 30, tagged={"holiday": (0.5,) * 19})
    judged, after = walk(days([0.4, 0.4]), memory, on(0))
    assert [(item.tag, item.threshold, item.alarm) for item in judged] == [("holiday", 0.5, False), ("", 0.01, True)]
    assert after.tagged["holiday"][-1] == 0.4
    assert after.history == (0.01,) * 30


def test_fewer_are_held_against_ordinary_days_and_alarm_less_and_less() -> None:
    holidays = range(0, 40, 2)
    values = [0.3 if day in holidays else 0.01 + 0.0001 * day for day in range(40)]
    history = tuple(np.linspace(0.0, 0.02, 60))
    judged, after = walk(days(values), Memory(history), on(*holidays))
    alarms = [item.alarm for item in judged if item.tag]
    assert alarms[0]
    assert sum(map(bool, alarms[5:])) <= 2  # alpha .05 less .0095 each is below 1/61 after four, then creeps up again
    assert not any(item.alarm for item in judged if not item.tag)
    assert len(after.tagged["holiday"]) == 20
    assert after.alphas["holiday"] < 0.05


def test_holidays_during_a_drift_teach_nothing() -> None:
    judged, after = walk(days([0.9, 0.9, 0.9]), Memory((0.01,) * 30), on(1))
    assert [item.alarm for item in judged] == [True] * 3
    assert "holiday" not in after.tagged


def test_the_adaptive_level_keeps_its_rate_while_the_days_move() -> None:
    rng, alpha = np.random.default_rng(0), 0.1
    current, above, history = alpha, 0, tuple(rng.normal(size=60))
    for step in range(6000):
        value = rng.normal(step / 2000, 1)  # drifts by three deviations; the history never learns
        alarm = value > conformal_threshold(history, current)
        above += alarm
        current = adapted(current, alpha, alarm, 0.01)
    assert above / 6000 == pytest.approx(alpha, abs=0.01)  # within (1 + gamma) / (gamma T) for any sequence


def test_tagged_days_alarm_at_the_conformal_rate() -> None:
    rng, runs, false = np.random.default_rng(3), 3000, 0
    for _ in range(runs):
        *past, value = (0.3 + 0.05 * rng.standard_exponential(20)).tolist()
        (judged,), _ = walk(days([value]), Memory((0.01,) * 30, tagged={"holiday": tuple(past)}), on(0))
        false += bool(judged.alarm)
    assert stats.binomtest(false, runs, 1 / 20).pvalue > 1e-4


def test_any_split_of_tagged_days_gives_the_same() -> None:
    rng = np.random.default_rng(5)
    values = rng.uniform(0, 0.3, 30).tolist()
    settings, start = on(*range(0, 30, 3)), Memory(tuple(rng.uniform(0, 0.2, 30)))
    whole, end = walk(days(values), start, settings)
    for cut in range(31):
        first, middle = walk(days(values)[:cut], start, settings)
        second, last = walk(days(values)[cut:], Memory.from_dict(middle.to_dict()), settings)
        assert (first + second, last) == (whole, end)


def test_without_a_calendar_the_record_is_what_it_was() -> None:
    _, after = walk(days([0.1]), Memory((0.2,) * 30), DriftSettings())
    assert set(after.to_dict()) == {"history", "pending", "hits", "active"}


def test_a_level_below_the_smallest_is_none() -> None:
    assert conformal_threshold([0.1, 0.2], 1.5) == -math.inf
    assert conformal_threshold([0.1, 0.2], -0.1) == math.inf
