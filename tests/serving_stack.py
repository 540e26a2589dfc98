"""Real parts for the tests of serving: a Triton on free ports, tiny models, signed packages, an S3."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assets.profile.package import build_probe, package_files, warmup_samples
from assets.profile.serving_config import serving_config, starting_choice
from assets.profile.settings import ProfileSettings
from assets.scoring import score
from resources import packages, signing
from resources.errors import ServingError
from resources.local import triton
from resources.pools import Assignment
from resources.store import S3Store, Store
from resources.triton import TritonServer

SERVERS = Path(__file__).resolve().parents[1] / "deploy/servers/.venv"
FEATURES = {"carrier": "string", "temp": "float", "hour": "int"}
ROWS = pd.DataFrame(
    {"carrier": ["UA", "B6", "ÅÄ", "?"] * 4, "temp": np.linspace(-1, 2, 16, dtype=np.float32), "hour": range(16)}
)
SETTINGS = ProfileSettings()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [int(item.getsockname()[1]) for item in sockets]
    for item in sockets:
        item.close()
    return ports


def until(check: Callable[[], object], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def tiny_onnx(bias: float = 0.0) -> bytes:
    """sigmoid(temp + effect of the carrier + hour / 100 + bias): one string, one float and one int column."""
    from onnx import TensorProto, helper

    kinds = {"carrier": TensorProto.STRING, "temp": TensorProto.FLOAT, "hour": TensorProto.INT64}
    nodes = [
        helper.make_node(
            "LabelEncoder",
            ["carrier"],
            ["effect"],
            domain="ai.onnx.ml",
            keys_strings=["UA", "B6", "ÅÄ"],
            values_floats=[0.5, -0.5, 2.0],
            default_float=-3.0,
        ),
        helper.make_node("Cast", ["hour"], ["hours"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["hours", "hundredth"], ["late"]),
        helper.make_node("Sum", ["temp", "effect", "late", "bias"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["yes"]),
        helper.make_node("Sub", ["one", "yes"], ["no"]),
        helper.make_node("Concat", ["no", "yes"], ["probabilities"], axis=1),
    ]
    constants = {"hundredth": 0.01, "bias": bias, "one": 1.0}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, kinds[name], [None, 1]) for name in FEATURES],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])],
        [helper.make_tensor(name, TensorProto.FLOAT, [1], [value]) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 3)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def question(rows: pd.DataFrame = ROWS) -> dict[str, Any]:
    """The rows as an inference request."""
    probe = build_probe(rows, FEATURES, np.zeros(len(rows)))
    return {"inputs": [{"name": name, **tensor} for name, tensor in probe["inputs"].items()]}


def config(model: str, version: int, **changes: Any) -> dict[str, Any]:
    return serving_config(model, FEATURES, starting_choice(SETTINGS), version=version) | changes


@dataclass
class Publisher:
    """Builds, signs and publishes tiny packages."""

    folder: Path
    store: Store
    private: Path = field(init=False)
    public: Path = field(init=False)

    def __post_init__(self) -> None:
        self.private, self.public = signing.create_keys(self.folder / "keys")

    def build(
        self, model: str, version: int, bias: float = 0.0, answers_bias: float | None = None, **changes: Any
    ) -> Path:
        """An unsigned package; answers_bias makes its probe expect another model's answers."""
        onnx = tiny_onnx(bias)
        expected = score(tiny_onnx(bias if answers_bias is None else answers_bias), ROWS, FEATURES)
        folder = self.folder / f"{model}-{version}-{time.monotonic_ns()}"
        probe = build_probe(ROWS, FEATURES, expected)
        changes = {"model_warmup": warmup_samples(probe)} | changes
        files = package_files(
            model,
            version,
            onnx,
            packages.render_config(config(model, version, **changes)),
            probe,
            snapshot_digest="0" * 64,
            mlflow_run_id="run",
            profile={"instances": 1},
        )
        packages.write_files(folder, files)
        return folder

    def publish(self, model: str, version: int, bias: float = 0.0, **changes: Any) -> Assignment:
        folder = self.build(model, version, bias, **changes)
        signing.sign(folder, self.private)
        return packages.publish(self.store, model, version, folder)

    def publish_anyhow(self, model: str, version: int, folder: Path) -> Assignment:
        """As whoever can write to the store would, past every check."""
        import hashlib

        body = packages.pack(folder)
        digest = hashlib.sha256(body).hexdigest()
        key = f"packages/{model}/{version}/{digest}.tar"
        self.store.put(key, body)
        return Assignment(version, key, digest)


@dataclass
class LocalTriton:
    """One real Triton that tests may kill and start again, its model control restricted as in the stack."""

    folder: Path
    control_key: str = "the-key-of-the-tests"
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def server(self) -> TritonServer:
        return TritonServer(self.url, control_key=self.control_key)

    def start(self) -> None:
        triton.prepare(SERVERS, self.folder / "backends", self.repository)
        plain = triton.command(SERVERS, self.folder / "backends", self.repository, *self.ports)
        command, secret = triton.restricted(plain, self.control_key)
        environment = triton.environment(SERVERS) | secret
        with (self.folder / "triton.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        until(self.is_up, f"Triton is up: {self.folder / 'triton.log'}")

    def is_up(self) -> bool:
        try:
            self.server.index()
        except ServingError:
            return False
        return True

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None

    def answers(self, model: str) -> tuple[int, list[float]]:
        """Version and probabilities of class 1 for the rows."""
        answer = self.server.infer(model, question())
        return int(answer["model_version"]), answer["outputs"][0]["data"][1::2]


@contextmanager
def running_triton(folder: Path) -> Iterator[LocalTriton]:
    local = LocalTriton(folder)
    local.start()
    try:
        yield local
    finally:
        local.stop()


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Store]:
    """SeaweedFS with one identity; the caller's environment carries its keys."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"accessKey": "trimtab-test", "secretKey": "trimtab-test-secret"}
    identity = {"name": "test", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "ids.json").write_text(json.dumps({"identities": [identity]}))
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    command = [str(SERVERS / "bin" / "weed"), "server", f"-dir={folder}", "-s3", f"-s3.config={folder / 'ids.json'}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64"]
    for at, name in enumerate(names):
        command += [f"-{name}.port={ports[2 * at]}", f"-{name}.port.grpc={ports[2 * at + 1]}"]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = keys["accessKey"], keys["secretKey"]
        store = S3Store("trimtab", f"http://127.0.0.1:{ports[6]}")
        until(lambda: _answers(store), f"SeaweedFS is up: {folder / 'weed.log'}")
        yield store
    finally:
        process.kill()  # told to end, it waits for ten seconds and more
        process.wait()


def _answers(store: S3Store) -> bool:
    from resources.errors import StoreError

    try:
        store.ensure_bucket()
    except StoreError:
        return False
    return True
