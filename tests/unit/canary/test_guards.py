import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from assets.canary.eprocess import WORSE
from assets.canary.evidence import clean_requests_needed, evidence, safe
from assets.canary.guards import COMPARED, LONGEST, NEWEST, Guards, last, trace
from assets.canary.looks import QUICK_MS, Look, count, due, first_events, slow_threshold_ms
from assets.canary.settings import CanarySettings, OutcomeSettings
from assets.verdict import Verdict

LAW = settings(deadline=None, max_examples=60)  # other work on the machine is no failure
SETTINGS = CanarySettings()


def look(share: float = 0.5, canary: Any = (100, 0, 0), baseline: Any = (100, 0, 0), seconds: float = 1.0) -> Look:
    a, b, c = canary
    d, e, f = baseline
    return Look(share, a, b, c, d, e, f, seconds)


def verdicts(guards: Guards, settings: CanarySettings = SETTINGS) -> dict[str, Verdict]:
    return {item.name: item.verdict for item in evidence(guards, settings)}


arms = st.integers(0, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, n)))
looks = st.builds(look, st.sampled_from([0.0, 0.01, 0.25, 0.5, 1.0]), arms, arms, st.floats(0, 5))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_errors_of_the_canary_alone_fail_at_the_exact_bound(share: float) -> None:
    """No error in the baseline, k in the canary: the bound is a sum of five powers."""

    def e_value(k: int) -> float:
        null = 1 + SETTINGS.tolerance_errors
        theta = [share * r / (share * r + 1 - share) for r in (null, *(null * worse for worse in WORSE))]
        return COMPARED * float(np.mean([(part / theta[0]) ** k for part in theta[1:]])) + 1 - COMPARED

    k = next(k for k in range(1, 200) if e_value(k) >= 1 / SETTINGS.alpha_errors)
    for errors, verdict in ((k - 1, False), (k, True)):
        guards = Guards().update(look(share, (1000, errors, 0), (1000, 0, 0)))
        assert (verdicts(guards)["errors"] is Verdict.FAIL) is verdict
        shown = last(guards, SETTINGS)["errors"]
        assert shown == pytest.approx(math.log(e_value(errors)))


def test_nothing_seen_proves_nothing() -> None:
    asked = CanarySettings(outcome=OutcomeSettings(event="wrong"))
    assert set(verdicts(Guards(), asked).values()) == {Verdict.INCONCLUSIVE}
    assert not safe(Guards(), SETTINGS)
    silent = Guards().update(look(0.5, (0, 0, 0), (0, 0, 0)))
    assert set(verdicts(silent, asked).values()) == {Verdict.INCONCLUSIVE}


def test_traffic_of_the_champion_alone_proves_nothing_of_the_challenger() -> None:
    guards = Guards().update(look(0.01, (0, 0, 0), (60, 0, 0)))
    assert verdicts(guards)["errors"] is Verdict.INCONCLUSIVE
    assert not safe(guards, SETTINGS)


def test_a_perfect_canary_of_a_perfect_champion_is_proven_harmless() -> None:
    """The relative test alone could never say so: no event, no evidence."""
    guards = Guards().update(look(0.5, (1200, 0, 0), (1200, 0, 0)))
    assert safe(guards, SETTINGS)
    assert set(verdicts(guards).values()) == {Verdict.PASS}


def test_the_forecast_of_clean_requests_is_exact() -> None:
    guards = Guards().update(look(0.5, (100, 0, 0), (100, 0, 0)))
    more = clean_requests_needed(guards, "errors", SETTINGS)
    assert more is not None
    assert not safe(guards.update(look(0.5, (more - 1, 0, 0), (0, 0, 0))), SETTINGS)
    assert safe(guards.update(look(0.5, (more, 0, 0), (0, 0, 0))), SETTINGS)


def test_an_incident_that_both_arms_share_rolls_nothing_back() -> None:
    guards = Guards()
    for _ in range(60):
        guards = guards.update(look(0.5, (50, 15, 20), (50, 15, 20)))
    assert Verdict.FAIL not in verdicts(guards).values()


