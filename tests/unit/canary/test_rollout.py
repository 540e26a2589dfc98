import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.canary.events import (
    Abort,
    Event,
    Loaded,
    LoadFailed,
    MirrorSeen,
    Observed,
    Tick,
    WeightsConfirmed,
    WeightsFailed,
)
from assets.canary.judge import judge
from assets.canary.lease import claim, close, orphaned, release
from assets.canary.looks import Look
from assets.canary.picture import figure, sparkline
from assets.canary.rollout import Phase, Rollout, begin, deadline, mirror, overdue, share, warm_until, weights
from assets.canary.settings import CanarySettings
from assets.canary.step import step
from assets.verdict import Verdict

LAW = settings(deadline=None, max_examples=60)  # other work on the machine is no failure
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = CanarySettings()
LEASE, SECOND = timedelta(seconds=SETTINGS.lease_s), timedelta(seconds=1)
SECOND = timedelta(seconds=1)


def fresh(champion: tuple[int, str] | None = (1, "blue"), **changes: Any) -> Rollout:
    rules = CanarySettings.model_validate(changes)
    return begin("m", 2, "green", "packages/m/2/x.tar", "x", rules, NOW, champion=champion)


def walk(rollout: Rollout, *events: Event, at: datetime = NOW) -> Rollout:
    for event in events:
        rollout = step(rollout, event, at)
    return rollout


def clean(rollout: Rollout, requests: int = 1000, errors: int = 0, theirs: int = 0) -> Observed:
    """A look with the assigned share of requests on the challenger."""
    mine = round(requests * share(rollout))
    return Observed(Look(share(rollout), mine, min(errors, mine), 0, requests - mine, theirs, 0, 1.0))


def climb(rollout: Rollout, until: Phase, at: datetime = NOW) -> Rollout:
    """A healthy rollout, up to the first time it is in that phase."""
    for _ in range(60):
        if rollout.phase is until:
            return rollout
        event: Event = Loaded()
        if rollout.phase is not Phase.LOADING:
            event = WeightsConfirmed() if not rollout.confirmed else clean(rollout)
        if rollout.phase is Phase.MIRRORING and rollout.confirmed:
            event = MirrorSeen(200, 0, compared=50)
        rollout = step(rollout, event, at)
    raise AssertionError(f"never {until}: {rollout.phase}")


arms = st.integers(0, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, min(n, 3)), st.integers(0, n)))
observed = st.builds(
    lambda s, a, b, t: Observed(Look(s, a[0], a[1], a[2], b[0], b[1], b[2], t)),
    st.sampled_from([0.0, 0.01, 0.05, 0.25, 0.5, 1.0]),
    arms,
    arms,
    st.floats(0, 9),
)
events = st.one_of(
    st.just(Loaded()),
    st.builds(LoadFailed, st.just("broken")),
    st.just(WeightsConfirmed()),
    st.builds(WeightsFailed, st.just("refused")),
    st.builds(
        MirrorSeen, st.integers(0, 400), st.integers(0, 4), compared=st.sampled_from([0, 50]), differing=st.just(0)
    ),
    observed,
    st.just(Tick()),
    st.builds(Abort, st.just("operator"), st.sampled_from(list(Verdict))),
)
healthy = st.one_of(
    st.just(Loaded()), st.just(WeightsConfirmed()), st.just(MirrorSeen(300, 0, compared=50)),
    st.sampled_from([0.01, 0.05, 0.25, 0.5, 1.0]).map(
        lambda s: Observed(Look(s, round(s * 6000), 0, 0, round((1 - s) * 6000), 0, 0, 1.0))
    ),
)  # fmt: skip
silence = st.one_of(
    st.just(Loaded()),
    st.just(WeightsConfirmed()),
    st.just(MirrorSeen(300, 0, compared=50)),
    st.just(Tick()),
    st.sampled_from([0.01, 0.5, 1.0]).map(lambda s: Observed(Look(s, 0, 0, 0, 0, 0, 0, 30.0))),
)
schedule = st.lists(st.tuples(st.one_of(events, healthy), st.sampled_from([0, 0, 0, 1, 20, 400])), max_size=40)
champions = st.sampled_from([None, (1, "blue")])
starts = st.one_of(
    champions.map(fresh),
    st.sampled_from([Phase.MIRRORING, Phase.ADVANCING, Phase.HOLDING, Phase.PROMOTING]).map(
        lambda phase: climb(fresh(requests_per_rung=100), phase)
    ),
)


