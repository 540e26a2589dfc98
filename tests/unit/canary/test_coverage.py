from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from assets.canary.coverage import Coverage, Seen, curve, tally
from assets.canary.curves import covered, expected, lowest, reached, requests_needed, shares, worst_failure
from assets.canary.settings import CoverageSettings
from assets.canary.standing import standing, told, waits_for
from tests.unit.canary.test_cells import CELLS, rows

UNIFORM = shares([1] * 200)
ZIPF = shares((1e9 / np.arange(1, 201)).astype(int).tolist())
SETTINGS = CoverageSettings(cells=200)
REFERENCE = tuple((1e6 * ZIPF).astype(int).tolist())


def test_the_expected_curve_has_the_values_of_the_statistics() -> None:
    """Design section 5."""
    assert expected(UNIFORM, 500, 1) == pytest.approx(0.9184, abs=5e-5)
    assert requests_needed(ZIPF, 1, 0.95) == 979


def test_thirty_of_each_of_200_zipf_cells_take_26_thousand_requests() -> None:
    needed = requests_needed(ZIPF, 30, 0.95)
    assert needed is not None
    assert needed == pytest.approx(26_300, rel=0.05)
    assert requests_needed(UNIFORM, 1, 1.0) is None or expected(UNIFORM, requests_needed(UNIFORM, 1, 1.0), 1) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(("pi", "requests"), [(UNIFORM, 6000), (ZIPF, 4000), (ZIPF, 20_000)])
def test_the_curve_is_what_one_meets_on_average(pi: np.ndarray, requests: int) -> None:
    drawn = np.random.default_rng(5).multinomial(requests, pi, size=2000)
    met = (drawn >= 30) @ pi
    assert met.mean() == pytest.approx(expected(pi, requests, 30), abs=4 * met.std() / 2000**0.5)


