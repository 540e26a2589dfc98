"""A kept record, walked again from its looks, comes to the verdict it carries, or shows that it can't have."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from assets.canary.coverage import Coverage, Seen
from assets.canary.events import Abort, Event, Loaded, LoadFailed, MirrorSeen, Observed, Tick, WeightsConfirmed
from assets.canary.guards import LONGEST
from assets.canary.judge import judge
from assets.canary.looks import Look
from assets.canary.outcomes import Known, Span
from assets.canary.replay import replay, replayed, same
from assets.canary.rollout import Phase, Rollout, begin, share
from assets.canary.settings import CanarySettings, CoverageSettings, OutcomeSettings
from assets.canary.step import step
from assets.verdict import Verdict

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PI = np.array([0.4, 0.3, 0.2, 0.1, 0.0])


def driven(seed: int, errors: float = 0.0, *, requests: int = 400, covering: bool = False, looks: int = 400) -> Rollout:
    """A rollout as a driver would see it, to its end, at random."""
    rng = np.random.default_rng(seed)
    limits = CoverageSettings(cells=4, covered=(0.5, 0.9), could_fail=(0.6, 0.3)) if covering else CoverageSettings()
    settings = CanarySettings(ladder=("mirror", 5, 25, 50, 100), coverage=limits)
    cells = ("cells", Coverage((400, 300, 200, 100, 0), (100,) * 24)) if covering else None
    rollout = begin("m", 2, "green", "p", "d", settings, NOW, champion=(1, "blue"), coverage=cells)
    for event in (Loaded(), WeightsConfirmed(), MirrorSeen(200, 0, compared=50)):
        rollout = step(rollout, event, NOW)
    for _ in range(looks):
        if rollout.ended:
            break
        rollout = step(rollout, WeightsConfirmed(), NOW)
        part = share(rollout)
        both = rng.multinomial(requests, PI)
        mine = rng.binomial(both, part)
        counts = tuple(mine.tolist()), tuple(both.tolist())
        seen = Seen(part, *counts, int(rng.binomial(mine.sum(), 0.001)), (1,) * 24) if covering and part < 1 else None
        arms = int(mine.sum()), requests - int(mine.sum())
        bad = int(rng.binomial(arms[0], errors)), int(rng.binomial(arms[1], 0.001))
        happened: Event = Observed(Look(part, arms[0], bad[0], 0, arms[1], bad[1], 0, 1.0), seen)
        rollout = step(rollout, happened, NOW)
    return rollout


def record(rollout: Rollout) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(judge(rollout, NOW, {"package": "d"}).to_json())
    return found


@pytest.mark.parametrize("errors", [0.0, 0.05])
@pytest.mark.parametrize("covering", [False, True])
def test_a_record_replays_to_the_same_verdict_evidence_and_ladder(errors: float, covering: bool) -> None:
    for seed in range(3):
        ended = driven(seed, errors, covering=covering)
        assert ended.ended
        kept = record(ended)
        again = replay(kept).to_dict()
        assert (again["verdict"], again["why"]) == (kept["verdict"], kept["why"])
        assert again["evidence"] == kept["evidence"]
        assert same(kept)
        walked = replayed(ended)
        assert (walked.phase, walked.rung, walked.guards, walked.coverage) == (
            ended.phase,
            ended.rung,
            ended.guards,
            ended.coverage,
        )


def test_a_rollout_of_so_many_looks_that_they_were_merged_replays_as_well() -> None:
    ended = driven(1, requests=12, looks=3000)
    assert len(ended.guards.looks) < LONGEST < sum(look.requests for look in ended.guards.looks) / 12
    assert same(record(ended))


@pytest.mark.parametrize(
    "events",
    [
        (LoadFailed("input 'carrier' is missing"), WeightsConfirmed()),
        (Loaded(), WeightsConfirmed(), MirrorSeen(100, 90), WeightsConfirmed()),
        (Loaded(), WeightsConfirmed(), Abort("the airport complained"), WeightsConfirmed()),
        (Loaded(), Abort("green-0 failed: it crashed", Verdict.FAIL)),
    ],
)
def test_what_no_look_shows_is_taken_from_the_record(events: tuple[Event, ...]) -> None:
    rollout = begin("m", 2, "green", "p", "d", CanarySettings(), NOW, champion=(1, "blue"))
    for event in events:
        rollout = step(rollout, event, NOW)
    kept = record(rollout)
    assert replay(kept).to_dict()["why"] == kept["why"]
    assert same(kept)


def test_a_deadline_and_a_rollout_that_still_runs_replay() -> None:
    running = driven(2, looks=3)
    assert running.phase is Phase.ADVANCING
    assert same(record(running))
    late = step(running, Tick(), NOW + timedelta(hours=1))
    assert late.verdict is Verdict.INCONCLUSIVE
    assert same(record(late))


def test_a_first_release_replays() -> None:
    rollout = begin("m", 1, "green", "p", "d", CanarySettings(), NOW)
    for event in (Loaded(), WeightsConfirmed()):
        rollout = step(rollout, event, NOW)
    assert rollout.phase is Phase.PROMOTED
    assert same(record(rollout))


def test_a_promotion_that_its_looks_do_not_bear_out_is_found() -> None:
    ended = driven(3)
    assert ended.phase is Phase.PROMOTED
    bad = tuple(replace(look, canary_errors=look.canary_requests // 3) for look in ended.guards.looks)
    assert not same(record(replace(ended, guards=replace(ended.guards, looks=bad))))
    few = replace(ended.guards, looks=ended.guards.looks[:4])
    assert not same(record(replace(ended, guards=few)))


def test_a_promotion_over_what_it_had_not_covered_is_found() -> None:
    ended = driven(4, covering=True)
    assert ended.coverage is not None
    narrow = replace(ended.coverage, parts=ended.coverage.parts[:1])
    assert replayed(replace(ended, coverage=narrow)).phase is not Phase.PROMOTED


@pytest.mark.parametrize(("losses", "phase"), [(0.1, Phase.PROMOTED), (0.2, Phase.ROLLED_BACK)])
def test_a_rollout_that_its_outcomes_held_or_ended_replays(losses: float, phase: Phase) -> None:
    rng = np.random.default_rng(6)
    outcome = OutcomeSettings(event="label_1", required=True, non_inferiority_tolerance=0.5)
    settings = CanarySettings(ladder=("mirror", 25, 50, 100), outcome=outcome)
    rollout = begin("m", 2, "green", "p", "d", settings, NOW, champion=(1, "blue"))
    for event in (Loaded(), WeightsConfirmed(), MirrorSeen(200, 0, compared=50)):
        rollout = step(rollout, event, NOW)
    held = 0
    for number in range(120):
        rollout = step(rollout, WeightsConfirmed(), NOW)
        held += rollout.phase is Phase.HOLDING
        part = share(rollout)
        mine = int(rng.binomial(400, part))
        bad = int(rng.binomial(mine, losses)), int(rng.binomial(400 - mine, 0.1))
        # Labels come from the tenth look on.
        known = (Known(part, mine, bad[0], 400 - mine, bad[1]),) if number > 10 and part < 1 else ()
        when = Span(part, NOW + timedelta(seconds=number), NOW + timedelta(seconds=number + 1))
        look = Look(part, mine, 0, 0, 400 - mine, 0, 0, 1.0, outcomes=known)
        rollout = step(rollout, Observed(look, span=when), NOW)
    rollout = step(rollout, WeightsConfirmed(), NOW)
    assert rollout.phase is phase, rollout.reason
    assert held
    kept = record(rollout)
    assert same(kept)
    assert {item["name"]: item["verdict"] for item in kept["evidence"]}["business"] == (
        "PASS" if phase is Phase.PROMOTED else "FAIL"
    )
    assert Rollout.from_dict(kept["details"]["rollout"]) == rollout


def test_a_record_from_before_there_were_outcomes_replays() -> None:
    kept = record(driven(1))
    rollout = kept["details"]["rollout"]
    del rollout["spans"], rollout["settings"]["outcome"]
    rollout["guards"]["looks"] = [look[:10] for look in rollout["guards"]["looks"]]
    kept["evidence"] = [item for item in kept["evidence"] if item["name"] != "business"]
    assert same(kept)