def play(rollout: Rollout, plan: list[tuple[Event, int]]) -> tuple[Rollout, datetime]:
    now = NOW
    for event, seconds in plan:
        now += timedelta(seconds=seconds)
        rollout = step(rollout, event, now)
    return rollout, now


@LAW
@given(starts, schedule)
def test_whatever_happens_all_traffic_ends_on_one_model(start: Rollout, plan: list[tuple[Event, int]]) -> None:
    rollout, now = play(start, plan)
    for _ in range(3):  # whoever drives it: time passes, and the gateway confirms in the end
        rollout = walk(rollout, Tick(), at=now + timedelta(days=1))
        rollout = walk(rollout, WeightsConfirmed(), at=now + timedelta(days=1))
    assert rollout.ended
    old = {} if start.first_release else {"blue": 100}
    assert weights(rollout) == ({"green": 100} if rollout.phase is Phase.PROMOTED else old)
    assert mirror(rollout) is None


@LAW
@given(starts, schedule)
def test_at_every_moment_the_weights_are_whole(start: Rollout, plan: list[tuple[Event, int]]) -> None:
    rollout, now = start, NOW
    for event, seconds in plan:
        now += timedelta(seconds=seconds)
        rollout = step(rollout, event, now)
        assert sum(weights(rollout).values()) == 100 or (start.first_release and weights(rollout) == {})
        assert min(weights(rollout).values(), default=1) > 0


@LAW
@given(starts, schedule, st.lists(events, max_size=8))
def test_an_end_never_changes(start: Rollout, plan: list[tuple[Event, int]], more: list[Event]) -> None:
    rollout, now = play(start, plan)
    ended = walk(rollout, Abort("enough"), WeightsConfirmed(), at=now)
    assert ended.ended
    assert walk(ended, *more, at=now + timedelta(days=9)) is ended


@LAW
@given(schedule, st.lists(st.builds(Abort, st.text(max_size=3)), min_size=1, max_size=4))
def test_rolling_back_twice_is_rolling_back_once(plan: list[tuple[Event, int]], orders: list[Event]) -> None:
    rollout, now = play(fresh(), plan)
    once = walk(rollout, orders[0], at=now)
    assert walk(once, *orders, at=now) == once
    if not rollout.ended:
        assert once.phase is Phase.ROLLING_BACK
        assert weights(once) == {"blue": 100}


@LAW
@given(st.lists(st.tuples(silence, st.sampled_from([0, 1, 20])), max_size=60))
def test_silence_never_promotes(plan: list[tuple[Event, int]]) -> None:
    rollout, _ = play(fresh(), plan)
    assert rollout.phase not in (Phase.PROMOTING, Phase.PROMOTED)
    assert judge(rollout, NOW, {}).verdict is not Verdict.PASS


@LAW
@given(starts, schedule)
def test_a_rollout_survives_a_round_trip_through_json(start: Rollout, plan: list[tuple[Event, int]]) -> None:
    rollout, now = play(start, plan)
    rollout = claim(rollout, "run-1", now) or rollout
    again = Rollout.from_dict(json.loads(json.dumps(rollout.to_dict(), allow_nan=False)))
    assert again == rollout
    assert step(again, Tick(), now) == step(rollout, Tick(), now)


@LAW
@given(starts, schedule)
def test_a_record_replays_to_the_same_verdict(start: Rollout, plan: list[tuple[Event, int]]) -> None:
    rollout, now = play(start, plan)
    decision = judge(rollout, now, {"package": "x"})
    kept = json.loads(decision.to_json())
    again = judge(Rollout.from_dict(kept["details"]["rollout"]), now, {"package": "x"})
    assert again.to_json() == decision.to_json()


@LAW
@given(starts, schedule)
def test_the_verdict_is_pass_exactly_when_promoted(start: Rollout, plan: list[tuple[Event, int]]) -> None:
    rollout, now = play(start, plan)
    assert (judge(rollout, now, {}).verdict is Verdict.PASS) == (rollout.phase is Phase.PROMOTED)


