"""What `trimtab profile` tells about a recorded decision."""

from datetime import UTC, datetime

import pytest

from assets.profile.choice import answered, choose
from assets.profile.points import Failed, Point
from assets.profile.settings import ProfileSettings, Setting
from pipelines.commands_profile import last_record, lines
from resources.errors import NotFound
from tests.fakes import MemoryStore

POINTS = [
    Point(1, 0, 4, 1000.0, 2.0, "default"),
    Point(1, 0, 4, 1050.0, 2.5, "config_0"),
    *3 * [Point(2, 0, 4, 1600.0, 2.25, "config_1", p95_latency_ms=1.5)],
    Point(1, 0, 4, 1025.0, 2.5, "config_0"),
]
FAILED = [Failed(Setting(2, 500), "it took Triton down, which ended with -9")]


SETTINGS = ProfileSettings(instance_hour_price=0.5)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for version in (1, 2):
        as_of = datetime(2013, 1 + version, 1, tzinfo=UTC)
        inputs = {"challenger": str(version), "device": "a CPU", "threads": "2", "triton": "2.51", "driver": "none"}
        decision = answered(choose("flight", POINTS, SETTINGS, as_of, inputs, FAILED), 1e-7, 1e-5)
        store.put(f"decisions/flight/profile/{as_of:%Y%m%d}/{decision.digest}.json", decision.to_json())
    return store


def test_points_band_choice_and_reason_are_told(store: MemoryStore) -> None:
    told = list(lines(last_record(store, "flight", 1)))
    assert told[0] == "flight:1 as of 2013-02-01T00:00:00+00:00: PASS"
    assert told[1] == "on a CPU, 2 threads, driver none, 2.51"
    assert [line.endswith("chosen") for line in told[3:9]] == [False, False, True, True, True, False]
    assert told[5].split() == ["2", "0", "1", "64", "4", "1,600", "1.50", "2.25", "chosen"]
    assert told[9].split(maxsplit=4)[4] == "infeasible: it took Triton down, which ended with -9"
    assert told[10] == "noise band 4.9%, of the same configuration measured again"
    assert told[11].startswith("choice: 2 instances with a delay of 0 µs: 1600/s, 56.1% more than the default")
    assert told[12] == "cost: 0.1736 a million requests at full load"
    assert any("answers: under the chosen configuration" in line for line in told)


def test_a_version_without_a_profile_is_said(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match="flight version 3 was never profiled"):
        last_record(store, "flight", 3)


def test_a_record_of_an_older_version_is_told_as_well(store: MemoryStore) -> None:
    record = last_record(store, "flight", 1)
    for point in (*record["details"]["points"], record["details"]["choice"]):
        for name in ("p95_latency_ms", "intra_op_threads", "max_batch_size", "cost_per_million"):
            point.pop(name, None)
    for name in ("quiet", "infeasible", "objective"):
        record["details"].pop(name)
    assert any(line.endswith("2.25  chosen") for line in lines(record))
