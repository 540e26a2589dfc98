"""Measured points hold for what was measured, and for nothing else."""

from typing import Any

import pytest

from assets.profile.cache import from_json, profile_key, to_json
from assets.profile.choice import Point
from assets.profile.settings import ProfileSettings

PLACE = {"device": "a CPU", "threads": "2", "triton": "nvidia_pytriton-0.7.0"}
QUESTION: dict[str, Any] = {
    "model": "m",
    "onnx": b"bytes",
    "base_config": {"max_batch_size": 64},
    "settings": ProfileSettings(),
    "place": PLACE,
}


def test_the_same_question_has_the_same_key() -> None:
    assert profile_key(**QUESTION) == profile_key(**{**QUESTION, "place": dict(reversed(PLACE.items()))})


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"onnx": b"other"},
        {"base_config": {"max_batch_size": 32}},
        {"settings": ProfileSettings(instances=(1, 2, 4))},
        {"settings": ProfileSettings(p99_latency_ms=5)},
        {"place": PLACE | {"device": "another CPU"}},
        {"place": PLACE | {"threads": "4"}},
        {"place": PLACE | {"triton": "nvidia_pytriton-0.8.0"}},
    ],
)
def test_whatever_changes_makes_it_another_question(change: dict[str, Any]) -> None:
    assert profile_key(**QUESTION) != profile_key(**(QUESTION | change))


def test_points_come_back_as_they_were() -> None:
    points = [Point(1, 0, 4, 1000.5, 2.25, "default"), Point(2, 500, 4, 1200.0, 3.0, "config_1")]
    assert from_json(to_json(points, 1e-7, PLACE)) == (points, 1e-7)