def test_a_healthy_challenger_climbs_every_rung_and_is_promoted() -> None:
    rollout, seen = fresh(), []
    for phase in (Phase.MIRRORING, Phase.ADVANCING, Phase.PROMOTING, Phase.PROMOTED):
        rollout = climb(rollout, phase)
        seen.append((rollout.phase, weights(rollout)))
    assert seen[0] == (Phase.MIRRORING, {"blue": 100})
    assert seen[1] == (Phase.ADVANCING, {"green": 1, "blue": 99})
    assert seen[3] == (Phase.PROMOTED, {"green": 100})
    decision = judge(rollout, NOW, {})
    assert decision.verdict is Verdict.PASS
    names = ["mirror", "kill_switch", "errors", "slow", "business", "sample_ratio", "enough", "coverage", "rollout"]
    assert [item.name for item in decision.evidence] == names
    assert [rung["percent"] for rung in decision.details["rungs"]] == [1, 5, 25, 50, 100]


def test_the_mirror_pool_gets_copies_only_while_mirroring() -> None:
    mirroring = climb(fresh(), Phase.MIRRORING)
    assert (mirror(mirroring), weights(mirroring)) == ("green", {"blue": 100})
    assert mirror(climb(mirroring, Phase.ADVANCING)) is None


def test_without_a_mirror_rung_the_first_rung_carries_traffic() -> None:
    rollout = walk(fresh(ladder=(10, 100)), Loaded())
    assert (rollout.phase, weights(rollout)) == (Phase.ADVANCING, {"green": 10, "blue": 90})


def test_a_first_release_is_promoted_once_loaded_and_confirmed() -> None:
    rollout = fresh(champion=None)
    assert weights(rollout) == {}
    promoting = walk(rollout, Loaded())
    assert (promoting.phase, weights(promoting)) == (Phase.PROMOTING, {"green": 100})
    promoted = walk(promoting, WeightsConfirmed())
    assert promoted.phase is Phase.PROMOTED
    assert judge(promoted, NOW, {}).verdict is Verdict.PASS
    assert warm_until(promoted) is None


def test_a_first_release_that_does_not_load_serves_nothing() -> None:
    failed = walk(fresh(champion=None), LoadFailed("input 'carrier' missing"), WeightsConfirmed())
    assert (failed.phase, weights(failed)) == (Phase.ROLLED_BACK, {})
    assert judge(failed, NOW, {}).verdict is Verdict.FAIL
    assert "input 'carrier' missing" in judge(failed, NOW, {}).why


def test_looks_before_the_weights_are_confirmed_do_not_count() -> None:
    rollout = walk(climb(fresh(), Phase.MIRRORING), WeightsConfirmed(), MirrorSeen(300, 0, compared=50))
    assert not rollout.confirmed
    assert walk(rollout, clean(rollout)) is rollout


def test_a_look_at_another_share_does_not_count() -> None:
    rollout = walk(climb(fresh(), Phase.ADVANCING), WeightsConfirmed())
    assert walk(rollout, Observed(Look(0.5, 500, 0, 0, 500, 0, 0, 1.0))) is rollout


def test_errors_of_the_challenger_roll_back_as_a_failure() -> None:
    rollout = walk(climb(fresh(), Phase.ADVANCING), WeightsConfirmed())
    rollout = walk(rollout, clean(rollout, 1000, errors=10))
    assert rollout.phase is Phase.ROLLING_BACK
    assert rollout.verdict is Verdict.FAIL
    assert "errors: 10 of 10 challenger requests" in rollout.reason
    ended = walk(rollout, WeightsConfirmed())
    assert judge(ended, NOW, {}).verdict is Verdict.FAIL


def test_failing_copies_end_a_rollout_before_any_client_is_touched() -> None:
    rollout = walk(climb(fresh(), Phase.MIRRORING), WeightsConfirmed(), MirrorSeen(30, 2))
    assert rollout.phase is Phase.ROLLING_BACK
    assert {item.name: item.verdict for item in judge(rollout, NOW, {}).evidence}["mirror"] is Verdict.FAIL


def test_copies_that_the_champion_fails_as_well_are_excused() -> None:
    rollout = walk(climb(fresh(), Phase.MIRRORING), WeightsConfirmed())
    assert walk(rollout, MirrorSeen(190, 10, 190, 10, compared=50)).phase is Phase.ADVANCING
    assert walk(rollout, MirrorSeen(190, 10, 200, 0)).phase is Phase.ROLLING_BACK