def test_errors_of_both_arms_do_not_hide_that_the_canary_has_twice_as_many() -> None:
    guards = Guards()
    for _ in range(40):
        guards = guards.update(look(0.25, (25, 3, 0), (75, 3, 0)))
    assert verdicts(guards)["errors"] is Verdict.FAIL


def test_the_kill_switch_needs_requests_and_looks_at_the_last_seconds_only() -> None:
    settings = CanarySettings(kill_requests=50, alpha_errors=1e-300)
    few = Guards().update(look(0.5, (49, 49, 0), (1000, 0, 0)))
    enough = Guards().update(look(0.5, (50, 11, 0), (1000, 0, 0)))
    long_ago = enough
    for _ in range(31):
        long_ago = long_ago.update(look(0.5, (50, 0, 0), (50, 0, 0)))
    assert verdicts(few, settings)["kill_switch"] is Verdict.PASS
    assert verdicts(enough, settings)["kill_switch"] is Verdict.FAIL
    assert verdicts(long_ago, settings)["kill_switch"] is Verdict.PASS


def test_alone_at_all_the_traffic_the_canary_is_held_to_the_absolute_limit() -> None:
    guards = Guards().update(look(0.5, (2000, 0, 0), (2000, 0, 0)))
    assert verdicts(guards.update(look(1.0, (1000, 40, 0), (0, 0, 0))))["errors"] is Verdict.FAIL
    assert verdicts(guards.update(look(1.0, (1000, 2, 0), (0, 0, 0))))["errors"] is Verdict.PASS


def test_requests_at_the_wrong_pool_are_a_broken_split_even_at_shares_of_0_and_1() -> None:
    few_stray = Guards().update(look(1.0, (1000, 0, 0), (3, 0, 0)))
    half = Guards().update(look(1.0, (100, 0, 0), (100, 0, 0)))
    none_assigned = Guards().update(look(0.0, (50, 0, 0), (100, 0, 0)))
    assert verdicts(few_stray)["sample_ratio"] is Verdict.PASS
    assert verdicts(half)["sample_ratio"] is Verdict.FAIL
    assert verdicts(none_assigned)["sample_ratio"] is Verdict.FAIL


def test_bursts_of_slow_requests_within_the_tolerance_are_no_harm() -> None:
    guards = Guards().update(look(0.5, (2000, 0, 110), (2000, 0, 70)))
    assert verdicts(guards)["slow"] is not Verdict.FAIL


def test_many_more_slow_requests_are_harm() -> None:
    guards = Guards().update(look(0.5, (1000, 0, 90), (1000, 0, 10)))
    assert verdicts(guards)["slow"] is Verdict.FAIL


def test_slow_requests_are_judged_a_look_at_a_time() -> None:
    at_once = Guards.begin(SETTINGS).update(look(0.5, (1000, 0, 400), (1000, 0, 0)))
    assert verdicts(at_once)["slow"] is Verdict.INCONCLUSIVE
    again_and_again = Guards.begin(SETTINGS)
    for _ in range(12):
        again_and_again = again_and_again.update(look(0.5, (100, 0, 20), (100, 0, 2)))
    assert verdicts(again_and_again)["slow"] is Verdict.FAIL


def test_a_record_of_before_a_look_was_the_unit_says_the_same_again() -> None:
    kept = {"looks": [[0.5, 1000, 0, 90, 1000, 0, 10, 1.0]]}
    old = Guards.from_dict(kept)
    assert old.bursts is None
    assert verdicts(old)["slow"] is Verdict.FAIL
    assert Guards.from_dict(json.loads(json.dumps(old.to_dict()))) == old
    assert old.update(look()).bursts is None


