from hypothesis import given
from hypothesis import strategies as st

from pipelines.observer.ledger import Ledger, Sample


def seen(ledger: Ledger, ends: list[float]) -> None:
    ledger.saw_access((end, True) for end in ends)
    ledger.saw_answers(ends)


def totals(ledger: Ledger, since: float | None = None) -> tuple[int, int, int]:
    bounds = ledger.between(since)
    assert bounds is not None
    first, last = bounds
    return last.requests - first.requests, last.access - first.access, last.answers - first.answers


def test_requests_on_their_way_are_not_counted_as_lost() -> None:
    ledger = Ledger()
    ledger.read(0.0, 0.0, 50)
    ledger.read(10.0, 10.0, 150)
    seen(ledger, [0.6 + i / 10 for i in range(89)])
    ledger.settle(10.1)
    assert totals(ledger) == (0, 0, 0)
    seen(ledger, [9.5] * 11 + [11.0] * 20)
    ledger.settle(13.0)
    assert totals(ledger) == (100, 100, 100)


def test_lost_rows_are_counted_exactly_while_traffic_goes_on() -> None:
    ledger = Ledger()
    ledger.read(0.0, 0.0, 0)
    for second in range(1, 61):
        seen(ledger, [second - 1 + i / 100 for i in range(0, 100, 2)])
        ledger.read(float(second), float(second), 100 * second)
        ledger.settle(float(second))
    requests, access, answers = totals(ledger)
    assert requests == 5_700
    assert abs(access - requests / 2) <= 10
    assert abs(answers - access) <= 30


@given(st.integers(0, 20))
def test_a_reading_amid_a_burst_after_a_loss_takes_no_row_of_after_it(counted: int) -> None:
    ledger = Ledger()
    ledger.read(0.0, 0.0, 0)
    ledger.read(5.0, 5.0, 100)
    ledger.settle(8.0)
    seen(ledger, [10.0 + place / 400 for place in range(20)])
    ledger.read(10.02, 10.02, 100 + counted)
    ledger.settle(13.0)
    ledger.read(15.0, 15.0, 120)
    ledger.settle(18.0)
    assert totals(ledger, since=11.0) == (20 - counted,) * 3


def test_a_window_starts_where_it_is_asked_to() -> None:
    ledger = Ledger()
    ledger.read(0.0, 0.0, 0)
    for second in range(1, 31):
        seen(ledger, [second - 0.5] * (10 if second > 20 else 0))
        ledger.read(float(second), float(second), 10 * second)
        ledger.settle(second + 5.0)
    assert totals(ledger) == (300, 100, 100)
    assert totals(ledger, since=20.0) == (100, 100, 100)
    assert totals(ledger, since=1e9) == (10, 10, 10)


def test_what_a_dead_observer_missed_shows_in_the_next_one() -> None:
    first = Ledger()
    first.read(0.0, 0.0, 0)
    seen(first, [1.0] * 10)
    first.read(2.0, 2.0, 10)
    first.settle(2.0, force=True)
    saved = first.saved()
    assert saved is not None
    second = Ledger()
    second.read(100.0, 100.0, 40)
    seen(second, [101.0] * 5)
    second.resume(saved)
    second.read(102.0, 102.0, 45)
    second.settle(102.0, force=True)
    assert totals(second) == (45, 15, 15)
    assert totals(second, since=1.5) == (35, 5, 5)
    assert totals(second, since=101.5) == (5, 5, 5)


def test_a_restarted_envoy_counts_from_zero_and_nothing_is_lost_by_it() -> None:
    ledger = Ledger()
    ledger.read(0.0, 0.0, 0)
    seen(ledger, [1.0] * 10)
    ledger.read(2.0, 2.0, 10)
    seen(ledger, [3.0] * 4)
    ledger.read(4.0, 4.0, 4)
    assert ledger.is_caught_up()
    ledger.settle(4.0, force=True)
    assert totals(ledger) == (14, 14, 14)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=30))
def test_no_share_is_above_one_and_totals_never_fall(steps: list[tuple[int, int]]) -> None:
    ledger, raw = Ledger(), 0
    for second, (requests, arrived) in enumerate(steps):
        raw += requests
        seen(ledger, [second - 0.01] * min(arrived, requests))
        ledger.read(float(second), float(second), raw)
        ledger.settle(second + 0.5)
    ledger.settle(1e6, force=True)
    bounds = ledger.between(None)
    assert bounds is not None
    for before, after in zip(ledger.samples, ledger.samples[1:], strict=False):
        assert after.requests >= before.requests
        assert after.access >= before.access
    assert totals(ledger)[1] <= totals(ledger)[0] + steps[0][0]


def test_two_days_of_samples_stay_small() -> None:
    ledger = Ledger()
    for second in range(0, 3 * 86_400, 10):
        ledger.read(float(second), float(second), second)
        ledger.settle(second + 5.0)
    assert len(ledger.samples) < 7_300
    assert isinstance(ledger.samples[0], Sample)