def test_without_proof_the_last_partial_rung_holds_and_then_gives_up_undecided() -> None:
    """Both arms fail alike at a rate above the allowed one: neither harm nor harmlessness can be shown so soon."""
    rollout = climb(fresh(), Phase.ADVANCING)
    for _ in range(30):
        rollout = walk(rollout, WeightsConfirmed())
        requests = 1000
        mine = round(requests * share(rollout))
        failing = (round(mine * 0.02), round((requests - mine) * 0.02))
        rollout = walk(
            rollout, Observed(Look(share(rollout), mine, failing[0], 0, requests - mine, failing[1], 0, 1.0))
        )
        if rollout.phase is Phase.HOLDING:
            break
    assert rollout.phase is Phase.HOLDING
    assert weights(rollout) == {"green": 50, "blue": 50}
    assert deadline(rollout) == NOW + timedelta(seconds=SETTINGS.hold_deadline_s)
    late = walk(rollout, Tick(), at=NOW + timedelta(seconds=SETTINGS.hold_deadline_s + 1))
    assert (late.phase, late.verdict) == (Phase.ROLLING_BACK, Verdict.INCONCLUSIVE)
    assert "harmlessness is not proven" in late.reason


def test_a_holding_rollout_goes_on_once_proof_comes() -> None:
    rollout = climb(fresh(requests_per_rung=100), Phase.HOLDING)
    assert climb(rollout, Phase.PROMOTED).phase is Phase.PROMOTED


def test_a_challenger_that_breaks_under_all_the_traffic_is_rolled_back() -> None:
    rollout = walk(climb(fresh(), Phase.PROMOTING), WeightsConfirmed())
    rollout = walk(rollout, clean(rollout, 400, errors=40))
    assert (rollout.phase, weights(rollout)) == (Phase.ROLLING_BACK, {"blue": 100})


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.MIRRORING, Phase.ADVANCING, Phase.HOLDING, Phase.PROMOTING])
def test_every_phase_has_a_deadline_after_which_it_is_rolled_back_undecided(phase: Phase) -> None:
    rollout = climb(fresh(requests_per_rung=100), phase)
    limit = deadline(rollout)
    assert limit is not None
    assert walk(rollout, Tick(), at=limit) == rollout
    late = walk(rollout, Tick(), at=limit + SECOND)
    assert (late.phase, late.verdict, weights(late)) == (Phase.ROLLING_BACK, Verdict.INCONCLUSIVE, {"blue": 100})


@pytest.mark.parametrize("phase", [Phase.MIRRORING, Phase.ADVANCING, Phase.PROMOTING])
def test_weights_the_gateway_does_not_take_are_an_error(phase: Phase) -> None:
    failed = walk(climb(fresh(), phase), WeightsFailed("stale version"), WeightsConfirmed())
    assert judge(failed, NOW, {}).verdict is Verdict.ERROR


def test_a_rollback_that_the_gateway_does_not_take_is_tried_on_and_calls_for_help() -> None:
    rolling = walk(climb(fresh(), Phase.ADVANCING), Abort("operator"))
    later = NOW + timedelta(seconds=SETTINGS.rollback_deadline_s + 1)
    assert walk(rolling, WeightsFailed("down"), Tick(), at=later) == rolling
    assert overdue(rolling, later)
    assert not overdue(rolling, NOW)


def test_a_crash_of_the_challenger_is_a_failure() -> None:
    rollout = walk(climb(fresh(), Phase.ADVANCING), Abort("green-0 does not answer", Verdict.FAIL), WeightsConfirmed())
    assert judge(rollout, NOW, {}).verdict is Verdict.FAIL


def test_an_order_to_pass_is_no_pass() -> None:
    assert walk(climb(fresh(), Phase.ADVANCING), Abort("trust me", Verdict.PASS)).verdict is Verdict.INCONCLUSIVE


def test_both_versions_stay_warm_through_the_rollback_window() -> None:
    promoted = climb(fresh(rollback_window_hours=6), Phase.PROMOTED)
    assert warm_until(promoted) == NOW + timedelta(hours=6)
    assert warm_until(climb(fresh(), Phase.ADVANCING)) is None


def test_a_challenger_in_the_champions_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="can't share the pool 'green'"):
        begin("m", 2, "green", "p", "d", SETTINGS, NOW, champion=(1, "green"))