def test_that_few_requests_are_slow_takes_time_to_prove_however_many_there_are() -> None:
    """A stall makes all of them slow: thousands in one second say little about how often there is one."""
    brief = Guards.begin(SETTINGS).update(look(0.5, (5000, 0, 0), (5000, 0, 0), seconds=2.0))
    assert not safe(brief, SETTINGS)
    assert safe(brief.update(look(0.5, (5000, 0, 0), (5000, 0, 0), seconds=12.0)), SETTINGS)
    more = clean_requests_needed(brief, "slow", SETTINGS)
    assert more is not None
    seconds = more * 2.0 / 5000
    assert safe(brief.update(look(0.5, (more, 0, 0), (0, 0, 0), seconds=seconds)), SETTINGS)
    assert not safe(brief.update(look(0.5, (more - 600, 0, 0), (0, 0, 0), seconds=seconds * 0.95)), SETTINGS)


def test_a_request_counts_in_the_look_it_began_in_and_a_long_one_once_it_is_in_the_log() -> None:
    began = pd.Timestamp("2024-01-01", tz="UTC")
    access = pd.DataFrame(
        {"seen_at": [began] * 3, "latency_ms": [1.0, QUICK_MS, 3500.0], "request_id": ["a", "b", "c"]}
    )
    counted = [
        list(due(access, began + pd.Timedelta(seconds=s), began + pd.Timedelta(seconds=s + 1))["request_id"])
        for s in range(5)
    ]
    assert counted == [["a", "b"], [], [], ["c"], []]


def visits(rng: np.random.Generator, users: int, bad: float, share: float) -> pd.DataFrame:
    """An access log: a user stays in one arm; whoever meets an error meets six on average, one after the other."""
    rows = []
    for user in range(users):
        pool = "green" if rng.random() < share else "blue"
        fails = rng.geometric(1 / 6) if rng.random() < bad else 0
        rows += [(f"u{user}", pool, rng.uniform(0, 100) + at / 10, at >= fails) for at in range(max(fails, 3))]
    log = pd.DataFrame(rows, columns=["unit", "pool", "at", "ok"])
    seen_at = pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(log.pop("at"), unit="s")
    return log.assign(seen_at=seen_at, latency_ms=1.0, attempts=1, request_id=[f"r{i}" for i in range(len(log))])


def test_bursts_of_errors_of_single_users_roll_back_no_equal_challenger() -> None:
    rng, first, every = np.random.default_rng(8), 0, 0
    for _ in range(150):
        log = visits(rng, 600, 0.1, 0.1)
        once = first_events(log, 50.0, "green")
        for rows, counted in ((once, "first"), (log, "every")):
            fired = verdicts(Guards.begin(SETTINGS).update(count(rows, 0.1, "green", "blue", 50.0, 100.0)))
            bad = fired["errors"] is Verdict.FAIL or fired["sample_ratio"] is Verdict.FAIL
            first, every = first + (bad and counted == "first"), every + (bad and counted == "every")
    assert binomtest(first, 150, SETTINGS.alpha_errors + SETTINGS.alpha_sample_ratio, "greater").pvalue > 1e-3
    assert every > 2 * max(first, 5)


def test_of_a_user_the_first_error_the_first_slow_request_and_the_first_visit_count() -> None:
    at = pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(range(7), unit="s")
    log = pd.DataFrame(
        {
            "request_id": list("abcdefg"),
            "unit": ["u", "u", "u", "", "", "u", "v"],
            "pool": ["blue", "green", "green", "green", "green", "green", "blue"],
            "ok": [True, False, False, False, False, True, True],
            "attempts": [1, 1, 1, 1, 1, 2, 1],
            "latency_ms": [1.0, 90.0, 1.0, 1.0, 90.0, 90.0, 90.0],
            "seen_at": at,
        }
    )
    # Before green got anything u's visit said nothing; then u errs once and is slow once; two without a name err.
    assert count(first_events(log, 50.0, "green"), 0.5, "green", "blue", 50.0, 7.0) == Look(
        0.5, 5, 3, 2, 2, 0, 1, 7.0, users=(3, 1)
    )


