"""From a table to a prediction, as a user goes: new, check, up, source, launch release, one request."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.canary.driver import load
from assets.canary.rollout import Phase
from assets.scoring import score
from pipelines import local
from pipelines.demo.clients import Clients, Pace
from pipelines.environments import enter, ports
from resources.local.processes import marked
from resources.local.stack import down
from tests.customers import customers, spenders

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
# By model: the target, and the table. One answers a chance, one a number of thousands.
TABLES = {"churn": ("churned", customers), "spend": ("spent", spenders)}
# A fortnight later there is a whole hold-out that the first release has not seen.
PARTITION, NEXT = "2024-04-20", "2024-05-04"
TYPES = {"plan": "string", "Monthly_fee": "float", "monthly_fee_2": "int", "calls": "float", "paperless": "int"}
ROW = {"plan": "basic", "Monthly_fee": 45.0, "monthly_fee_2": 3, "calls": 2.0, "paperless": 1}
DATATYPES = {"string": "BYTES", "float": "FP32", "int": "INT64"}


def trimtab(*words: object) -> str:
    command = [sys.executable, "-m", "pipelines.cli", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, (
        f"trimtab {' '.join(map(str, words[:2]))}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    )
    return ended.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Model folders and a running stack that was started with them; stopped after the tests."""
    folder = tmp_path_factory.mktemp("new")
    for name, (target, made) in TABLES.items():
        made().to_csv(folder / f"{name}.csv", index=False)
        words = ("--from", folder / f"{name}.csv", "--target", target, "--time", "signed up")
        print(trimtab("new", name, *words, "--models", folder / "models"))
    print(trimtab("check", "--models", folder / "models"))
    began = time.monotonic()
    try:
        trimtab("up", "--home", folder / "home", "--models", folder / "models")
        print(f"up after {time.monotonic() - began:.0f} s")
        yield folder
    finally:
        down(folder / "home", local.strays(folder / "home"))
    assert marked(folder / "home") == []


def asked(gateway: str, model: str) -> dict[str, Any]:
    """One request as any client would send it."""
    inputs = [
        {"name": name, "datatype": DATATYPES[TYPES[name]], "shape": [1, 1], "data": [value]}
        for name, value in ROW.items()
    ]
    body = json.dumps({"id": "first", "inputs": inputs}).encode()
    url = f"http://{gateway}/v2/models/{model}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def answer_of(found: Mapping[str, Any]) -> float:
    """The last value of the one output, as the log keeps it."""
    (output,) = found["outputs"]
    return float(output["data"][-1])


@contextmanager
def sending(gateway: str, model: str) -> Iterator[Clients]:
    """Customers ask until the block ends, each of another fee."""
    fees, over = np.random.default_rng(5).normal(30, 8, 200), threading.Event()

    def ask() -> None:
        number = 0
        while not over.is_set():
            keys = [f"live-{number + i}" for i in range(len(fees))]
            rows = pd.DataFrame({name: [value] * len(fees) for name, value in ROW.items()})
            clients.send(rows.assign(Monthly_fee=fees, entity=keys, event_time=pd.Timestamp.now("UTC")))
            number += len(fees)

    with Clients(gateway, model, TYPES, Pace(150)) as clients:
        asking = threading.Thread(target=ask)
        asking.start()
        try:
            yield clients
        finally:
            over.set()
            asking.join()


@pytest.fixture(scope="module")
def release(place: Path) -> Callable[[str], None]:
    """Makes a model's first release from its table, once: whichever test asks first waits for it."""

    @cache
    def released(name: str) -> None:
        home, began = place / "home", time.monotonic()
        trimtab("source", name, "--from", place / f"{name}.csv", "--home", home)
        words = ("--partition", PARTITION, "--home", home, "--models", place / "models")
        assert trimtab("launch", "release", name, *words).endswith("success\n")
        print(f"{name}: source and release in {time.monotonic() - began:.0f} s")

    return released


@pytest.mark.parametrize("name", TABLES)
def test_a_table_becomes_a_model_that_answers_as_it_was_fitted(
    place: Path, release: Callable[[str], None], name: str
) -> None:
    release(name)
    home = place / "home"
    addresses = local.read_addresses(home)
    found = asked(addresses.gateway, name)
    assert found["model_version"] == "1"
    doors = ports(enter(local.stack_environment(addresses, home)))
    (expected,) = score(doors.lineage.onnx(name, 1), pd.DataFrame([ROW]), TYPES)
    assert answer_of(found) == pytest.approx(expected, rel=1e-5)
    doors.traffic.flush()
    now = datetime.now(UTC)
    logged = doors.traffic.answers(name, now - timedelta(hours=1), now + timedelta(hours=1))
    assert logged["answer"].tolist() == pytest.approx([expected], rel=1e-5)
    today = ("--partition", f"{now:%Y-%m-%d}", "--home", home, "--models", place / "models")
    assert trimtab("launch", "watch", name, *today).endswith("success\n")
    (key,) = doors.store.keys(f"decisions/{name}/drift/")
    checked = json.loads(doors.store.get(key))
    assert (checked["verdict"], checked["details"]["rows"]) == ("INCONCLUSIVE", 1)
    print(f"{name}: drift: {checked['why']}")


def test_a_challenger_that_answers_numbers_is_promoted_while_clients_ask(
    place: Path, release: Callable[[str], None]
) -> None:
    release("spend")
    home = place / "home"
    addresses = local.read_addresses(home)
    words = ("--partition", NEXT, "--home", home, "--models", place / "models")
    with sending(addresses.gateway, "spend") as clients:
        assert trimtab("launch", "release", "spend", *words).endswith("success\n")
    assert clients.count.failed == 0, clients.count.failures
    doors = ports(enter(local.stack_environment(addresses, home)))
    found = load(doors.store, "spend")
    assert found is not None
    ended = found[0]
    assert (ended.version, ended.phase) == (2, Phase.PROMOTED), ended.reason
    answered = asked(addresses.gateway, "spend")
    assert answered["model_version"] == "2"
    (expected,) = score(doors.lineage.onnx("spend", 2), pd.DataFrame([ROW]), TYPES)
    assert answer_of(answered) == pytest.approx(expected, rel=1e-5)
    print(f"spend 2: {clients.count.served} answers: {ended.reason}")