def test_equal_models_are_promoted_and_hardly_ever_rolled_back() -> None:
    """A/A through the whole machine: .1 % errors and 1 % slow on both arms, twice that every few looks."""
    rng = np.random.default_rng(17)
    outcomes = []
    for _ in range(60):
        rollout, now = climb(fresh(), Phase.ADVANCING), NOW
        while not rollout.ended and rollout.phase is not Phase.ROLLING_BACK:
            rollout = step(rollout, WeightsConfirmed(), now)
            mine = int(rng.binomial(500, share(rollout)))
            rates = np.array([0.001, 0.01]) * (2 if len(rollout.guards.looks) % 8 > 5 else 1)
            a, b = rng.binomial(mine, rates).tolist(), rng.binomial(500 - mine, rates).tolist()
            rollout = step(rollout, Observed(Look(share(rollout), mine, a[0], a[1], 500 - mine, b[0], b[1], 1.5)), now)
            now += timedelta(seconds=1.5)
        outcomes.append(rollout)
    failed = [rollout for rollout in outcomes if rollout.verdict is Verdict.FAIL]
    promoted = [rollout for rollout in outcomes if rollout.phase is Phase.PROMOTED]
    assert len(failed) <= 3
    assert len(promoted) >= 50


def test_two_drivers_never_hold_the_lease_together() -> None:
    """Two drivers read and write one pointer by compare-and-swap, at random times, and die at random."""
    rng = np.random.default_rng(4)
    stored, version, now = fresh(), 0, NOW
    read: dict[str, tuple[Rollout, int]] = {}
    holders: list[tuple[str, datetime]] = []
    for _ in range(4000):
        now += timedelta(seconds=float(rng.exponential(8)))
        driver = f"run-{rng.integers(3)}"
        if rng.random() < 0.5 or driver not in read:
            read[driver] = stored, version
            continue
        seen, at = read.pop(driver)
        asked = claim(seen, driver, now)
        if asked is None or at != version:
            continue
        alive = [holder for holder, until in holders[-1:] if until > now and holder != driver]
        assert not alive
        stored, version = asked, version + 1
        assert asked.lease_until is not None
        holders.append((driver, asked.lease_until))
    assert len({driver for driver, _ in holders}) == 3


def test_a_live_lease_is_not_taken_a_dead_one_is() -> None:
    mine = claim(fresh(), "one", NOW)
    assert mine is not None
    assert claim(mine, "two", NOW + LEASE - SECOND) is None
    assert not orphaned(mine, NOW + LEASE - SECOND)
    assert orphaned(mine, NOW + LEASE)
    taken = claim(mine, "two", NOW + LEASE)
    assert taken is not None
    assert taken.driver == "two"
    assert claim(taken, "one", NOW + LEASE + SECOND) is None


def test_renewing_prolongs_and_releasing_frees() -> None:
    mine = claim(fresh(), "one", NOW)
    assert mine is not None
    renewed = claim(mine, "one", NOW + SECOND)
    assert renewed is not None
    assert renewed.lease_until == NOW + SECOND + LEASE
    assert release(renewed, "two") is renewed
    assert claim(release(renewed, "one"), "two", NOW) is not None


def test_an_ended_rollout_is_driven_until_it_is_closed() -> None:
    promoted = climb(fresh(), Phase.PROMOTED)
    assert orphaned(promoted, NOW)
    assert claim(promoted, "one", NOW) is not None
    closed = close(promoted)
    assert not orphaned(closed, NOW)
    assert claim(closed, "one", NOW) is None
    with pytest.raises(ValueError, match="ADVANCING can't be closed"):
        close(climb(fresh(), Phase.ADVANCING))


def test_a_resumed_driver_asks_for_the_same_weights() -> None:
    rollout = climb(fresh(), Phase.ADVANCING)
    resumed = claim(Rollout.from_dict(rollout.to_dict()), "two", NOW)
    assert resumed is not None
    assert (weights(resumed), mirror(resumed)) == (weights(rollout), mirror(rollout))
    assert replace(resumed, driver=None, lease_until=None) == rollout


def test_pictures_are_drawn_of_nothing_and_of_everything() -> None:
    for rollout in (fresh(), climb(fresh(), Phase.PROMOTED)):
        details = json.loads(judge(rollout, NOW, {}).to_json())["details"]
        assert len(sparkline(details)) < 1000
        assert figure(details).startswith(b"\x89PNG")


def test_the_sparkline_of_many_looks_stays_small() -> None:
    rollout = walk(climb(fresh(requests_per_rung=100_000), Phase.ADVANCING), WeightsConfirmed())
    for _ in range(400):
        rollout = walk(rollout, clean(rollout, 200))
    assert rollout.phase is Phase.ADVANCING
    assert len(sparkline(judge(rollout, NOW, {}).details)) < 1000
