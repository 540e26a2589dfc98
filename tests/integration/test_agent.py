"""The agent with a real Triton: what it refuses, what goes on serving, and what comes back by itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from assets.scoring import score
from pipelines.agent import Agent
from pipelines.desired import Desired
from pipelines.replica import Replica
from resources import signing
from resources.errors import ModelNotReady, PackageRefused
from resources.pools import Assignment, Pools, status_key
from tests.fakes import MemoryStore
from tests.serving_stack import (
    FEATURES,
    ROWS,
    LocalTriton,
    Publisher,
    config,
    running_s3,
    running_triton,
    tiny_onnx,
    until,
)

pytestmark = pytest.mark.integration
MODEL = "flight"


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """An agent driven step by step, its store in memory, its Triton real."""

    def __init__(self, local: LocalTriton, folder: Path) -> None:
        self.local = local
        self.store = MemoryStore()
        self.clock = Clock()
        self.publisher = Publisher(folder, self.store)
        self.pools = Pools(self.store, {"blue": ("blue-0",)}, {"blue-0": local.url})
        self.agent = self.new_agent(self.publisher.public)

    def new_agent(self, *keys: Path) -> Agent:
        replica = Replica(self.local.server, self.local.repository, keys)
        replica.open()
        return Agent("blue-0", replica, self.store, Desired("blue", self.store, self.clock), self.clock)

    def serve(self, assignment: Assignment) -> None:
        self.pools.assign("blue", MODEL, assignment)
        self.agent.step()

    @property
    def state(self) -> tuple[str, int]:
        told = self.agent.states[MODEL]
        return told.state, told.version

    @property
    def reason(self) -> str:
        return self.agent.states[MODEL].reason

    def assert_serves(self, version: int, bias: float = 0.0) -> None:
        answered, answers = self.local.answers(MODEL)
        assert answered == version
        np.testing.assert_allclose(answers, score(tiny_onnx(bias), ROWS, FEATURES), atol=1e-6)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    with running_triton(tmp_path_factory.mktemp("triton")) as running:
        yield running


@pytest.fixture
def rig(local: LocalTriton, tmp_path: Path) -> Iterator[Rig]:
    """Version 1 serves already."""
    if local.process is None:
        local.start()
    rig = Rig(local, tmp_path)
    rig.serve(rig.publisher.publish(MODEL, 1))
    assert rig.state == ("READY", 1), rig.reason
    rig.assert_serves(1)
    yield rig
    rig.store.down = False
    rig.pools.clear("blue", MODEL)
    rig.clock.now += 1000
    rig.agent.step()


def test_a_new_version_takes_the_place_of_the_old_one_and_reports_its_phases(rig: Rig) -> None:
    rig.serve(rig.publisher.publish(MODEL, 2, bias=1.0))
    assert rig.state == ("READY", 2)
    rig.assert_serves(2, bias=1.0)
    assert set(rig.agent.states[MODEL].seconds) == {"fetch", "verify", "load", "probe"}
    assert "16 rows probed, largest difference" in rig.reason
    until(lambda: rig.local.server.ready_versions(MODEL) == {2}, "the old version is unloaded")


def tampered(rig: Rig) -> Assignment:
    folder = rig.publisher.build(MODEL, 2, bias=1.0)
    signing.sign(folder, rig.publisher.private)
    body = bytearray((folder / "2" / "model.onnx").read_bytes())
    body[-1] ^= 1
    (folder / "2" / "model.onnx").write_bytes(body)
    return rig.publisher.publish_anyhow(MODEL, 2, folder)


def without_model(rig: Rig) -> Assignment:
    folder = rig.publisher.build(MODEL, 2)
    (folder / "2" / "model.onnx").unlink()
    (folder / "2").rmdir()
    signing.sign(folder, rig.publisher.private)
    return rig.publisher.publish_anyhow(MODEL, 2, folder)


def with_extra_file(rig: Rig) -> Assignment:
    folder = rig.publisher.build(MODEL, 2)
    signing.sign(folder, rig.publisher.private)
    (folder / "configs").mkdir()
    (folder / "configs" / "h100.pbtxt").write_text("")
    return rig.publisher.publish_anyhow(MODEL, 2, folder)


def unsigned(rig: Rig) -> Assignment:
    return rig.publisher.publish_anyhow(MODEL, 2, rig.publisher.build(MODEL, 2))


def signed_by_a_stranger(rig: Rig) -> Assignment:
    folder = rig.publisher.build(MODEL, 2)
    private, _ = signing.create_keys(rig.publisher.folder / "stranger")
    signing.sign(folder, private)
    return rig.publisher.publish_anyhow(MODEL, 2, folder)


def of_another_model(rig: Rig) -> Assignment:
    folder = rig.publisher.build("other", 2)
    signing.sign(folder, rig.publisher.private)
    return rig.publisher.publish_anyhow(MODEL, 2, folder)


def of_another_digest(rig: Rig) -> Assignment:
    good = rig.publisher.publish(MODEL, 2)
    return Assignment(2, good.package, "0" * 64)


def no_package(rig: Rig) -> Assignment:
    return Assignment(2, f"packages/{MODEL}/2/{'1' * 64}.tar", "1" * 64)


def mistyped(rig: Rig) -> Assignment:
    inputs = config(MODEL, 2)["input"]
    inputs[1] = inputs[1] | {"data_type": "TYPE_FP64"}
    return signed_unchecked(rig, input=inputs, model_warmup=[])


def of_a_version_without_folder(rig: Rig) -> Assignment:
    return signed_unchecked(rig, version_policy={"specific": {"versions": [3]}})


def signed_unchecked(rig: Rig, **changes: Any) -> Assignment:
    """As by a publisher that holds the key and leaves the checks out."""
    folder = rig.publisher.build(MODEL, 2, **changes)
    signing.sign(folder, rig.publisher.private)
    return rig.publisher.publish_anyhow(MODEL, 2, folder)


def answering_wrongly(rig: Rig) -> Assignment:
    folder = rig.publisher.build(MODEL, 2, bias=1.0, answers_bias=0.0)
    signing.sign(folder, rig.publisher.private)
    return rig.publisher.publish_anyhow(MODEL, 2, folder)


@pytest.mark.parametrize(
    ("publish", "state", "told"),
    [
        (tampered, "REFUSED", "2/model.onnx was changed after signing"),
        (without_model, "REFUSED", "2/model.onnx is missing"),
        (with_extra_file, "REFUSED", "configs/h100.pbtxt is not signed"),
        (unsigned, "REFUSED", "model.sig is missing: the package is unsigned"),
        (signed_by_a_stranger, "REFUSED", "model.sig was not made with the key of signing.pub.pem"),
        (of_another_model, "REFUSED", "manifest.json is about other:2, not about flight:2"),
        (of_another_digest, "REFUSED", "assigned was 0000"),
        (no_package, "FAILED", "no such object"),
        (mistyped, "FAILED", "input 'temp' is TYPE_FP64"),
        (of_a_version_without_folder, "FAILED", "at least one version must be available under the version policy"),
        (answering_wrongly, "FAILED", "answers differ from ONNX Runtime's by"),
    ],
)
def test_a_bad_package_is_refused_by_name_while_the_champion_goes_on(
    rig: Rig, publish: Any, state: str, told: str
) -> None:
    bad = publish(rig)
    rig.serve(bad)
    assert rig.state == (state, 2), rig.reason
    assert told in rig.reason
    assert "version 1 goes on serving" in rig.reason
    rig.assert_serves(1)
    assert rig.local.server.ready_versions(MODEL) == {1}
    assert {path.name for path in (rig.local.repository / MODEL).iterdir() if path.name.isdigit()} == {"1"}


def test_a_refused_package_is_not_tried_again_at_once_but_later(rig: Rig) -> None:
    bad = unsigned(rig)
    rig.serve(bad)
    rig.agent.step()
    assert rig.store.gets.count(bad.package) == 1
    rig.clock.now += 3
    rig.agent.step()
    assert rig.store.gets.count(bad.package) == 2
    assert "next try in 4 s" in rig.reason


def test_after_a_refusal_the_next_good_version_is_taken_at_once(rig: Rig) -> None:
    rig.serve(unsigned(rig))
    rig.serve(rig.publisher.publish(MODEL, 3, bias=2.0))
    assert rig.state == ("READY", 3)
    rig.assert_serves(3, bias=2.0)


def test_going_back_to_what_serves_already_is_ready_without_loading(rig: Rig) -> None:
    first = rig.pools.desired("blue")[MODEL]
    rig.serve(unsigned(rig))
    rig.serve(first)
    assert rig.state == ("READY", 1)
    assert "load" not in rig.agent.states[MODEL].seconds


def test_both_keys_hold_while_keys_are_rotated(rig: Rig) -> None:
    private, public = signing.create_keys(rig.publisher.folder / "next")
    rig.agent = rig.new_agent(rig.publisher.public, public)
    folder = rig.publisher.build(MODEL, 2)
    signing.sign(folder, private)
    rig.serve(rig.publisher.publish_anyhow(MODEL, 2, folder))
    assert rig.state == ("READY", 2)


def test_a_triton_that_was_killed_gets_its_models_back(rig: Rig) -> None:
    rig.local.stop(signal.SIGKILL)
    rig.agent.step()
    assert rig.state == ("LOADING", 1)
    assert "does not answer" in rig.reason
    rig.local.start()
    rig.agent.step()
    assert rig.state == ("READY", 1)
    rig.assert_serves(1)


def test_models_come_back_even_while_the_store_is_down(rig: Rig) -> None:
    rig.store.down = True
    rig.local.stop(signal.SIGKILL)
    rig.local.start()
    rig.agent = rig.new_agent(rig.publisher.public)
    rig.agent.step()
    assert rig.state == ("READY", 1)
    rig.assert_serves(1)


def test_files_changed_on_the_disk_are_not_loaded_again_but_fetched(rig: Rig) -> None:
    file = rig.local.repository / MODEL / "1" / "model.onnx"
    file.write_bytes(tiny_onnx(bias=3.0))
    rig.local.stop(signal.SIGKILL)
    rig.local.start()
    rig.agent.step()
    assert rig.state == ("REFUSED", 1)
    assert rig.local.server.ready_versions(MODEL) == set()
    rig.clock.now += 3
    rig.agent.step()
    assert rig.state == ("READY", 1)
    rig.assert_serves(1)


def test_what_is_loaded_is_verified_again_and_a_changed_file_is_named_and_fetched_again(rig: Rig) -> None:
    file = rig.local.repository / MODEL / "1" / "model.onnx"
    file.write_bytes(tiny_onnx(bias=3.0))
    rig.agent.step()
    assert rig.store.gets.count(rig.pools.desired("blue")[MODEL].package) == 1
    rig.clock.now += 61
    rig.agent.step()
    assert rig.state == ("READY", 1)
    assert rig.reason.endswith("fetched again: 1/model.onnx was changed after signing")
    assert file.read_bytes() == tiny_onnx()
    rig.assert_serves(1)


def test_a_changed_file_is_refused_by_name_while_the_store_is_down_and_memory_serves(rig: Rig) -> None:
    (rig.local.repository / MODEL / "probe.json").write_text("{}")
    rig.store.down = True
    rig.clock.now += 61
    rig.agent.step()
    assert "probe.json was changed after signing" in rig.agent.changed_files[MODEL]
    rig.assert_serves(1)


def test_a_model_with_weight_on_it_is_not_unloaded(rig: Rig) -> None:
    rig.agent.use = lambda model: "90 % of its traffic points here"
    rig.pools.clear("blue", MODEL)
    rig.agent.step()
    assert rig.state == ("READY", 1)
    assert rig.reason == "not unloaded: 90 % of its traffic points here"
    rig.assert_serves(1)
    rig.agent.use = lambda model: ""
    rig.agent.step()
    until(lambda: rig.local.server.ready_versions(MODEL) == set(), "unloaded")


def test_a_model_whose_process_died_is_loaded_again(rig: Rig) -> None:
    assert rig.local.process is not None
    for child in psutil.Process(rig.local.process.pid).children():
        if f"{MODEL}_0_0" in child.cmdline():
            child.kill()
    with pytest.raises(ModelNotReady, match="not healthy"):
        rig.local.answers(MODEL)
    rig.clock.now += 6
    rig.agent.step()
    assert rig.state == ("READY", 1)
    rig.assert_serves(1)


def test_a_dead_store_changes_nothing_and_is_asked_again(rig: Rig) -> None:
    rig.store.down = True
    rig.agent.step()
    assert rig.state == ("READY", 1)
    rig.assert_serves(1)
    rig.store.down = False
    second = rig.publisher.publish(MODEL, 2, bias=1.0)
    rig.pools.assign("blue", MODEL, second)
    rig.clock.now += 1
    rig.agent.step()
    assert rig.state == ("READY", 2)


def test_a_cleared_model_is_unloaded_and_forgotten(rig: Rig) -> None:
    rig.pools.clear("blue", MODEL)
    rig.agent.step()
    until(lambda: rig.local.server.ready_versions(MODEL) == set(), "unloaded")
    assert MODEL not in rig.agent.states
    assert not (rig.local.repository / MODEL).exists()


def test_an_agent_that_died_between_two_renames_loses_nothing(rig: Rig) -> None:
    folder = rig.local.repository / MODEL
    folder.rename(rig.local.repository / ".staging" / f"{MODEL}.old")
    rig.agent = rig.new_agent(rig.publisher.public)
    rig.agent.step()
    assert rig.state == ("READY", 1)
    assert folder.exists()


def test_the_process_serves_reports_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "")
    with running_s3(tmp_path / "s3") as store, running_triton(tmp_path / "triton") as local:
        publisher = Publisher(tmp_path / "publisher", store)
        pools = Pools(store, {"blue": ("blue-0",)}, {"blue-0": local.url})
        command = [sys.executable, "-m", "pipelines.agent", "--pool", "blue", "--replica", "blue-0"]
        command += ["--triton", local.url, "--repository", str(local.repository), "--bucket", store.bucket]
        (tmp_path / "control").write_text(local.control_key)
        command += ["--control-key", str(tmp_path / "control")]
        command += ["--public-key", str(publisher.public), "--s3-endpoint", str(store.endpoint)]
        with (tmp_path / "agent.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        try:
            first = publisher.publish(MODEL, 1)
            pools.assign("blue", MODEL, first)
            pools.wait_ready("blue", MODEL, first)
            assert local.answers(MODEL)[0] == 1

            seen = set()
            for _ in range(8):
                time.sleep(1)
                seen.add(store.pointer(status_key("blue", "blue-0")))
            assert len(seen) >= 3, "the heartbeat is slower than every three seconds"

            bad = publisher.publish_anyhow(MODEL, 2, publisher.build(MODEL, 2))
            pools.assign("blue", MODEL, bad)
            with pytest.raises(PackageRefused, match=r"blue-0 says REFUSED: model\.sig is missing"):
                pools.wait_ready("blue", MODEL, bad)

            local.stop(signal.SIGKILL)
            local.start()
            until(lambda: local.server.ready_versions(MODEL) == {1}, "version 1 is back")
            assert pools.statistics("blue", MODEL, 1).success > 0

            memory_mb = psutil.Process(process.pid).memory_info().rss / 1e6
            assert memory_mb < 150, f"the agent holds {memory_mb:.0f} MB"
            process.terminate()
            assert process.wait(15) == 0
        finally:
            process.kill()
            process.wait()
            print((tmp_path / "agent.log").read_text())
