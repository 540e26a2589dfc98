"""Too few rows, silence, gaps and clocks: what a window cannot say is said, with what is missing."""

import json
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pandas as pd
import pytest

from assets.drift.judge import judge
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings
from tests.drift_cases import ERROR, INCONCLUSIVE, PASS, Draw, decide, found, verdicts


def test_eight_rows_are_inconclusive_with_the_number_needed(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7).iloc[::180]
    decision = decide(reference, rows)
    assert len(rows) == 8
    assert verdicts(decision) == dict.fromkeys(("inputs", "harm", "schema"), INCONCLUSIVE) | {"freshness": PASS}
    assert found(decision, "inputs").why == "8 requests of the 200 needed"
    assert "of the 200 needed" in found(decision, "harm").why


@pytest.mark.parametrize("loss_scale", [None, 200.0], ids=["chances", "numbers"])
def test_no_traffic_is_said_and_nothing_passes_not_even_a_hint(
    reference: Reference, draw: Draw, loss_scale: float | None
) -> None:
    reference = replace(reference, loss_scale=loss_scale)
    for silence in (draw(0, 1).iloc[:0], pd.DataFrame(), draw(40, 1)):
        decision = decide(reference, silence)
        assert decision.verdict is ERROR
        assert PASS not in [item.verdict for item in decision.evidence]
        assert found(decision, "freshness").why.startswith("NO DATA")
        assert json.loads(decision.to_json())["details"]["rows"] == 0


def test_a_log_that_stopped_is_an_error(reference: Reference, draw: Draw) -> None:
    freshness = found(decide(reference, draw(0, 4)), "freshness")
    assert freshness.verdict is ERROR
    assert freshness.statistic == pytest.approx(72.1, abs=0.1)


def test_a_silent_day_proves_nothing_unless_it_may_be_silent(reference: Reference, draw: Draw) -> None:
    rows = pd.concat([draw(0, 3), draw(4, 3)])
    assert found(decide(reference, rows), "freshness").verdict is INCONCLUSIVE
    assert "1 of 7 days without a request" in found(decide(reference, rows), "freshness").why
    assert found(decide(reference, rows, max_quiet_blocks=1), "freshness").verdict is PASS


def test_warming_up_is_said(draw: Draw) -> None:
    short = build_reference(draw(-10, 10), {"temp": "float"}, {}, DriftSettings(), 0.24)
    inputs = found(decide(short, draw(0, 7)), "inputs")
    assert inputs.verdict is INCONCLUSIVE
    assert inputs.why.startswith("warming up: 16 past days of the 19")
    longer = decide(short, draw(0, 14), 0, 14)
    assert found(longer, "inputs").verdict is PASS


def test_a_window_shorter_than_its_block_says_so(reference: Reference, draw: Draw) -> None:
    inputs = found(decide(reference, draw(0, 1, rows=5000), 0, 0.5), "inputs")
    assert inputs.verdict is INCONCLUSIVE
    assert "set drift.block to the cadence" in inputs.why


def test_a_change_of_the_clock_makes_no_gap(reference: Reference, draw: Draw) -> None:
    zone = ZoneInfo("America/New_York")
    start, end = datetime(2030, 3, 8, tzinfo=zone), datetime(2030, 3, 12, tzinfo=zone)  # 23 h on the 10th
    rows = draw(66, 5)
    rows["event_time"] = rows["event_time"].dt.tz_convert(zone)
    decision = judge("m", reference, rows, rows, None, DriftSettings(), start, end, end, {})
    assert found(decision, "freshness").verdict is PASS
    assert [day["rows"] for day in decision.details["days"]][:3] == [200, 200, 200]
    assert sum(day["rows"] for day in decision.details["days"]) == decision.details["rows"]


def test_times_without_a_zone_are_utc(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    naive = rows.assign(event_time=rows["event_time"].dt.tz_localize(None))
    assert decide(reference, naive).details["days"] == decide(reference, rows).details["days"]
