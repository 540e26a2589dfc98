"""What `trimtab profile` tells about a recorded decision."""

from datetime import UTC, datetime

import pytest

from assets.profile.choice import Point, answered, choose
from assets.profile.settings import ProfileSettings
from pipelines.commands_profile import last_record, lines
from resources.errors import NotFound
from tests.fakes import MemoryStore

POINTS = [
    Point(1, 0, 4, 1000.0, 2.0, "default"),
    Point(1, 0, 4, 1050.0, 2.5, "config_0"),
    Point(2, 0, 4, 1600.0, 2.25, "config_1"),
]


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for version in (1, 2):
        as_of = datetime(2013, 1 + version, 1, tzinfo=UTC)
        inputs = {"challenger": str(version), "device": "a CPU", "threads": "2", "triton": "2.51"}
        decision = answered(choose("flight", POINTS, ProfileSettings(), as_of, inputs), 1e-7, 1e-5)
        store.put(f"decisions/flight/profile/{as_of:%Y%m%d}/{decision.digest}.json", decision.to_json())
    return store


def test_points_band_choice_and_reason_are_told(store: MemoryStore) -> None:
    told = list(lines(last_record(store, "flight", 1)))
    assert told[0] == "flight:1 as of 2013-02-01T00:00:00+00:00: PASS"
    assert told[1] == "on a CPU, 2 threads, 2.51"
    assert [line.endswith("chosen") for line in told[3:6]] == [False, False, True]
    assert told[6] == "noise band 4.9%, the same configuration measured twice"
    assert told[7].startswith("choice: 2 instances with a delay of 0 µs: 1600/s, 56.1% more than the default")
    assert any("answers: under the chosen configuration" in line for line in told)


def test_a_version_without_a_profile_is_said(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match="flight version 3 was never profiled"):
        last_record(store, "flight", 3)
