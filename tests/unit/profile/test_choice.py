"""The choice of a serving configuration under measured noise."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assets.decision import Decision
from assets.profile.choice import answered, choose, pick
from assets.profile.confirm import MEASUREMENTS
from assets.profile.objective import excess, value
from assets.profile.points import Failed, Point, merged, noise_band
from assets.profile.settings import ProfileSettings, Setting
from assets.verdict import Verdict

NOW = datetime(2013, 3, 1, tzinfo=UTC)
SETTINGS = ProfileSettings(p99_latency_ms=10)


def point(instances: int, delay: int, rate: float, p99: float = 5, source: str = "config") -> Point:
    return Point(instances, delay, 4, rate, p99, source)


def decide(*points: Point, settings: ProfileSettings = SETTINGS) -> Decision:
    return choose("m", points, settings, NOW, {"model": "digest"})


def chosen(decision: Decision) -> tuple[int, int]:
    return decision.details["choice"]["instances"], decision.details["choice"]["max_queue_delay_us"]


DEFAULTS = (point(1, 0, 1000, source="default"), point(1, 0, 1020), point(1, 0, 1010))


def again(*measured: Any) -> list[Point]:
    """What a configuration measured as often as is asked for gave, each time the same."""
    return [point(*measured)] * MEASUREMENTS


def test_a_gain_beyond_noise_is_taken() -> None:
    decision = decide(*DEFAULTS, *again(2, 0, 1500), point(2, 500, 1300))
    assert (decision.verdict, chosen(decision)) == (Verdict.PASS, (2, 0))
    assert "more than the default" in decision.why


@pytest.mark.parametrize("points", [(*DEFAULTS, point(2, 0, 1500)), (*DEFAULTS[:2], *again(2, 0, 1500))])
def test_a_gain_that_was_not_measured_again_beside_the_default_is_not_taken(points: tuple[Point, ...]) -> None:
    decision = decide(*points)
    assert (decision.verdict, chosen(decision)) == (Verdict.PASS, (1, 0))
    assert "led by 4" in decision.why
    assert "not measured often enough" in decision.why


def test_what_seemed_best_and_fell_back_is_told() -> None:
    decision = decide(*DEFAULTS, point(2, 0, 1500), point(2, 0, 1000), point(2, 0, 900))
    assert chosen(decision) == (1, 0)
    assert "delay of 0 µs seemed best at 1500/s, and 1000/s, 900/s when measured again" in decision.why


def test_a_gain_within_the_measured_noise_is_none() -> None:
    noisy = (point(1, 0, 1000), point(1, 0, 1400))
    decision = decide(*noisy, point(2, 0, 1500))
    assert chosen(decision) == (1, 0)
    assert decision.details["band"] == pytest.approx(400 / 1200)


def test_two_measurements_that_happen_to_agree_do_not_make_every_gain_real() -> None:
    same = (point(1, 0, 1000), point(1, 0, 1000))
    assert chosen(decide(*same, point(2, 0, 1050))) == (1, 0)


def test_ties_go_to_fewer_instances_then_to_the_smaller_delay() -> None:
    decision = decide(*DEFAULTS, point(2, 500, 1500), *again(1, 500, 1480), point(2, 0, 1510))
    assert chosen(decision) == (1, 500)


def test_the_fastest_beyond_the_objective_is_not_taken() -> None:
    assert chosen(decide(*DEFAULTS, point(2, 0, 9000, p99=11))) == (1, 0)


def test_a_default_beyond_the_objective_gives_way_without_any_gain() -> None:
    slow = (point(1, 0, 1000, p99=20), point(1, 0, 1000, p99=30))
    decision = decide(*slow, point(2, 0, 900, p99=9))
    assert chosen(decision) == (2, 0)
    assert "the default is not within it" in decision.why


def test_nothing_within_the_objective_fails_and_names_the_nearest() -> None:
    decision = decide(point(1, 0, 1000, p99=20), point(1, 0, 1000, p99=22), point(2, 0, 500, p99=12.5))
    assert decision.verdict is Verdict.FAIL
    assert "nearest is 2 instances with a delay of 0 µs with 99 % of requests below 12.50 ms" in decision.why
    assert "choice" not in decision.details
    (latency,) = (item for item in decision.evidence if item.name == "latency")
    assert (latency.statistic, latency.threshold) == (12.5, 10)


@pytest.mark.parametrize("points", [(), (point(1, 0, 1000),), (point(1, 0, 1000), point(2, 0, 2000))])
def test_without_the_repeated_default_nothing_is_chosen(points: tuple[Point, ...]) -> None:
    decision = decide(*points)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "needed are 2, one configuration among them twice" in decision.why


def test_the_default_is_what_the_spec_lists_first() -> None:
    settings = ProfileSettings(instances=(2, 1), queue_delays_us=(500, 0))
    decision = decide(point(2, 500, 1000), point(2, 500, 1000), point(1, 0, 1000), settings=settings)
    assert decision.verdict is Verdict.PASS


def test_the_record_holds_every_point_the_band_and_the_whole_choice() -> None:
    details = decide(*DEFAULTS, *again(2, 0, 1500)).to_dict()["details"]
    assert len(details["points"]) == 6
    assert details["choice"] == {
        "instances": 2,
        "max_queue_delay_us": 0,
        "max_batch_size": 64,
        "max_queue_size": 256,
        "intra_op_threads": 1,
        "throughput_per_s": 1500,
        "p99_latency_ms": 5,
        "p95_latency_ms": None,
        "cost_per_million": None,
    }
    assert details["quiet"] is True
    assert details["infeasible"] == []


def test_what_was_measured_twice_counts_with_its_mean() -> None:
    (mean,) = merged([point(1, 0, 1000, p99=4), point(1, 0, 2000, p99=6)])
    assert (mean.throughput_per_s, mean.p99_latency_ms) == (1500, 5)


def test_no_throughput_at_all_is_all_noise() -> None:
    assert noise_band([point(1, 0, 0), point(1, 0, 0)]) == 1


def test_what_could_not_be_served_is_named_and_the_rest_is_chosen_from() -> None:
    broken = Failed(Setting(2, 0), "it took Triton down")
    decision = choose("m", [*DEFAULTS, *again(2, 500, 1500)], SETTINGS, NOW, {}, [broken])
    assert (decision.verdict, chosen(decision)) == (Verdict.PASS, (2, 500))
    assert "1 could not be served" in decision.why
    assert decision.details["infeasible"][0]["reason"] == "it took Triton down"


def test_what_was_served_once_and_not_again_is_not_taken() -> None:
    decision = choose("m", [*DEFAULTS, point(2, 0, 9000)], SETTINGS, NOW, {}, [Failed(Setting(2, 0), "died")])
    assert chosen(decision) == (1, 0)


def test_a_default_that_can_not_be_served_leaves_the_noise_to_another_one() -> None:
    measured = [point(2, 0, 1000), point(2, 500, 1500), point(2, 0, 1060)]
    decision = choose("m", measured, SETTINGS, NOW, {}, [Failed(Setting(1, 0), "out of memory")])
    assert (decision.verdict, chosen(decision)) == (Verdict.PASS, (2, 500))
    assert decision.details["band"] == pytest.approx(60 / 1030)


def test_nothing_that_can_be_served_fails_with_every_reason() -> None:
    decision = choose("m", [], SETTINGS, NOW, {}, [Failed(Setting(1, 0), "no memory"), Failed(Setting(2, 0), "died")])
    assert decision.verdict is Verdict.FAIL
    assert "1 instance with a delay of 0 µs: no memory; 2 instances with a delay of 0 µs: died" in decision.why


def test_a_machine_that_was_not_quiet_is_said_to_be() -> None:
    decision = decide(point(1, 0, 1000), point(1, 0, 1400))
    assert decision.details["quiet"] is False
    (noise,) = (item for item in decision.evidence if item.name == "noise")
    assert "not quiet" in noise.why


def test_each_latency_limit_counts_and_an_unknown_percentile_keeps_to_none() -> None:
    both = ProfileSettings(p99_latency_ms=10, p95_latency_ms=4)
    fast = Point(1, 0, 4, 1000, 8, "a", p95_latency_ms=3)
    assert excess(fast, both) == pytest.approx(0.8)
    assert excess(Point(1, 0, 4, 1000, 8, "a", p95_latency_ms=5), both) == pytest.approx(1.25)
    assert math.isinf(excess(point(1, 0, 1000), both))
    only95 = ProfileSettings(p99_latency_ms=None, p95_latency_ms=4)
    decision = decide(fast, fast, settings=only95)
    assert "95 % of requests below 3.00 ms" in decision.evidence[0].why


def test_for_cost_the_second_instance_must_earn_its_price() -> None:
    paid = ProfileSettings(objective="cost", instance_hour_price=3.6)
    faster = decide(*DEFAULTS, *again(2, 0, 1900), settings=paid)
    assert chosen(faster) == (1, 0)
    worth = decide(*DEFAULTS, *again(2, 0, 2500), settings=paid)
    assert chosen(worth) == (2, 0)
    assert worth.details["choice"]["cost_per_million"] == pytest.approx(2 * 3.6 / 3600 / 2500 * 1e6)
    assert chosen(decide(*DEFAULTS, *again(2, 0, 1900))) == (2, 0)


def test_the_picked_one_is_the_chosen_one() -> None:
    points = [*DEFAULTS, *again(2, 0, 1500)]
    taken = pick(points, SETTINGS)
    assert taken is not None
    assert taken.config[:2] == chosen(decide(*points))
    assert pick([DEFAULTS[0], point(2, 0, 1500)], SETTINGS) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"p99_latency_ms": None}, "at least one latency objective"),
        ({"objective": "cost"}, "instance_hour_price"),
        ({"objective": "speed"}, "objective"),
        ({"instances": tuple(range(1, 30)), "queue_delays_us": (0, 1, 2)}, "87 configurations"),
        ({"max_batch_sizes": (0,)}, "max_batch_sizes"),
        ({"intra_op_threads": (2, 2)}, "different numbers"),
    ],
)
def test_a_search_nobody_can_answer_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ProfileSettings(**change)


def test_the_search_space_is_every_combination_with_the_default_first() -> None:
    wide = ProfileSettings(instances=(2, 1), queue_delays_us=(0,), intra_op_threads=(1, 2), max_batch_sizes=(64, 8))
    assert len(set(wide.candidates)) == 8
    assert wide.candidates[0] == Setting(2, 0, 1, 64)


RATES = st.floats(1, 1e5)
LATENCIES = st.floats(0.1, 50)


@given(st.lists(st.tuples(RATES, LATENCIES), min_size=9, max_size=9), st.sampled_from(["throughput", "cost"]))
def test_whatever_is_chosen_keeps_to_the_objective_and_never_loses_to_the_default(
    measured: Any, objective: Any
) -> None:
    configs = [(1, 0), (1, 0), (1, 0), (1, 500), *3 * [(2, 0)], (2, 500), (2, 500)]
    points = [point(*config, rate, p99) for config, (rate, p99) in zip(configs, measured, strict=True)]
    settings = SETTINGS.model_copy(update={"objective": objective, "instance_hour_price": 1.0})
    decision = decide(*points, settings=settings)
    if decision.verdict is Verdict.FAIL:
        assert all(item.p99_latency_ms > 10 for item in merged(points))
        return
    by_config = {item.config: item for item in merged(points)}
    taken = by_config[Setting(*chosen(decision))]
    assert taken.p99_latency_ms <= 10
    default = by_config[Setting(1, 0)]
    least = max(decision.details["band"], SETTINGS.min_gain)
    if default.p99_latency_ms <= 10 and taken != default:
        assert value(taken, settings) > value(default, settings) * (1 + least)


def test_answers_beyond_the_tolerance_fail_whatever_the_speed() -> None:
    decision = decide(*DEFAULTS, point(2, 0, 1500))
    assert answered(decision, 1e-7, 1e-5).verdict is Verdict.PASS
    wrong = answered(decision, 0.3, 1e-5)
    assert wrong.verdict is Verdict.FAIL
    assert "answers differ from ONNX Runtime's by 0.3" in wrong.why
    assert answered(decision, math.inf, 1e-5).verdict is Verdict.FAIL


def test_without_a_choice_nothing_was_answered() -> None:
    decision = decide(point(1, 0, 1000))
    assert answered(decision, None, 1e-5) == decision
