"""Pools: the desired state survives races, the actual state is never believed when it is old."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from resources.errors import Conflict, DataError, ModelNotReady, PackageRefused, ServingError
from resources.pools import Assignment, Pools, ReplicaState, desired_key, status_key, write_status
from tests.fakes import MemoryStore

NOW = datetime(2013, 3, 1, tzinfo=UTC)
ONE, TWO = (Assignment(version, f"packages/m/{version}/d{version}.tar", f"d{version}") for version in (1, 2))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def pools(store: MemoryStore) -> Pools:
    return Pools(store, {"blue": ("blue-0", "blue-1"), "green": ("green-0",)}, {}, lambda: NOW)


def report(store: MemoryStore, replica: str, state: str, of: Assignment, reason: str = "", age_s: float = 0) -> None:
    pool, seen = replica.split("-")[0], NOW - timedelta(seconds=age_s)
    told = ReplicaState(replica, of.version, state, reason, of.digest, seen, {"load": 1.5})
    key = status_key(pool, replica)
    pointer = store.pointer(key)
    store.swap(key, write_status(replica, seen, {"m": told}), pointer.etag if pointer else None)


def test_an_untouched_pool_serves_nothing(pools: Pools) -> None:
    assert pools.desired("blue") == {}


def test_models_are_assigned_replaced_and_cleared_one_by_one(pools: Pools) -> None:
    pools.assign("blue", "m", ONE)
    pools.assign("blue", "n", ONE)
    pools.assign("blue", "m", TWO)
    assert pools.desired("blue") == {"m": TWO, "n": ONE}
    assert pools.desired("green") == {}
    pools.clear("blue", "m")
    pools.clear("blue", "m")
    assert pools.desired("blue") == {"n": ONE}


def test_no_assignment_is_lost_when_many_are_made_at_once(pools: Pools) -> None:
    threads = [threading.Thread(target=pools.assign, args=("blue", f"m{at}", ONE)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(pools.desired("blue")) == {f"m{at}" for at in range(8)}


def test_a_writer_that_is_always_second_says_so(
    pools: Pools, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(key: str, body: bytes, etag: str | None) -> str:
        raise Conflict(key)

    monkeypatch.setattr(store, "swap", lost)
    with pytest.raises(Conflict, match="another writer was always first"):
        pools.assign("blue", "m", ONE)


def test_an_unknown_pool_is_named(pools: Pools) -> None:
    with pytest.raises(ServingError, match=r"'red' does not exist: known are \['blue', 'green'\]"):
        pools.assign("red", "m", ONE)


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"models": {"m": {}}}', b'{"models": {"m": []}}'])
def test_a_broken_pointer_is_named(pools: Pools, store: MemoryStore, body: bytes) -> None:
    store.swap(desired_key("blue"), body, None)
    with pytest.raises(DataError, match=r"serving/blue\.json"):
        pools.desired("blue")


def test_states_carry_what_the_agent_said(pools: Pools, store: MemoryStore) -> None:
    report(store, "blue-0", "READY", ONE)
    first, second = pools.states("blue", "m")
    assert (first.replica, first.version, first.state, first.digest, first.seconds) == (
        "blue-0",
        1,
        "READY",
        "d1",
        {"load": 1.5},
    )
    assert (second.state, second.reason) == ("LOST", "its agent never reported")


def test_an_agent_not_heard_of_for_ten_seconds_counts_as_lost(pools: Pools, store: MemoryStore) -> None:
    report(store, "green-0", "READY", ONE, age_s=9)
    assert pools.states("green", "m")[0].state == "READY"
    report(store, "green-0", "READY", ONE, age_s=11)
    lost = pools.states("green", "m")[0]
    assert (lost.state, lost.reason) == ("LOST", "its agent was last heard of 11 s ago")


def test_a_model_the_agent_has_not_taken_up_is_loading(pools: Pools, store: MemoryStore) -> None:
    report(store, "green-0", "READY", ONE)
    assert pools.states("green", "another")[0].state == "LOADING"


def test_a_pool_is_ready_when_every_replica_has_the_same_package(pools: Pools, store: MemoryStore) -> None:
    report(store, "blue-0", "READY", TWO)
    report(store, "blue-1", "READY", ONE)
    with pytest.raises(ModelNotReady, match="blue-1 is READY with version 1"):
        pools.wait_ready("blue", "m", TWO, timeout_s=0)
    report(store, "blue-1", "READY", TWO)
    assert pools.wait_ready("blue", "m", TWO, timeout_s=0) < 1


def test_waiting_ends_when_the_last_replica_reports(pools: Pools, store: MemoryStore) -> None:
    report(store, "green-0", "LOADING", ONE)
    timer = threading.Timer(0.3, report, (store, "green-0", "READY", ONE))
    timer.start()
    assert 0.2 < pools.wait_ready("green", "m", ONE, timeout_s=5) < 4
    timer.join()


@pytest.mark.parametrize(("state", "error"), [("REFUSED", PackageRefused), ("FAILED", ModelNotReady)])
def test_waiting_ends_at_once_with_the_replicas_own_reason(
    pools: Pools, store: MemoryStore, state: str, error: type[ServingError]
) -> None:
    report(store, "green-0", state, TWO, "1/model.onnx was changed")
    with pytest.raises(error, match=r"m:2 in green: green-0 says .*: 1/model\.onnx was changed"):
        pools.wait_ready("green", "m", TWO, timeout_s=60)


def test_a_refusal_of_another_package_does_not_end_the_waiting(pools: Pools, store: MemoryStore) -> None:
    report(store, "green-0", "REFUSED", ONE, "old news")
    with pytest.raises(ModelNotReady, match="after 0 s"):
        pools.wait_ready("green", "m", TWO, timeout_s=0)


def test_a_lost_agents_ready_does_not_count(pools: Pools, store: MemoryStore) -> None:
    report(store, "green-0", "READY", ONE, age_s=60)
    with pytest.raises(ModelNotReady, match="green-0 is LOST"):
        pools.wait_ready("green", "m", ONE, timeout_s=0)


def test_statistics_of_a_replica_without_address_say_so(pools: Pools) -> None:
    with pytest.raises(ServingError, match="blue-0 has no Triton URL"):
        pools.statistics("blue", "m", 1)
