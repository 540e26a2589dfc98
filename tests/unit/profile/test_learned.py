"""What other models teach about a device: an order and an end of the search, never a figure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from assets.profile.cache import Profile
from assets.profile.choice import choose
from assets.profile.confirm import MEASUREMENTS
from assets.profile.learned import enough, expectations, guess, ordered, plan, usable
from assets.profile.points import Failed, Point, noise_band
from assets.profile.settings import ProfileSettings, Setting

PLACE = {"device": "a CPU", "config_name": "a-cpu", "driver": "none", "threads": "2", "triton": "2.51"}
SETTINGS = ProfileSettings(instances=(1, 2, 3), queue_delays_us=(0, 200, 500), p99_latency_ms=100)
DEFAULT = SETTINGS.candidates[0]


def point(config: Setting, rate: float, p99: float = 5) -> Point:
    return Point(config.instances, config.max_queue_delay_us, 4, rate, p99, config.name)


def profile(model: str, rates: dict[Setting, float], failed: Sequence[Failed] = ()) -> Profile:
    points = tuple(point(config, rate) for config, rate in rates.items())
    return Profile(model, model, PLACE, "KIND_CPU", "2013-03-01T00:00:00+00:00", points, tuple(failed), 0.0)


SCALES = {Setting(1, 0): 1.0, Setting(2, 0): 1.6, Setting(3, 0): 1.3, Setting(2, 500): 0.8}
PAST = [profile(name, {c: rate * s for c, s in SCALES.items()}) for name, rate in (("a", 1e3), ("b", 5e3), ("c", 99.0))]


@pytest.mark.parametrize("key", ["device", "driver", "threads", "triton"])
def test_a_profile_expires_when_its_place_changes(key: str) -> None:
    assert usable(PAST, PLACE) == PAST
    assert usable(PAST, PLACE | {key: "another"}) == []


def test_an_unseen_device_is_searched_in_full_in_the_specs_order_with_the_control_at_the_end() -> None:
    assert plan(SETTINGS, [], [], []) == [*SETTINGS.candidates, DEFAULT]


def test_a_known_device_is_searched_from_the_most_promising_on() -> None:
    order = ordered(PAST, SETTINGS)
    assert order[:3] == [DEFAULT, Setting(2, 0), Setting(3, 0)]
    assert order[-1] == Setting(2, 500)
    assert sorted(order) == sorted(SETTINGS.candidates)
    assert plan(SETTINGS, PAST, [], [])[:4] == [DEFAULT, Setting(2, 0), DEFAULT, Setting(3, 0)]


def test_for_cost_the_order_is_by_what_a_request_costs() -> None:
    paid = SETTINGS.model_copy(update={"objective": "cost", "instance_hour_price": 1.0})
    expected = expectations(PAST, paid)
    assert expected[Setting(2, 0)].mean == pytest.approx(np.log(1.6 / 2))
    assert ordered(PAST, paid)[1] not in (Setting(2, 0), Setting(3, 0))


def test_what_no_model_could_be_served_with_comes_last_and_yet_comes() -> None:
    died = Failed(Setting(1, 200), "out of memory")
    order = ordered([replace(item, failed=(died,)) for item in PAST], SETTINGS)
    assert order[-1] == Setting(1, 200)


def test_a_past_profile_without_the_default_teaches_nothing() -> None:
    assert expectations([profile("a", {Setting(2, 0): 1600.0})], SETTINGS) == {}


SMALL = ProfileSettings(instances=(1, 2, 3), queue_delays_us=(0,))
HERE = [point(DEFAULT, 1000), point(Setting(2, 0), 1590), point(DEFAULT, 1010)]


def test_a_search_ends_when_what_is_left_can_not_win_by_more_than_noise() -> None:
    assert enough(SMALL, PAST, HERE, [Setting(3, 0)])
    assert plan(SMALL, PAST, HERE, []) == [Setting(2, 0), DEFAULT, Setting(2, 0)]  # what leads is measured again


@pytest.mark.parametrize(
    ("why", "past", "points", "left"),
    [
        ("one past model may be an exception", PAST[:1], HERE, [Setting(3, 0)]),
        ("nobody measured what is left", PAST, HERE, [Setting(3, 0), Setting(3, 500)]),
        ("no control yet", PAST, HERE[:2], [Setting(3, 0)]),
        ("the control is loud", PAST, [*HERE[:2], point(DEFAULT, 1500)], [Setting(3, 0)]),
        ("this model is of another kind", PAST, [HERE[0], point(Setting(2, 0), 1100), HERE[2]], [Setting(3, 0)]),
        ("nothing but the default was compared", PAST, [HERE[0], HERE[2]], [Setting(2, 0), Setting(3, 0)]),
        ("what is left is expected to win", PAST, [HERE[0], point(Setting(3, 0), 1300), HERE[2]], [Setting(2, 0)]),
        (
            "nothing keeps to the limit",
            PAST,
            [replace(item, p99_latency_ms=500.0) for item in HERE],
            [Setting(3, 0)],
        ),
    ],
)
def test_a_search_goes_on_while(why: str, past: list[Profile], points: list[Point], left: list[Setting]) -> None:
    assert not enough(SMALL, past, points, left), why


def test_a_default_that_can_not_be_served_leaves_the_control_to_the_best() -> None:
    failed = [Failed(DEFAULT, "died")]
    points = [point(Setting(2, 0), 1600), point(Setting(3, 0), 1300)]
    assert plan(SMALL, [], points, failed) == [Setting(2, 0)]
    assert plan(SMALL, [], [*points, points[0]], failed) == []
    assert plan(SMALL, [], [], [Failed(config, "died") for config in SMALL.candidates]) == []


def test_every_search_ends_whatever_fails() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        points: list[Point] = []
        failed: list[Failed] = []
        past = PAST if rng.random() < 0.5 else []
        for _ in range(30):
            todo = plan(SETTINGS, past, points, failed)
            if not todo:
                break
            if rng.random() < 0.3:
                failed.append(Failed(todo[0], "died"))
            else:
                points.append(point(todo[0], float(rng.lognormal(7, 0.3))))
        else:
            pytest.fail(f"does not end: {points} {failed}")
        broken = {item.config for item in failed}
        served = [item.config for item in points if item.config not in broken]
        assert not served or max(served.count(config) for config in served) >= 2


def test_a_guess_is_the_cheapest_of_what_past_models_speak_for() -> None:
    assert guess(PAST, SETTINGS) == Setting(2, 0)
    near = {Setting(1, 0): 1000.0, Setting(2, 0): 1050.0}
    assert guess([profile("a", near)], SETTINGS) == Setting(1, 0)
    assert guess([], SETTINGS) is None


MODEL_SPREAD, NOISE = 0.05, 0.03


def searches(seed: int) -> Iterator[tuple[int, int, float, float, float]]:
    """A device with 6 past models, then 10 new ones, each searched with the early end and in full on the same draws.

    Yields trials and true value of either choice (early, full), and what counts as a gain.
    """
    rng = np.random.default_rng(seed)
    device = {config: float(rng.lognormal(0, 0.3)) for config in SETTINGS.candidates}

    def draws() -> tuple[dict[Setting, float], dict[Setting, list[Point]]]:
        rate = rng.lognormal(7, 1)
        true = {config: float(rate * worth * rng.lognormal(0, MODEL_SPREAD)) for config, worth in device.items()}
        noise = rng.lognormal(0, NOISE, (len(true), MEASUREMENTS))
        return true, {c: [point(c, float(true[c] * e)) for e in row] for c, row in zip(true, noise, strict=True)}

    def searched(past: Sequence[Profile], drawn: dict[Setting, list[Point]]) -> tuple[int, Setting, float]:
        points: list[Point] = []
        while todo := plan(SETTINGS, past, points, []):
            points.append(drawn[todo[0]][[item.config for item in points].count(todo[0])])
        choice = choose("m", points, SETTINGS, datetime(2013, 3, 1, tzinfo=UTC), {}).details["choice"]
        return len(points), Setting(*(choice[name] for name in Setting._fields)), noise_band(points)

    past = []
    for number in range(6):
        _, drawn = draws()
        past.append(profile(str(number), {config: few[0].throughput_per_s for config, few in drawn.items()}))
    for _ in range(10):
        true, drawn = draws()
        trials, early, band = searched(past, drawn)
        whole, late, _ = searched([], drawn)
        yield trials, whole, true[early], true[late], max(band, SETTINGS.min_gain)


def test_the_early_end_saves_trials_and_never_costs_more_than_the_noise() -> None:
    trials, whole, early, full, least = np.array([item for seed in range(10) for item in searches(seed)]).T
    assert trials.mean() < 0.8 * whole.mean()
    assert full.size == 100
    assert (early * (1 + least) >= full).all()