@LAW
@given(st.lists(looks, max_size=12), st.randoms(use_true_random=False))
def test_neither_order_nor_batching_of_looks_changes_the_evidence(seen: list[Look], random: Any) -> None:
    shuffled = list(seen)
    random.shuffle(shuffled)
    one, two = (last(Guards(tuple(items)), SETTINGS) for items in (seen, shuffled))
    merged = last(Guards(tuple(Guards(tuple(seen)).by_share().values())), SETTINGS)
    for name, value in one.items():
        assert two[name] == pytest.approx(value, abs=1e-6, rel=1e-9)
        assert merged[name] == pytest.approx(value, abs=1e-6, rel=1e-9)


@LAW
@given(st.lists(looks, max_size=12))
def test_the_trace_ends_where_the_evidence_is(seen: list[Look]) -> None:
    guards = Guards.begin(SETTINGS)
    for item in seen:
        guards = guards.update(item)
    for name, values in trace(guards, SETTINGS).items():
        assert np.isfinite(values).all()
        if seen:
            assert values[-1] == pytest.approx(last(guards, SETTINGS)[name], abs=1e-6, rel=1e-9)


@LAW
@given(st.lists(looks, max_size=12))
def test_guards_survive_a_round_trip_through_json(seen: list[Look]) -> None:
    guards = Guards.begin(SETTINGS).update(look()).update(replace(look(), users=(3, 4)))
    for item in seen:
        guards = guards.update(item)
    assert Guards.from_dict(json.loads(json.dumps(guards.to_dict(), allow_nan=False))) == guards


def test_a_thousand_looks_are_remembered_by_their_sums() -> None:
    rng = np.random.default_rng(2)
    guards, everything = Guards(), []
    for index in range(1000):
        n = rng.integers(0, 20, 2)
        seen = look(0.05 if index < 500 else 0.5, (n[0], n[0] // 4, 0), (n[1], n[1] // 5, 0), 0.5)
        everything.append(seen)
        guards = guards.update(seen)
    assert len(guards.looks) <= LONGEST
    assert guards.looks[-NEWEST:] == tuple(everything[-NEWEST:])
    assert guards.by_share() == Guards(tuple(everything)).by_share()


def test_access_rows_are_counted_by_pool() -> None:
    access = pd.DataFrame(
        {
            "pool": ["green", "green", "blue", "blue", "", "green"],
            "ok": [True, False, True, False, False, True],
            "latency_ms": [10.0, 80.0, 60.0, 5.0, 0.0, 50.0],
            "attempts": [1, 1, 1, 1, 0, 2],
        }
    )
    # The last request was answered by the other pool after green had failed it.
    assert count(access, 0.25, "green", "blue", 50.0, 2.5) == Look(0.25, 3, 2, 1, 2, 1, 1, 2.5)
    assert count(access[:0], 0.25, "green", "blue", 50.0, 2.5).requests == 0


def test_slow_is_an_absolute_objective_or_the_champions_own_tail() -> None:
    assert slow_threshold_ms(None, SETTINGS) == 50
    assert slow_threshold_ms(0.4, SETTINGS) == 50
    assert slow_threshold_ms(120.0, SETTINGS) == 120


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 1.2}, "share = 1.2"),
        ({"canary": (5, 6, 0)}, "canary: 6 errors"),
        ({"baseline": (5, 0, -1)}, "baseline: 0 errors and -1 slow"),
    ],
)
def test_an_impossible_look_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        look(**changes)


def test_looks_of_different_shares_do_not_merge() -> None:
    with pytest.raises(ValueError, match="don't merge"):
        look(0.1).plus(look(0.2))


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        ((1, "mirror", 100), "only be the first"),
        ((1, 50), "the last one is 100"),
        ((5, 5, 100), "higher than the one before"),
        ((100,), "a rung below 100"),
        ((0, 100), "1 to 100"),
    ],
)
def test_a_ladder_that_does_not_climb_is_refused(ladder: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CanarySettings(ladder=ladder)
