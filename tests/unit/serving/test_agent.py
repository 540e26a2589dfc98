"""The agent's process: small, reporting whatever happens, clear about wrong arguments."""

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipelines.agent import Agent, main
from pipelines.desired import Desired, Traffic
from pipelines.heartbeat import Heartbeat
from pipelines.replica import Replica
from resources.gateway import SPLITS_FILE, Split, write_splits
from resources.pools import Assignment, ReplicaState, desired_key, status_key, write_desired, write_status
from resources.triton import TritonServer
from tests.fakes import MemoryStore

KEY = status_key("blue", "blue-0")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def heart(store: MemoryStore, tmp_path: Path) -> Heartbeat:
    replica = Replica(TritonServer("http://127.0.0.1:9", timeout_s=1), tmp_path / "repository", ())
    replica.open()
    clock = Clock()
    agent = Agent("blue-0", replica, store, Desired("blue", store, clock), clock)
    stop = threading.Event()
    stop.set()  # so that no beat waits
    return Heartbeat("blue", agent, stop)


def test_the_agent_starts_without_the_heavy_libraries() -> None:
    heavy = ("dagster", "mlflow", "pandas", "numpy", "tritonclient", "boto3", "grpc", "onnx")
    code = f"import pipelines.agent, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_heartbeat_takes_over_what_an_earlier_agent_reported(store: MemoryStore, heart: Heartbeat) -> None:
    store.swap(KEY, write_status("blue-0", datetime(2013, 1, 1, tzinfo=UTC), {}), None)
    heart.agent.states["m"] = ReplicaState("blue-0", 7, "READY", "", "d7", datetime.now(UTC), {"load": 1.5})
    heart.beat()
    heart.beat()
    told = json.loads(store.objects[KEY])
    assert told["models"]["m"] == {
        "version": 7,
        "state": "READY",
        "reason": "",
        "digest": "d7",
        "seconds": {"load": 1.5},
    }


def test_a_heartbeat_survives_a_dead_store(store: MemoryStore, heart: Heartbeat) -> None:
    store.down = True
    heart.beat()
    store.down = False
    heart.beat()
    assert KEY in store.objects


def test_a_triton_that_is_down_turns_ready_into_loading(heart: Heartbeat) -> None:
    heart.agent.states["m"] = ReplicaState("blue-0", 7, "READY", "", "d7", datetime.now(UTC))
    heart.agent.step()
    assert heart.agent.states["m"].state == "LOADING"
    assert "does not answer" in heart.agent.states["m"].reason


def test_an_agent_looks_often_while_something_moves_and_seldom_once_all_is_calm(heart: Heartbeat) -> None:
    agent, clock = heart.agent, heart.agent.clock
    assert isinstance(clock, Clock)
    clock.now = 100.0
    assert agent.pause_s(0.5) == 1.0
    agent.states["m"] = ReplicaState("blue-0", 7, "READY", "", "d7", datetime.now(UTC))
    agent.step()  # its Triton does not answer: that is something
    assert agent.pause_s(0.5) == 0.5
    clock.now += 11
    assert agent.pause_s(0.5) == 1.0
    assert agent.pause_s(3.0) == 3.0


def test_a_dead_store_is_asked_ever_less_often_and_forgotten_nothing(store: MemoryStore) -> None:
    clock = Clock()
    desired = Desired("blue", store, clock)
    wanted = {"m": Assignment(1, "k", "d")}
    store.swap(desired_key("blue"), write_desired(wanted), None)
    assert desired.read() == wanted
    store.down = True
    asked = 0
    for clock.now in range(100):
        before = desired.failures
        assert desired.read() == wanted
        asked += desired.failures - before
    assert 8 <= asked <= 15
    store.down = False
    clock.now += 10
    assert desired.read() == wanted
    assert desired.failures == 0


def test_a_store_that_never_answered_is_not_an_empty_pool(store: MemoryStore) -> None:
    store.down = True
    assert Desired("blue", store, Clock()).read() is None


def test_a_broken_desired_state_changes_nothing(store: MemoryStore) -> None:
    desired = Desired("blue", store, Clock())
    etag = store.swap(desired_key("blue"), write_desired({"m": Assignment(1, "k", "d")}), None)
    before = desired.read()
    store.swap(desired_key("blue"), b"half writt", etag)
    assert desired.read() == before


def test_a_missing_key_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--pool blue --replica blue-0 --triton http://x --repository r --bucket b --public-key no.pem"
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert "no.pem: no such file" in capsys.readouterr().err


def test_a_model_that_still_gets_traffic_is_in_use(tmp_path: Path) -> None:
    write_splits(tmp_path, {"m": Split({"blue": 90, "green": 10}), "n": Split({"blue": 100, "green": 0}, "green")}, 1)
    assert Traffic("blue", tmp_path).use("m") == "90 % of its traffic points here"
    assert Traffic("green", tmp_path).use("n") == "copies"
    assert Traffic("green", tmp_path / "new").use("m") == ""
    assert Traffic("blue", tmp_path).use("other") == ""


def test_splits_that_cannot_be_read_keep_everything_loaded(tmp_path: Path) -> None:
    (tmp_path / SPLITS_FILE).write_text("{half")
    assert "can't be read" in Traffic("blue", tmp_path).use("m")
