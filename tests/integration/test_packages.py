"""Profile and packages from the command line, on the whole stack: what holds is served, what does not is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from assets.profile.cache import trials_from_json
from assets.profile.package import build_probe, package_files
from assets.profile.serving_config import serving_config, starting_choice
from assets.scoring import score
from pipelines.environments import Ports, environment, ports
from resources import packages, signing
from resources.gateway import Split
from resources.packages import render_config
from resources.pools import Assignment
from resources.releases import published
from tests.conftest import RunningStack
from tests.gateway_stack import call
from tests.made_model import FEATURES, MODEL, SEARCH, fitted, made_up, model, profiled, put_source
from tests.serving_stack import Publisher, question, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass
class Shop:
    """The stack with one registered challenger, and a publisher with its keys who leaves the checks out."""

    stack: RunningStack
    doors: Ports
    onnx: bytes
    publisher: Publisher

    def trimtab(self, *words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pipelines.cli", *words, "--home", str(self.stack.home)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    def build(self, version: int, **changes: Any) -> Path:
        """An unsigned package of another version of the model."""
        head = made_up(16)[list(FEATURES)]
        made = serving_config(MODEL, FEATURES, starting_choice(SEARCH), version=version) | changes
        probe = build_probe(head, FEATURES, score(self.onnx, head, FEATURES))
        files = package_files(
            MODEL,
            version,
            self.onnx,
            render_config(made),
            probe,
            profile={},
            snapshot_digest="0" * 64,
            mlflow_run_id="run",
        )
        folder = self.publisher.folder / f"{version}-{time.monotonic_ns()}"
        packages.write_files(folder, files)
        return folder

    def put(self, version: int, folder: Path) -> Assignment:
        return self.publisher.publish_anyhow(MODEL, version, folder)

    def answers(self) -> tuple[int, Any]:
        """Status and version of an answer through the gateway."""
        url = f"http://{self.stack.addresses.gateway}/v2/models/{MODEL}/infer"
        body = json.dumps(question(made_up(2)[list(FEATURES)])).encode()
        status, _, answer = call(url, body)
        return status, answer.get("model_version")


@pytest.fixture(scope="module")
def shop(stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    before = dict(os.environ)
    os.environ.update(stack.environment)
    try:
        doors = ports(environment())
        frame = made_up()
        put_source(doors.store, frame)
        onnx = fitted(model(stack.home / "made"), frame, seed=1)
        doors.lineage.register(MODEL, onnx, dagster_run_id="test", snapshot_digest="0" * 64, snapshot_uri="s3://none")
        doors.lineage.set_alias(MODEL, "challenger", 1)
        publisher = Publisher(tmp_path_factory.mktemp("publisher"), doors.store)
        publisher.private = doors.signing_key
        yield Shop(stack, doors, onnx, publisher)
        # The stack is the session's.
        doors.gateway.remove(MODEL)
        doors.pools.clear("blue", MODEL)
    finally:
        os.environ.clear()
        os.environ.update(before)


def trials(shop: Shop) -> dict[str, float]:
    """Rates by source of what an unfinished sweep noted."""
    found: dict[str, float] = {}
    for key in shop.doors.store.keys(f"trials/{MODEL}/"):
        for point in trials_from_json(shop.doors.store.get(key), SEARCH):
            found[point.source] = point.throughput_per_s
    return found


def sweeping(home: Path) -> list[psutil.Process]:
    """Processes of a sweep in this home, beside what started it."""
    folder = str(home / "data" / "profiler")
    found = psutil.process_iter(["cmdline"])
    return [item for item in found if any(folder in word for word in item.info["cmdline"] or [])]


def test_a_profile_whose_process_is_killed_goes_on_where_it_was_and_is_told(shop: Shop) -> None:
    home = shop.stack.home
    first = subprocess.Popen([sys.executable, "-m", "tests.made_model", str(home)])
    until(lambda: len(trials(shop)) >= 2, "two trials are noted", timeout_s=120)
    first.send_signal(signal.SIGKILL)
    first.wait()
    until(lambda: not sweeping(home), "nothing of the killed sweep runs", timeout_s=20)
    before = trials(shop)

    assert profiled(home).success
    code, told = shop.trimtab("profile", MODEL, "--version", "1")
    assert code == 0, told
    (record,) = [json.loads(shop.doors.store.get(key)) for key in shop.doors.store.keys(f"decisions/{MODEL}/profile/")]
    points = record["details"]["points"]
    assert {point["source"]: point["throughput_per_s"] for point in points[: len(before)]} == before
    assert len(points) == 5
    assert len({point["source"] for point in points[len(before) :]} - set(before)) >= 1
    assert trials(shop) == {}

    assert told.startswith(f"{MODEL}:1 as of 2013-01-31T00:00:00+00:00: PASS")
    assert told.count("  chosen") >= 1
    for part in ("noise band ", "choice: ", "answers: under the chosen configuration answers differ", "driver none"):
        assert part in told


def test_what_the_profile_published_verifies_and_is_served(shop: Shop) -> None:
    assignment, _ = published(shop.doors.store, MODEL, 1)
    code, told = shop.trimtab("verify", assignment.package)
    assert code == 0, told
    assert told.startswith(f"{MODEL}:1 holds: ")
    shop.doors.pools.assign("blue", MODEL, assignment)
    shop.doors.pools.wait_ready("blue", MODEL, assignment)
    shop.doors.gateway.set_split(MODEL, Split({"blue": 100}))
    assert shop.answers() == (200, "1")


def changed(shop: Shop) -> Path:
    folder = shop.build(2)
    signing.sign(folder, shop.publisher.private)
    file = folder / "2" / "model.onnx"
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    return folder


def without_version(shop: Shop) -> Path:
    folder = shop.build(2)
    (folder / "2" / "model.onnx").unlink()
    (folder / "2").rmdir()
    signing.sign(folder, shop.publisher.private)
    return folder


def mistyped(shop: Shop) -> Path:
    inputs = serving_config(MODEL, FEATURES, starting_choice(SEARCH), version=2)["input"]
    inputs[1] = inputs[1] | {"data_type": "TYPE_FP64"}
    folder = shop.build(2, input=inputs)
    signing.sign(folder, shop.publisher.private)
    return folder


def unsigned(shop: Shop) -> Path:
    return shop.build(2)


@pytest.mark.parametrize(
    ("damage", "named", "by_replica"),
    [
        (changed, "2/model.onnx was changed after signing", "2/model.onnx was changed after signing"),
        (without_version, "2/model.onnx is missing", "2/model.onnx is missing"),
        (mistyped, "config.pbtxt: input[1].data_type = 'TYPE_FP64'", "input 'temp' is TYPE_FP64"),
        (unsigned, "model.sig is missing: the package is unsigned", "model.sig is missing"),
    ],
)
def test_a_bad_package_is_refused_by_name_at_the_terminal_and_by_the_replica_and_the_champion_stays(
    shop: Shop, damage: Callable[[Shop], Path], named: str, by_replica: str
) -> None:
    bad, good = shop.put(2, damage(shop)), published(shop.doors.store, MODEL, 1)[0]
    code, told = shop.trimtab("verify", bad.package)
    assert (code, told.count("\n")) == (1, 1), told
    assert named in told
    shop.doors.pools.assign("blue", MODEL, bad)

    def refused() -> bool:
        (state,) = shop.doors.pools.states("blue", MODEL)
        return state.digest == bad.digest and state.state in ("REFUSED", "FAILED") and by_replica in state.reason

    until(refused, f"the replica says {by_replica}")
    assert shop.answers() == (200, "1")
    shop.doors.pools.assign("blue", MODEL, good)
    shop.doors.pools.wait_ready("blue", MODEL, good)
