import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from assets.canary.guards import Guards
from assets.canary.lease import claim
from assets.canary.looks import Look
from assets.canary.rollout import Phase, Rollout, begin
from assets.canary.settings import CanarySettings
from pipelines.rollout_view import picture, plain, standing

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def seen(rollout: Rollout, at: datetime = NOW) -> str:
    out = StringIO()
    Console(file=out, width=220).print(picture(rollout, at))
    return out.getvalue()


@pytest.fixture
def climbing() -> Rollout:
    begun = begin("churn", 2, "green", "x", "d", CanarySettings(), NOW, champion=(1, "blue"))
    guards = Guards().update(Look(0.25, 250, 1, 2, 750, 1, 4, 2.0))
    claimed = claim(replace(begun, phase=Phase.ADVANCING, rung=3, guards=guards), "a run", NOW)
    assert claimed is not None
    return claimed


def test_it_says_where_the_rollout_stands_and_every_guard_against_its_bound(climbing: Rollout) -> None:
    text = seen(climbing)
    assert "churn version 2 (over version 1): ADVANCING" in text
    assert "25 % green, 75 % blue" in text
    for guard in ("errors", "slow", "sample_ratio", "kill_switch", "mirror", "enough", "rollout"):
        assert guard in text
    assert "1 of 250 challenger requests" in text
    assert "loading version 2 into green" in text
    assert "a run" in text


def test_a_log_is_told_in_a_line_where_it_stands_what_would_show_and_how_long_it_takes(climbing: Rollout) -> None:
    line = standing(climbing, NOW)
    assert line.startswith("advancing at 25 % green, 75 % blue: ")
    assert "these would have shown errors" in line
    assert "; promoted in about" in line
    assert "\n" not in line


def test_a_dead_driver_is_told_and_what_comes_next(climbing: Rollout) -> None:
    assert "a sensor resumes it" in seen(climbing, NOW + timedelta(minutes=5))


def test_a_promoted_version_shows_its_way_back_and_one_taken_back_does_not(climbing: Rollout) -> None:
    promoted = replace(climbing, phase=Phase.PROMOTED)
    assert "trimtab rollback churn" in seen(promoted)
    back = replace(promoted, reverted_at=NOW)
    assert "TAKEN BACK" in seen(back)
    assert "100 % blue" in seen(back)
    assert "trimtab rollback churn" not in seen(back)


def test_programs_get_plain_json(climbing: Rollout) -> None:
    found = json.loads(json.dumps(plain(climbing, NOW)))
    assert found["coverage"] is None
    assert found["expected_seconds"] > 0
    assert (found["phase"], found["weights"], found["verdict"]) == (
        "ADVANCING",
        {"green": 25, "blue": 75},
        "INCONCLUSIVE",
    )
