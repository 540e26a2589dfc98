"""Measured points hold for what was measured, and for nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from assets.profile.cache import Profile, device_key, digest_of, from_json, is_sound, question_digest, to_json
from assets.profile.points import Failed, Point
from assets.profile.settings import ProfileSettings, Setting

PLACE = {"device": "a CPU", "config_name": "a-cpu", "driver": "none", "threads": "2", "triton": "nvidia_pytriton-0.7.0"}
QUESTION: dict[str, Any] = {
    "onnx": b"bytes",
    "base_config": {"max_batch_size": 64},
    "settings": ProfileSettings(),
    "place": PLACE,
}
PROFILE = Profile(
    "m",
    digest_of(b"bytes"),
    PLACE,
    "KIND_CPU",
    "2013-03-01T00:00:00+00:00",
    (Point(1, 0, 4, 1000.5, 2.25, "a", p95_latency_ms=1.5), Point(1, 0, 4, 1010.0, 2.25, "b", p95_latency_ms=1.5)),
    (Failed(Setting(2, 500), "it died"),),
    1e-7,
)


def test_the_same_question_has_the_same_digest() -> None:
    assert question_digest(**QUESTION) == question_digest(**{**QUESTION, "place": dict(reversed(PLACE.items()))})


@pytest.mark.parametrize(
    "change",
    [
        {"onnx": b"other"},
        {"base_config": {"max_batch_size": 32}},
        {"settings": ProfileSettings(instances=(1, 2, 4))},
        {"settings": ProfileSettings(intra_op_threads=(1, 2))},
        {"settings": ProfileSettings(p99_latency_ms=5)},
        {"settings": ProfileSettings(objective="cost", instance_hour_price=1)},
        {"place": PLACE | {"device": "another CPU"}},
        {"place": PLACE | {"driver": "550.54"}},
        {"place": PLACE | {"threads": "4"}},
        {"place": PLACE | {"triton": "nvidia_pytriton-0.8.0"}},
    ],
)
def test_whatever_changes_makes_it_another_question(change: dict[str, Any]) -> None:
    assert question_digest(**QUESTION) != question_digest(**(QUESTION | change))


def test_a_profile_comes_back_as_it_was() -> None:
    assert from_json(to_json(PROFILE)) == PROFILE


@pytest.mark.parametrize("body", [b'{"place": {}, "points": [], "difference": 0}', b"[]", b"no JSON"])
def test_what_is_no_profile_is_said(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a profile|Expecting value"):
        from_json(body)


def test_the_same_instant_with_another_question_is_another_experience() -> None:
    assert device_key(PROFILE, "a" * 64) != device_key(PROFILE, "b" * 64)
    later = replace(PROFILE, as_of="2013-03-08T00:00:00+00:00")
    assert device_key(PROFILE, "f" * 64) < device_key(later, "a" * 64)


@pytest.mark.parametrize(
    ("change", "sound"),
    [
        ({}, True),
        ({"difference": None}, False),
        ({"difference": float("inf")}, False),
        ({"points": PROFILE.points[:1]}, False),
        ({"points": (PROFILE.points[0], replace(PROFILE.points[1], throughput_per_s=600.0))}, False),
    ],
)
def test_only_what_was_measured_on_a_quiet_machine_and_answered_is_kept(change: dict[str, Any], sound: bool) -> None:
    assert is_sound(replace(PROFILE, **change), ProfileSettings()) is sound
