"""The live window counts what is in it, no more and no less."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from assets.drift.aggregate import columns, instants
from assets.drift.live import ABOVE, SLOTS, LiveWindow, Reading, Watch
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings

Draw = Callable[..., pd.DataFrame]
START = datetime(2030, 1, 1, tzinfo=UTC)
FEATURES = {"temp": "float", "hour": "int", "carrier": "string"}


def micros(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    return instants(rows["event_time"]).to_numpy("datetime64[us]").astype(np.int64)


def fed(window: LiveWindow, rows: pd.DataFrame, batch: int = 10_000) -> LiveWindow:
    for at in range(0, len(rows), batch):
        part = rows.iloc[at : at + batch]
        window.add(micros(part), columns(part, window.reference.columns))
    return window


def read(window: LiveWindow) -> Reading:
    found = window.read()
    assert found is not None
    return found


@pytest.fixture
def coarse(draw: Draw) -> Reference:
    """Few distinct values, nulls too: all of them are points, so nothing is approximate."""
    rows = draw(-30, 30, seed=9)
    rows["temp"] = rows["temp"].round(1).where(rows.index % 7 > 0)
    rows["answer"] = rows["answer"].round(2)
    return build_reference(rows, FEATURES, {"temp": 3.0, "hour": 1.0}, DriftSettings(), 0.24)


def last_block(window: LiveWindow, rows: pd.DataFrame) -> pd.DataFrame:
    slots = micros(rows) // window.slot_us
    inside: pd.DataFrame = rows[slots > slots.max() - SLOTS]
    return inside


def test_distances_are_those_of_the_rows_in_the_window(coarse: Reference, draw: Draw) -> None:
    rows = draw(0, 3, shift=0.5)
    rows["temp"] = rows["temp"].round(1).where(rows.index % 3 > 0)
    rows["answer"] = (rows["answer"] ** 2).round(2)
    rows.loc[rows.index % 11 == 0, "carrier"] = "ZZ"
    rows.loc[rows.index % 13 == 0, "carrier"] = None
    window = fed(LiveWindow(coarse), rows)
    inside = columns(last_block(window, rows), coarse.columns)
    found = read(window)
    assert found.rows == len(inside["temp"])
    for name, marginal in coarse.marginals.items():
        assert found.distances[name] == pytest.approx(marginal.distance(inside[name]), abs=1e-12)
    assert set(found.distances) == {*FEATURES, "answer"}
    expected = sum(coarse.weights[name] * found.distances[name] for name in found.distances)
    assert found.aggregate == pytest.approx(expected)


def test_many_values_cost_at_most_one_step_of_the_grid(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 2, shift=0.3)
    window = fed(LiveWindow(reference, points=200), rows)
    exact = reference.marginals["temp"].distance(columns(last_block(window, rows), FEATURES)["temp"])
    assert exact - 1 / 199 <= read(window).distances["temp"] <= exact + 1e-12


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_batch_updates_as_its_rows_one_by_one(coarse: Reference, draw: Draw, batch: int) -> None:
    rows = draw(0, 2)
    assert read(fed(LiveWindow(coarse), rows, batch)) == read(fed(LiveWindow(coarse), rows))


def test_the_order_within_a_slot_changes_nothing(coarse: Reference, draw: Draw) -> None:
    rows = draw(0, 1)
    assert read(fed(LiveWindow(coarse), rows.iloc[::-1])) == read(fed(LiveWindow(coarse), rows))


def test_a_restart_keeps_the_window_and_the_watch(coarse: Reference, draw: Draw) -> None:
    rows, later = draw(0, 2), draw(2, 1, shift=1.0)
    whole = fed(LiveWindow(coarse), rows)
    again = LiveWindow(coarse)
    watch = Watch(5, 2, True)
    assert again.resume(whole.to_bytes(watch)) == watch
    assert again.is_full
    assert read(fed(again, later)) == read(fed(whole, later))


def test_another_reference_and_broken_bytes_resume_nothing(coarse: Reference, reference: Reference, draw: Draw) -> None:
    other = fed(LiveWindow(reference), draw(0, 1)).to_bytes(Watch())
    window = fed(LiveWindow(coarse), draw(0, 1))
    before = read(window)
    for body in (other, b"", b"PK"):
        assert window.resume(body) is None
    assert read(window) == before


def test_one_wrong_clock_does_not_empty_the_window(coarse: Reference, draw: Draw) -> None:
    rows = draw(0, 1)
    window = fed(LiveWindow(coarse), rows)
    wrong = draw(0, 1).tail(9).copy()
    wrong.loc[wrong.index[0], "event_time"] += timedelta(days=4000)
    fed(window, wrong)
    assert window.rows == len(rows) + 8
    assert window.out_of_window == 1


def test_a_long_silence_starts_the_window_anew(coarse: Reference, draw: Draw) -> None:
    window = fed(LiveWindow(coarse), draw(0, 2))
    assert window.is_full
    fed(window, draw(9, 1).head(20))
    assert window.rows == 20
    assert not window.is_full


def test_no_level_before_the_window_is_full_or_the_history_long_enough(draw: Draw, coarse: Reference) -> None:
    assert read(fed(LiveWindow(coarse), draw(0, 1).head(150))).level is None
    assert read(fed(LiveWindow(coarse), draw(0, 2))).level is not None
    young = build_reference(draw(-9, 9), FEATURES, {}, DriftSettings(), 0.24)
    assert read(fed(LiveWindow(young), draw(0, 2))).level is None
    assert LiveWindow(young).read() is None


def test_a_window_on_a_tagged_day_is_held_against_its_like(draw: Draw) -> None:
    days = [str((START + timedelta(days=day)).date()) for day in range(-60, 60, 2)]
    settings = DriftSettings(calendar={"even": tuple(days)})
    even = pd.concat([draw(day, 1, shift=0.8, seed=9) for day in range(-60, 0, 2)])
    odd = pd.concat([draw(day, 1, seed=9) for day in range(-59, 0, 2)])
    window = LiveWindow(build_reference(pd.concat([even, odd]), FEATURES, {"temp": 1.0}, settings, 0.24))
    assert len(window.reference.tagged["even"]) >= 19
    levels = []
    for day in range(-2, 2):
        levels.append(read(fed(window, draw(day, 1))).level)
    assert levels[0] is None  # not full
    assert levels[1] is not None
    assert levels[2] is not None
    assert levels[1] != levels[2]


def alarms(window: LiveWindow, rows: pd.DataFrame) -> list[int]:
    watch, found = Watch(), []
    for at in range(0, len(rows), 8):
        fed(window, rows.iloc[at : at + 8])
        watch, alarm = watch.after(read(window))
        found += [at] if alarm else []
    return found


def test_a_shift_alarms_once_within_a_day_and_again_only_after_recovery(reference: Reference, draw: Draw) -> None:
    rows = pd.concat([draw(0, 4), draw(4, 6, shift=1.0), draw(10, 4), draw(14, 3, shift=1.0)])
    found = alarms(LiveWindow(reference), rows)
    assert len(found) == 2
    assert 800 < found[0] < 1000
    assert 2800 < found[1] < 3000


def test_traffic_as_it_always_was_never_alarms(reference: Reference, draw: Draw) -> None:
    assert alarms(LiveWindow(reference), draw(0, 28)) == []


def test_a_slot_counts_once_however_often_it_is_read() -> None:
    watch, reading = Watch(), Reading(1, 0, 100, 0.5, 0.1, {})
    for _ in range(100):
        watch, alarm = watch.after(reading)
        assert not alarm
    assert watch.above == 1 < ABOVE
