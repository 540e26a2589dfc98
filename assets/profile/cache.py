"""Measured points kept for the same question: same model, search space, settings, device and Triton, nothing else.

A profile expires by itself: another device or another Triton is another question. Model Analyzer's own checkpoints are
not kept, because their keys know nothing of the model's bytes.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from assets.profile.choice import Point
from assets.profile.settings import ProfileSettings


def profile_key(
    model: str, onnx: bytes, base_config: Mapping[str, Any], settings: ProfileSettings, place: Mapping[str, str]
) -> str:
    """The store's key of the answer. place: device, threads and Triton, as `Profiler.place` names them."""
    question = {
        "onnx": hashlib.sha256(onnx).hexdigest(),
        "base_config": base_config,
        "settings": settings.model_dump(mode="json"),
        "place": dict(place),
    }
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    return f"profiles/{model}/{digest}.json"


def to_json(points: Sequence[Point], difference: float | None, place: Mapping[str, str]) -> bytes:
    """difference: the chosen configuration's largest from ONNX Runtime's answers, None when nothing was chosen."""
    body = {"place": dict(place), "points": [asdict(point) for point in points], "difference": difference}
    return json.dumps(body, indent=1).encode()


def from_json(body: bytes) -> tuple[list[Point], float | None]:
    found = json.loads(body)
    return [Point(**point) for point in found["points"]], found["difference"]
