"""One package for all known devices."""

from dataclasses import replace

from assets.profile.cache import Profile
from assets.profile.devices import device_configs
from assets.profile.points import Failed, Point
from assets.profile.settings import ProfileSettings, Setting

SETTINGS = ProfileSettings()


def profile(device: str, onnx: str, rates: dict[tuple[int, int], float], triton: str = "2.51") -> Profile:
    points = [Point(*config, 4, rate, 2.0, "x") for config, rate in rates.items()]
    points.append(points[0])
    place = {"device": device, "config_name": device.lower(), "driver": "1", "threads": "2", "triton": triton}
    return Profile("m", onnx, place, "KIND_CPU", "2013-03-01T00:00:00+00:00", tuple(points), (), 0.0)


TWO = {(1, 0): 1000.0, (2, 0): 1600.0}
ONE = {(1, 0): 1000.0, (2, 0): 900.0}


def test_these_bytes_measured_there_are_a_measurement_and_other_bytes_a_guess() -> None:
    past = {"epyc": [profile("EPYC", "other", TWO), profile("EPYC", "mine", ONE)], "xeon": [profile("XEON", "o", TWO)]}
    found = device_configs(past, "mine", "2.51", SETTINGS)
    assert (found["epyc"].source, found["epyc"].choice["instances"]) == ("measured", 1)
    assert (found["xeon"].source, found["xeon"].choice["instances"]) == ("guess", 2)
    assert "throughput_per_s" not in found["xeon"].choice
    assert found["xeon"].to_dict()["device"] == "XEON"


def test_another_triton_or_an_older_driver_has_expired() -> None:
    old = profile("EPYC", "other", TWO)
    newer = replace(profile("EPYC", "third", ONE), place={**old.place, "driver": "2"})
    assert device_configs({"epyc": [old]}, "mine", "2.60", SETTINGS) == {}
    assert device_configs({"epyc": [old, newer]}, "mine", "2.51", SETTINGS)["epyc"].choice["instances"] == 1


def test_what_could_not_be_served_there_is_not_configured_there() -> None:
    died = replace(profile("EPYC", "mine", TWO), failed=(Failed(Setting(2, 0), "died"),))
    assert device_configs({"epyc": [died]}, "mine", "2.51", SETTINGS)["epyc"].choice["instances"] == 1
