"""Measured points kept: for the same question as the answer, by device as experience for the next one.

A profile expires by itself: another device, driver or Triton is another question. Trials of a sweep that did not end
are kept for the same question alone, and until one does. Model Analyzer's own checkpoints are not kept, because their
keys know nothing of the model's bytes.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from assets.profile.points import Failed, Point, noise_band, repeated
from assets.profile.settings import ProfileSettings, Setting

DEVICES = "devices/"


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of one model's bytes in one place.

    onnx: its sha256; place: as `Profiler.place` names it; as_of: ISO 8601; difference: of the chosen configuration's
    answers from ONNX Runtime's, None when nothing was chosen.
    """

    model: str
    onnx: str
    place: Mapping[str, str]
    kind: str
    as_of: str
    points: tuple[Point, ...]
    failed: tuple[Failed, ...] = ()
    difference: float | None = None


def digest_of(onnx: bytes) -> str:
    return hashlib.sha256(onnx).hexdigest()


def question_digest(
    onnx: bytes, base_config: Mapping[str, Any], settings: ProfileSettings, place: Mapping[str, str]
) -> str:
    """Of all that an answer depends on: bytes, configuration, search space and objective, device, driver, Triton."""
    question = {
        "onnx": digest_of(onnx),
        "base_config": base_config,
        "settings": settings.model_dump(mode="json"),
        "place": dict(place),
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def profile_key(model: str, question: str) -> str:
    """The store's key of the answer. question: its digest."""
    return f"profiles/{model}/{question}.json"


def trials_key(model: str, question: str) -> str:
    """The store's key of what an unfinished sweep measured. question: its digest."""
    return f"trials/{model}/{question}.json"


def trials_to_json(points: Sequence[Point]) -> bytes:
    return json.dumps([asdict(point) for point in points], indent=1, sort_keys=True).encode()


def trials_from_json(body: bytes, settings: ProfileSettings) -> tuple[Point, ...]:
    """The points of an unfinished sweep; none of what is not such a list, or holds one beside the search space."""
    try:
        points = tuple(Point(**point) for point in json.loads(body))
    except (ValueError, TypeError):
        return ()
    return points if all(point.config in settings.candidates for point in points) else ()


def is_sound(profile: Profile, settings: ProfileSettings) -> bool:
    """Worth keeping: the machine was quiet, and what was chosen answered."""
    quiet = bool(repeated(profile.points)) and noise_band(profile.points) <= settings.quiet_band
    return quiet and profile.difference is not None and math.isfinite(profile.difference)


def device_key(profile: Profile, question: str) -> str:
    """The store's key of the same as experience of its device, in time's order. question: its digest.

    >>> device_key(Profile("m", "abc", {"config_name": "epyc"}, "KIND_CPU", "2013-03-01T00:00:00+00:00", ()), "0" * 64)
    'devices/epyc/20130301T000000-m-0000000000000000.json'
    """
    at = datetime.fromisoformat(profile.as_of).strftime("%Y%m%dT%H%M%S")
    return f"{DEVICES}{profile.place['config_name']}/{at}-{profile.model}-{question[:16]}.json"


def latest_by_device(keys: Iterable[str], most: int = 20) -> dict[str, list[str]]:
    """The latest keys of each device, in time's order, by config name.

    >>> latest_by_device(["devices/a/1", "devices/a/2", "devices/b/3"], most=1)
    {'a': ['devices/a/2'], 'b': ['devices/b/3']}
    """
    found: dict[str, list[str]] = {}
    for key in sorted(keys):
        found.setdefault(key.split("/")[1], []).append(key)
    return {name: group[-most:] for name, group in found.items()}


def to_json(profile: Profile) -> bytes:
    body = asdict(profile) | {
        "place": dict(profile.place),
        "failed": [{**item.config._asdict(), "reason": item.reason} for item in profile.failed],
    }
    return json.dumps(body, indent=1, sort_keys=True).encode()


def from_json(body: bytes) -> Profile:
    """`ValueError` for what is no profile, or one that an older version wrote."""
    try:
        found = json.loads(body)
        failed = tuple(
            Failed(Setting(**{k: v for k, v in item.items() if k != "reason"}), item["reason"])
            for item in found["failed"]
        )
        points = tuple(Point(**point) for point in found["points"])
        return Profile(**(found | {"points": points, "failed": failed}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a profile: {error!r}") from error