def mixed(traffic: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(2000, K) requests of a canary that got 10 % of half of the traffic and 50 % of the rest."""
    half = traffic // 2
    return rng.binomial(half, 0.1, (2000, len(half))) + rng.binomial(traffic - half, 0.5, (2000, len(half)))


@pytest.mark.parametrize("pi", [UNIFORM, ZIPF, shares([60, 20, 10, 5, 2, 1, 1, 1])])
def test_a_random_assignment_falls_below_its_lowest_once_in_a_hundred(pi: np.ndarray) -> None:
    """Whatever traffic came: here one that differs from the reference, with shares that rose on the way."""
    rng = np.random.default_rng(6)
    traffic = rng.multinomial(12_000, rng.permutation(pi))
    half = traffic // 2
    chances = reached([(0.1, half), (0.5, traffic - half)], 30)
    seen = mixed(traffic, rng)
    np.testing.assert_allclose(chances, (seen >= 30).mean(axis=0), atol=0.05)
    below = ((seen >= 30) @ pi < lowest(pi, chances, 0.01) - 1e-9).mean()
    assert below <= 0.016


def test_an_assignment_that_spares_some_cells_is_found_out() -> None:
    traffic = np.random.default_rng(7).multinomial(20_000, ZIPF)
    mine = np.random.default_rng(8).binomial(traffic, 0.5)
    honest = one_look(mine, traffic)
    assert waits_for(standing(honest, 0, SETTINGS), 0.5, 1.0, SETTINGS) is None
    mine[5::4] = 0
    assert standing(one_look(mine, traffic), 0, SETTINGS, one_by_one=False).lowest == 0
    broken = standing(one_look(mine, traffic), 0, SETTINGS)
    said = waits_for(broken, 0.5, 1.0, SETTINGS)
    assert said is not None
    assert "assignment is not random" in said


def one_look(mine: np.ndarray, both: np.ndarray, beyond: int = 0, hours: tuple[int, ...] = (0,) * 24) -> Coverage:
    begun = Coverage(REFERENCE, (100,) * 24)
    return begun.plus(Seen(0.5, tuple(mine.tolist()), tuple(both.tolist()), beyond, hours))


def test_before_the_first_look_nothing_is_covered_and_all_could_fail() -> None:
    stands = standing(Coverage(REFERENCE, (1,) * 24), 0, SETTINGS)
    assert (stands.requests, stands.covered, stands.lowest, stands.could_fail) == (0, 0.0, 0.0, 1.0)
    assert waits_for(stands, 0.8, 0.35, SETTINGS) is not None
    assert "none" in told(stands, SETTINGS)


def test_uncovered_cells_count_as_if_they_all_failed() -> None:
    pi = np.array([0.6, 0.3, 0.1])
    clean = worst_failure(pi, [30, 30, 29], 0, 30, 0.05)
    assert clean == pytest.approx(0.1 + 0.9 * (1 - 0.05 ** (1 / 30)))
    assert worst_failure(pi, [0, 0, 0], 0, 30, 0.05) == 1.0


def test_failures_without_features_are_put_where_they_weigh_most() -> None:
    """Against every way to place three failures on three cells."""
    from scipy.stats import beta

    pi, seen = np.array([0.5, 0.3, 0.2]), np.array([300, 40, 35])
    ways = [(a, b, 3 - a - b) for a in range(4) for b in range(4 - a)]
    each = [sum(pi[k] * beta.ppf(0.95, way[k] + 1, seen[k]) for k in range(3)) for way in ways]
    assert worst_failure(pi, seen, 3, 30, 0.05) == pytest.approx(max(each))
    assert worst_failure(pi, seen, 10**6, 30, 0.05) == 1.0


def test_traffic_that_the_reference_does_not_know_makes_it_stale() -> None:
    traffic = np.random.default_rng(9).multinomial(200_000, ZIPF)
    mine = np.random.default_rng(10).binomial(traffic, 0.5)
    assert waits_for(standing(one_look(mine, traffic, beyond=10), 0, SETTINGS), 0.95, 0.2, SETTINGS) is None
    said = waits_for(standing(one_look(mine, traffic, beyond=mine.sum() // 40), 0, SETTINGS), 0.95, 0.2, SETTINGS)
    assert said is not None
    assert "the reference is stale: 2.5%" in said


def test_a_canary_that_saw_only_the_night_says_so() -> None:
    night = rows(500).assign(version="2")
    night = night[night["event_time"].dt.hour < 4]
    coverage = Coverage.of(CELLS).plus(tally(night, CELLS, 0.5, 2))
    stands = standing(coverage, 0, SETTINGS)
    assert stands.seen_hours == (0, 1, 2, 3)
    assert stands.hours == pytest.approx(4 / 24, abs=0.01)
    assert "hours of day seen (UTC): 0-3, with 16." in told(stands, SETTINGS)


def test_a_look_counts_the_challengers_answers_apart_from_all() -> None:
    logged = rows(400, seed=4).assign(version=["1", "2"] * 200)
    logged.loc[1, "temp"] = 400.0
    seen = tally(logged, CELLS, 0.25, 2)
    assert (sum(seen.canary), sum(seen.both), seen.beyond, sum(seen.hours)) == (200, 400, 1, 200)
    assert seen.canary[CELLS.outside] >= 1


@settings(deadline=None, max_examples=10)
@given(st.permutations(range(6)))
def test_the_order_of_looks_changes_nothing_and_json_keeps_all(order: list[int]) -> None:
    rng = np.random.default_rng(11)
    looks = []
    for number in range(6):
        both = rng.integers(0, 50, len(REFERENCE))
        mine = rng.binomial(both, 0.5)
        hours = tuple(rng.integers(0, 9, 24).tolist())
        looks.append(Seen((0.05, 0.5)[number % 2], tuple(mine.tolist()), tuple(both.tolist()), number, hours))
    one = two = Coverage(REFERENCE, (1,) * 24)
    for number in range(6):
        one, two = one.plus(looks[number]), two.plus(looks[order[number]])
    assert standing(one, 2, SETTINGS) == standing(two, 2, SETTINGS)
    assert Coverage.from_dict(one.to_dict()) == one


def test_a_look_of_other_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="a look of 3 cells, the reference has 200"):
        Coverage(REFERENCE, (1,) * 24).plus(Seen(0.5, (1, 1, 1), (2, 2, 2), 0, (0,) * 24))


def test_the_curve_of_a_rollout_lies_beside_the_expected_one() -> None:
    rng = np.random.default_rng(12)
    coverage = Coverage(REFERENCE, (1,) * 24)
    for share in (0.05, 0.5):
        both = rng.multinomial(20_000, ZIPF)
        mine = tuple(rng.binomial(both, share).tolist())
        coverage = coverage.plus(Seen(share, mine, tuple(both.tolist()), 0, (0,) * 24))
    points = curve(coverage, 30)
    assert [point["percent"] for point in points] == [5, 50]
    for point in points:
        assert point["covered"] == pytest.approx(point["expected"], abs=0.05)
    assert covered(shares(REFERENCE), coverage.seen, 30) == points[-1]["covered"]


def test_limits_belong_to_the_last_rungs() -> None:
    ladder = (1, 5, 25, 50, 100)
    assert [SETTINGS.before(ladder, index) for index in range(1, 5)] == [None, (0.8, 0.35), (0.9, 0.25), (0.95, 0.2)]
    assert SETTINGS.before((10, 100), 1) == (0.95, 0.2)
    assert CoverageSettings().before(ladder, 4) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cells": 1}, "one cell is always covered"),
        ({"covered": (0.9,)}, "one of each"),
        ({"covered": (0.9, 0.8, 0.95)}, "can't ask for less"),
        ({"could_fail": (0.3, 0.2, 0.0)}, "shares in"),
        ({"cells": 5000}, "less than or equal to 2000"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        CoverageSettings.model_validate({"cells": 50, **change})


def test_one_failed_request_more_never_lowers_the_bound() -> None:
    base = one_look(np.full(200, 40), np.full(200, 80))
    found = [standing(base, failed, SETTINGS).could_fail for failed in range(8)]
    assert found == sorted(found)
    assert replace(standing(base, 0, SETTINGS), covered=0.0).could_fail == found[0]


def test_a_look_without_answers_counts_nothing() -> None:
    empty = pd.DataFrame({"version": pd.Series(dtype=str), "event_time": pd.Series(dtype="datetime64[us, UTC]")})
    seen = tally(empty, CELLS, 0.5, 2)
    assert (sum(seen.canary), sum(seen.both), seen.beyond, sum(seen.hours)) == (0, 0, 0, 0)


def test_answers_that_lack_a_feature_lie_outside_every_cell() -> None:
    logged = rows(40).assign(version="2")
    for name in CELLS.features:
        seen = tally(logged.drop(columns=name), CELLS, 0.5, 2)
        assert seen.canary[CELLS.outside] == 40
