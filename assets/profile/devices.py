"""One package for every known device: what was measured there, or what other models make one expect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assets.profile.cache import Profile
from assets.profile.choice import choice_of_point, pick
from assets.profile.learned import guess
from assets.profile.serving_config import choice_of
from assets.profile.settings import ProfileSettings


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """How to serve on one device. source: measured there with these bytes; guess, from other models; default."""

    device: str
    kind: str
    source: Literal["measured", "guess", "default"]
    choice: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"device": self.device, "kind": self.kind, "source": self.source, "choice": dict(self.choice)}


def all_devices(
    profile: Profile, choice: Mapping[str, Any], past: Mapping[str, Sequence[Profile]], settings: ProfileSettings
) -> dict[str, DeviceConfig]:
    """How to serve on this device as just chosen, on the others as known, on those the spec names by default."""
    gpus = {gpu: DeviceConfig(gpu, "KIND_GPU", "default", choice) for gpu in settings.gpus}
    known = device_configs(past, profile.onnx, profile.place["triton"], settings)
    here = DeviceConfig(profile.place["device"], profile.kind, "measured", choice)
    return gpus | known | {profile.place["config_name"]: here}


def device_configs(
    past: Mapping[str, Sequence[Profile]], onnx: str, triton: str, settings: ProfileSettings
) -> dict[str, DeviceConfig]:
    """By config name. past: profiles of each known device, the latest last; onnx: sha256 of the model at hand.

    Profiles of another Triton have expired, and so have those of another driver than the device's latest.
    """
    found = {}
    for name, profiles in past.items():
        same = [profile for profile in profiles if profile.place.get("triton") == triton]
        same = [profile for profile in same if profile.place == same[-1].place]
        config = _measured(same, onnx, settings) or _guessed(same, settings)
        if config is not None:
            found[name] = config
    return found


def _measured(profiles: Sequence[Profile], onnx: str, settings: ProfileSettings) -> DeviceConfig | None:
    """Chosen anew from the points of these very bytes, by the objective of today."""
    for profile in reversed([profile for profile in profiles if profile.onnx == onnx]):
        broken = {item.config for item in profile.failed}
        point = pick([point for point in profile.points if point.config not in broken], settings)
        if point is not None:
            return DeviceConfig(profile.place["device"], profile.kind, "measured", choice_of_point(point, settings))
    return None


def _guessed(profiles: Sequence[Profile], settings: ProfileSettings) -> DeviceConfig | None:
    config = guess(profiles, settings)
    if config is None:
        return None
    latest = profiles[-1]
    return DeviceConfig(latest.place["device"], latest.kind, "guess", choice_of(config, settings))
