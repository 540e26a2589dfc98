from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from assets.canary.evidence import safe
from assets.canary.forecast import Traffic, expected_seconds, plan, sentence
from assets.canary.guards import Guards
from assets.canary.looks import Look
from assets.canary.rollout import Phase, begin
from assets.canary.settings import CanarySettings

SETTINGS = CanarySettings()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = Traffic(requests_per_s=300, errors=0.0, slow=0.0)


def test_two_flawless_pools_need_what_the_looks_themselves_would_ask_for() -> None:
    """The forecast uses the counts one expects; with none bad those are the very counts, so it is exact."""
    made = plan(SETTINGS, QUIET)
    assert made.requests is not None
    hold = made.requests - 5 * SETTINGS.requests_per_rung
    for more, enough in ((hold, True), (hold - 4, False)):
        guards = Guards()
        for share, requests in ((0.01, 1000), (0.05, 1000), (0.25, 1000), (0.5, 1000 + more)):
            mine = round(share * requests)
            guards = guards.update(Look(share, mine, 0, 0, requests - mine, 0, 0, 1.0))
        assert safe(guards, SETTINGS) is enough


def test_traffic_sets_the_time_and_none_leaves_it_open() -> None:
    made, slow = plan(SETTINGS, QUIET), plan(SETTINGS, replace(QUIET, requests_per_s=150))
    assert made.seconds is not None
    assert slow.seconds == pytest.approx(2 * made.seconds)
    assert plan(SETTINGS, replace(QUIET, requests_per_s=0)).seconds is None
    assert "no traffic lately" in sentence(plan(SETTINGS, replace(QUIET, requests_per_s=0)))


def test_more_trouble_of_the_champions_own_takes_longer_to_tell_apart() -> None:
    few, many = (plan(SETTINGS, replace(QUIET, errors=rate)).requests for rate in (0.0, 0.004))
    assert few is not None
    assert many is not None
    assert many > few


def test_what_would_show_is_said_for_both_guards() -> None:
    said = sentence(plan(SETTINGS, Traffic(300, 0.01, 0.05)))
    assert "errors" in said
    assert "slow" in said
    found = plan(SETTINGS, Traffic(300, 0.01, 0.05)).detectable["errors"]
    assert found is not None
    assert 1 < found < 4


def test_while_it_runs_the_time_left_shrinks_with_every_look() -> None:
    rollout = begin("m", 2, "green", "x", "d", SETTINGS, NOW, champion=(1, "blue"))
    assert expected_seconds(rollout) is None
    rollout = replace(rollout, phase=Phase.ADVANCING, rung=3)
    left = []
    for _ in range(4):
        rollout = replace(rollout, guards=rollout.guards.update(Look(0.25, 50, 0, 0, 150, 0, 0, 1.0)))
        left.append(expected_seconds(rollout))
    assert all(np.isfinite(np.array(left, dtype=float)))
    assert left == sorted(left, reverse=True)  # type: ignore[type-var]
    assert expected_seconds(replace(rollout, phase=Phase.ROLLED_BACK)) is None
