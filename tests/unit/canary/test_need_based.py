"""Requests of cells that the challenger has seen too seldom are favoured, and judged at the share they had."""

import numpy as np
import pytest
from pydantic import ValidationError

from assets.canary.curves import covered, requests_needed, shares
from assets.canary.events import WeightsConfirmed
from assets.canary.evidence import evidence
from assets.canary.replay import replayed
from assets.canary.rollout import Phase, Rollout, favoured, in_need, weights
from assets.canary.settings import CanarySettings, CoverageSettings
from assets.canary.step import step
from assets.verdict import Verdict
from tests.need_based import NOW, ZIPF, World, look, pooled, rules, run, start

CLEAN = World(ZIPF, np.zeros(200))


def challenger(rollout: Rollout) -> int:
    assert rollout.coverage is not None
    return sum(rollout.coverage.seen)


def test_it_takes_a_quarter_of_the_requests_that_an_even_share_takes() -> None:
    """Design section 4: C_30 = .95 of 200 Zipf cells."""
    found = [run(rules(50), CLEAN, seed, requests=350) for seed in range(2)]
    needed = np.mean([challenger(rollout) for rollout in found])
    even = requests_needed(ZIPF, 30, 0.95)
    assert even is not None
    assert needed <= 6500 < even / 4
    for rollout in found:
        assert rollout.phase is Phase.PROMOTING
        assert rollout.coverage is not None
        assert covered(shares(rollout.coverage.reference), rollout.coverage.seen, 30) >= 0.95


def test_where_no_request_names_its_cell_the_rung_alone_decides() -> None:
    rollout = run(rules(50), World(ZIPF, np.zeros(200), named=0.0), 1, looks=50)
    mine = sum(look.canary_requests for look in rollout.guards.looks)
    assert mine == pytest.approx(0.01 * 50_000, rel=0.25)


def test_what_was_seen_often_enough_is_favoured_no_longer() -> None:
    rollout = start(rules(50), CLEAN)
    assert len(rollout.needed) == 200
    assert favoured(rollout) == {"green": 50, "blue": 50}
    assert weights(rollout) == {"green": 1, "blue": 99}
    later = run(rules(50), CLEAN, 2, looks=30)
    assert later.coverage is not None
    assert 0 < len(later.needed) < 200
    seen = np.array(later.coverage.seen)
    still = [cell for cell in later.needed if seen[cell] < 30]
    assert ZIPF[still].sum() > 0.94 * ZIPF[list(later.needed)].sum()
    assert set(np.flatnonzero(seen < 30)) <= set(later.needed)


def test_a_rung_that_gives_more_favours_nobody() -> None:
    rollout = run(rules(50, (1, 60, 100), wanted=0.99), CLEAN, 3, looks=400)
    assert rollout.phase is Phase.PROMOTING or not in_need(rollout)
    assert favoured(rollout) == {}


RARE = np.where(np.sort(ZIPF)[100] > ZIPF, 0.2, 0.002)  # what is rare fails often, in both arms


def test_equal_arms_are_not_rolled_back_though_rare_cells_fail_more_and_a_pooled_judge_would() -> None:
    """The favoured half of the cells has a hundred times the errors, and half of them fall on the challenger."""
    world, false, blamed = World(ZIPF, RARE), 0, 0
    for seed in range(40):
        rollout = run(rules(50).model_copy(update={"requests_per_rung": 10**9}), world, seed, requests=500, looks=40)
        false += any(item.verdict is Verdict.FAIL for item in evidence(rollout.guards, rollout.settings, False))
        together = evidence(pooled(rollout).guards, rollout.settings, False)
        blamed += {item.name: item.verdict for item in together}["errors"] is Verdict.FAIL
    assert false <= 3
    assert blamed >= 20


def test_harm_is_found_through_the_favoured_requests() -> None:
    rollout = run(rules(50), World(ZIPF, np.full(200, 0.01), worse=4.0), 5, looks=60)
    assert rollout.verdict is Verdict.FAIL
    assert "errors" in rollout.reason


def test_what_is_favoured_changes_only_with_a_confirmation_by_the_gateway() -> None:
    rng, rollout = np.random.default_rng(8), start(rules(50, wanted=0.7), CLEAN)
    phases = set()
    for _ in range(120):
        rollout = step(rollout, WeightsConfirmed(), NOW)
        after = step(rollout, look(rollout, CLEAN, 500, rng), NOW)
        phases.add(after.phase)
        assert after.needed == rollout.needed or not after.confirmed
        rollout = after
    assert {Phase.ADVANCING, Phase.HOLDING, Phase.PROMOTING} <= phases


def test_a_record_with_favoured_requests_replays() -> None:
    rollout = run(rules(50), CLEAN, 6)
    again = replayed(rollout)
    assert (again.phase, again.coverage) == (Phase.PROMOTING, rollout.coverage)


def test_a_share_that_is_a_rung_and_users_that_would_change_pools_are_refused() -> None:
    with pytest.raises(ValidationError, match="need_percent = 50 is a rung"):
        CanarySettings(coverage=CoverageSettings(cells=200, need_percent=50))
    with pytest.raises(ValidationError, match="choose one of the two"):
        CanarySettings(sticky_header="x-user", coverage=CoverageSettings(cells=200, need_percent=40))
