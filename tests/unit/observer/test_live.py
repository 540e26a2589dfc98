import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from assets.champion import reference_key
from assets.drift.reference import build_reference
from assets.drift.settings import DriftSettings
from pipelines.observer.live import LIMIT_ROWS, Live, window_key
from pipelines.observer.metrics import Metrics
from pipelines.observer.rows import Answer
from tests.fakes import MemoryStore

START = datetime(2030, 1, 1, tzinfo=UTC)
FEATURES = {"temp": "float", "carrier": "string"}


def answers(days: float, first_day: float = 0.0, shift: float = 0.0, version: str = "1", seed: int = 0) -> list[Answer]:
    """200 rows a day, two a request."""
    rng = np.random.default_rng([seed, int(first_day * 10)])
    count = int(days * 100)
    at_us = [int((START + timedelta(days=first_day + i / 100)).timestamp() * 1e6) for i in range(count)]
    return [
        Answer("m", f"r{us}", us, us, version, (f"k{us}", f"l{us}"), np.full(2, 0.5),
               {"temp": rng.normal(shift, 1, 2).astype(np.float32), "carrier": ["AA", "UA"]})
        for us in at_us
    ]  # fmt: skip


@pytest.fixture(scope="session")
def reference() -> bytes:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"temp": rng.normal(size=6000).astype(np.float32), "carrier": ["AA", "UA"] * 3000})
    frame["event_time"] = [START - timedelta(days=30) + timedelta(days=i / 200) for i in range(6000)]
    return build_reference(frame, FEATURES, {"temp": 1.0}, DriftSettings(), 0.2).to_bytes()


@pytest.fixture
def store(reference: bytes) -> MemoryStore:
    found = MemoryStore()
    found.put(reference_key("m", 1), reference)
    return found


def fed(live: Live, traffic: list[Answer], now: float = 100.0) -> float:
    for at in range(0, len(traffic), 4):
        live.add(traffic[at : at + 4])
        now += 1
        live.look(now)
    return now


def asked(store: MemoryStore) -> list[str]:
    return store.keys("live/m/alarms/")


def test_a_shift_in_the_traffic_asks_for_one_check(store: MemoryStore) -> None:
    live = Live(store)
    now = fed(live, answers(3))
    assert asked(store) == []
    fed(live, answers(3, 3, shift=1.5), now)
    (key,) = asked(store)
    body = json.loads(store.get(key))
    assert body["aggregate"] > body["level"]
    assert body["version"] == "1"
    assert START + timedelta(days=3) < datetime.fromtimestamp(body["at_us"] / 1e6, UTC) < START + timedelta(days=4)
    (status,) = live.status()
    assert status["alarm"]


def test_a_new_version_is_held_against_its_own_reference(store: MemoryStore, reference: bytes) -> None:
    live = Live(store)
    now = fed(live, answers(2))
    now = fed(live, answers(1, 2, version="2"), now)
    assert {item["version"] for item in live.status()} == {"1"}
    store.put(reference_key("m", 2), reference)
    fed(live, answers(1, 3, version="2"), now + 60)
    assert {item["version"] for item in live.status()} == {"1", "2"}


def test_versions_that_no_longer_serve_are_forgotten(store: MemoryStore, reference: bytes) -> None:
    live, now = Live(store), 100.0
    for version in range(1, 7):
        if version > 1:
            store.put(reference_key("m", version), reference)
        now = fed(live, answers(0.2, version, version=str(version)), now)
    assert {version for _, version in live.watched} == {"4", "5", "6"}


def test_a_restarted_observer_goes_on_with_the_window(store: MemoryStore) -> None:
    first = Live(store)
    now = fed(first, answers(2))
    first.save()
    assert store.keys("live/") == [window_key("m", "1")]
    second = Live(store)
    fed(second, answers(0.1, 2), now)
    fed(first, answers(0.1, 2), now)
    assert second.status() == first.status()
    second.save()
    first.save()  # another writer was first: nothing breaks
    assert first.watched["m", "1"].etag == second.watched["m", "1"].etag


def test_an_alarm_that_the_store_refused_is_asked_again(store: MemoryStore) -> None:
    live = Live(store)
    now = fed(live, answers(3))
    store.down = True
    now = fed(live, answers(1, 3, shift=2.0), now)
    assert "down" in live.last_error
    store.down = False
    fed(live, answers(0.1, 4, shift=2.0), now)
    assert len(asked(store)) == 1


def test_requests_that_lack_a_feature_are_said_and_nothing_breaks(store: MemoryStore) -> None:
    live = Live(store)
    (one,) = answers(0.01)
    live.add([Answer(one.model, "r", one.event_us, 0, "1", ("k",), one.answers, {"temp": np.ones(1)})])
    live.look(100.0)
    assert "lack carrier" in live.last_error


def test_rows_beyond_the_limit_are_counted() -> None:
    live, (one,) = Live(MemoryStore()), answers(0.01)
    live.add([one] * (LIMIT_ROWS // 2 + 3))
    assert live.dropped == 6


def test_prometheus_shows_every_feature_and_forgets_what_is_gone(store: MemoryStore) -> None:
    live, metrics = Live(store), Metrics()
    fed(live, answers(2))
    metrics.drift(live.status())
    text = metrics.text().decode()
    for name in ("distance", "aggregate", "level", "alarm"):
        assert f"trimtab_drift_{name}{{" in text
    assert 'feature="temp"' in text
    metrics.drift([])
    assert 'feature="temp"' not in metrics.text().decode()
