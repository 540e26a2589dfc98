from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipelines.demo.clients import Count, Pace
from pipelines.demo.loops import CALM, CANARY, FULL, SENSOR_S, Seen, rate


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=50), st.floats(1, 1000))
def test_requests_never_come_faster_than_the_pace(pauses: list[float], rate_per_s: float) -> None:
    time, pace, sent = FakeTime(), Pace(rate_per_s), []
    for pause in pauses:
        time.pause(pause)
        pace.wait(time.clock, time.pause)
        sent.append(time.now)
    assert all(later - earlier >= 1 / rate_per_s - 1e-9 for earlier, later in pairwise(sent))


def test_a_slow_second_is_not_made_up_for_by_a_burst() -> None:
    time, pace = FakeTime(), Pace(10)
    pace.wait(time.clock, time.pause)
    time.pause(60)
    pace.wait(time.clock, time.pause)
    after = time.now
    pace.wait(time.clock, time.pause)
    assert time.now - after > 0.09


def test_failures_are_all_counted_and_the_first_are_kept() -> None:
    count = Count()
    count.add(None)
    for number in range(30):
        count.add(f"failure {number}")
    assert (count.served, count.failed, len(count.failures)) == (1, 30, 20)
    assert count.failures[0] == "failure 0"


def test_traffic_creeps_while_a_loop_fits_and_runs_while_a_canary_waits_for_it() -> None:
    assert rate(Seen(), 0) == FULL
    assert rate(Seen(loop=True), 0) == CALM
    assert rate(Seen(loop=True, canary=True), 0) == CANARY


def test_an_alarm_calms_traffic_until_its_loop_had_time_to_start() -> None:
    assert rate(Seen(alarmed_s=50.0), 50.0 + SENSOR_S - 1) == CALM
    assert rate(Seen(alarmed_s=50.0), 50.0 + SENSOR_S + 1) == FULL
