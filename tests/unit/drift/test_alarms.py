"""One alarm until it is acknowledged, retrained or recovered; a budget of false ones that the levels keep."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from assets.drift.alarms import RECOVERED, RETRAINED, Alarms, follow, report
from assets.drift.budget import beginnings, levels
from assets.drift.settings import DriftSettings
from assets.drift.threshold import order
from assets.verdict import Verdict

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
VERDICTS = st.sampled_from(list(Verdict))
CHECKS = st.fixed_dictionaries({"inputs": VERDICTS, "harm": VERDICTS})


def day(number: int) -> datetime:
    return START + number * DAY


def followed(*verdicts: dict[str, Verdict], retrained: tuple[int, ...] = ()) -> Alarms:
    alarms = Alarms(START.isoformat())
    for number, found in enumerate(verdicts):
        alarms = follow(alarms, found, day(number), number in retrained)
    return alarms


PASS = {"inputs": Verdict.PASS, "harm": Verdict.PASS}
SILENT = {"inputs": Verdict.INCONCLUSIVE, "harm": Verdict.ERROR}
DRIFT = PASS | {"inputs": Verdict.FAIL}
HARM = PASS | {"harm": Verdict.FAIL}


def test_checks_that_go_on_failing_are_one_alarm() -> None:
    alarms = followed(PASS, DRIFT, DRIFT, HARM)
    assert alarms.count == 1
    assert alarms.open is not None
    assert (alarms.open.opened, alarms.open.checks) == (day(1).isoformat(), ("harm", "inputs"))


def test_silence_is_no_recovery_and_a_pass_of_the_other_check_is_none_either() -> None:
    assert followed(DRIFT, SILENT, SILENT).open is not None
    assert followed(DRIFT, DRIFT | {"inputs": Verdict.INCONCLUSIVE}).open is not None


def test_an_alarm_that_recovered_or_was_retrained_is_closed_and_the_next_is_a_new_one() -> None:
    alarms = followed(DRIFT, PASS, DRIFT, DRIFT, PASS, HARM, retrained=(3,))
    assert [(alarm.how, alarm.closed) for alarm in alarms.last] == [
        (RECOVERED, day(1).isoformat()),
        (RETRAINED, day(3).isoformat()),
        (RECOVERED, day(4).isoformat()),
        ("", ""),
    ]
    assert alarms.count == 4


@given(st.lists(CHECKS, max_size=30), st.sets(st.integers(0, 30)))
def test_alarms_are_counted_once_and_at_most_one_is_open(
    verdicts: list[dict[str, Verdict]], retrained: set[int]
) -> None:
    alarms, opened = Alarms(START.isoformat()), 0
    for number, found in enumerate(verdicts):
        before = alarms
        alarms = follow(alarms, found, day(number), number in retrained)
        failed = Verdict.FAIL in found.values()
        assert (alarms.open is not None) or not failed
        opened += failed and (before.open is None or number in retrained)
        assert alarms.count == opened == len(alarms.last)
        assert sum(not alarm.closed for alarm in alarms.last) <= 1
        assert all(alarm.closed for alarm in alarms.last[:-1])


@given(st.lists(CHECKS, max_size=12), st.integers(0, 12))
def test_the_state_goes_through_records_unchanged(verdicts: list[dict[str, Verdict]], cut: int) -> None:
    whole = followed(*verdicts)
    first = followed(*verdicts[:cut])
    carried = Alarms.from_dict(report(first, day(cut), 3))
    for number, found in enumerate(verdicts[cut:], cut):
        carried = follow(carried, found, day(number), False)
    assert carried == whole


def test_the_spacing_that_was_realised_stands_beside_the_budget() -> None:
    told = report(followed(DRIFT, PASS, PASS, DRIFT, PASS, PASS, PASS, PASS, DRIFT), day(10), 3)
    assert (told["count"], told["watched_days"], told["days_between"], told["budget_per_year"]) == (3, 10.0, 4.0, 3)
    assert told["open"] == day(8).isoformat()


@pytest.mark.parametrize(("alpha", "hits", "of"), [(0.05, 1, 1), (0.05, 2, 3), (0.2, 5, 6), (0.3, 2, 2)])
def test_the_share_of_blocks_in_which_an_alarm_begins_is_the_simulated_one(alpha: float, hits: int, of: int) -> None:
    above = np.random.default_rng(0).uniform(size=400_000) < alpha
    active = np.convolve(above, np.ones(of), mode="valid") > hits - 0.5
    begun = float(np.mean(active[1:] & ~active[:-1]))
    assert begun == pytest.approx(beginnings(alpha, hits, of), abs=5 * float(begun / len(above)) ** 0.5)


@given(
    budget=st.floats(0.2, 40),
    hits_of=st.sampled_from([(1, 1), (2, 3), (3, 3), (5, 6)]),
    hours=st.sampled_from([1, 6, 24]),
)
def test_levels_spend_half_of_the_budget_on_each_kind(budget: float, hits_of: tuple[int, int], hours: int) -> None:
    block = timedelta(hours=hours)
    found = levels(budget, block, *hits_of)
    blocks = timedelta(days=365.25) / block
    assert beginnings(found.alpha, *hits_of) * blocks <= budget / 2 * (1 + 1e-9)
    assert 365.25 / found.arl_days == pytest.approx(budget / 2)
    assert found.history >= 1 / found.alpha - 1 - 1e-6


def test_drift_free_years_keep_the_budget() -> None:
    """Two hundred years of independent days, each against the conformal level of the sixty before it."""
    chosen, cap, days = DriftSettings(alarms_per_year=3), 60, 200 * 365
    values = np.random.default_rng(3).exponential(size=days + cap)
    past = np.sort(np.lib.stride_tricks.sliding_window_view(values, cap)[:days], axis=1)
    above = values[cap:] > past[:, order(cap, chosen.alpha) - 1]
    hits = np.convolve(above, np.ones(chosen.persistence_of), mode="valid") >= chosen.persistence_hits
    begun = int(np.sum(hits[1:] & ~hits[:-1]))
    assert 0 < begun / 200 <= 3 / 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"persistence_hits": 1, "persistence_of": 1}, "needs a history of 242 blocks of D and history_cap is 60"),
        ({"alpha": 0.05}, "leave alpha out"),
        ({"arl_days": 7}, "leave arl_days out"),
        ({"alarms_per_year": 0}, "greater than 0"),
        ({"alarms_per_year": "few"}, "valid number"),
    ],
)
def test_a_budget_that_cannot_be_met_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DriftSettings.model_validate({"alarms_per_year": 3} | changes)


@settings(max_examples=25)
@given(budget=st.floats(0.5, 20), cap=st.sampled_from([60, 720]))
def test_settings_of_a_budget_are_read_back_as_they_were_written(budget: float, cap: int) -> None:
    try:
        written = DriftSettings(alarms_per_year=budget, history_cap=cap)
    except ValidationError:
        return
    assert DriftSettings.model_validate(written.model_dump(exclude_defaults=True)) == written
    assert DriftSettings.model_validate_json(written.model_dump_json()) == written
    assert (written.alpha, written.arl_days) == pytest.approx(
        (levels(budget, DAY, 2, 3).alpha, levels(budget, DAY, 2, 3).arl_days)
    )
