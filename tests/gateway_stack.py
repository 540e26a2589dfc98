"""Real processes for the tests of gateway and observer: Envoy, the observer, SeaweedFS, tiny v2 servers."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from resources.gateway import Gateway
from resources.local import envoy, s3
from resources.local.keys import Keys
from resources.store import S3Store

ROOT = Path(__file__).resolve().parent.parent
SERVERS = ROOT / "deploy/servers/.venv"
# One pair for every store of the tests: boto3 remembers the first that it met in a process.
STORE_KEYS = Keys("trimtab-test", "trimtab-test-secret", "", Path(), Path())


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(check: Callable[[], object], timeout_s: float = 20, what: str = "") -> None:
    """Until check() is true and raises nothing."""
    deadline, last = time.monotonic() + timeout_s, ""
    while time.monotonic() < deadline:
        try:
            if check():
                return
        except Exception as error:
            last = repr(error)
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what} {last}")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start(command: list[str], log: Path, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env={**os.environ, **(env or {})})


def start_pool(folder: Path, ports: tuple[int, int], version: str, *flags: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.v2_server", "--http-port", str(ports[0]), "--grpc-port", str(ports[1])]
    process = start([*command, "--version", version, *flags], folder / f"pool-{ports[0]}.log")
    wait_until(lambda: is_open(ports[0]) and is_open(ports[1]), what=f"pool on {ports}")
    return process


def call(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
    """(status, headers in lower case, JSON) of one HTTP request, whatever the status."""
    request = Request(url, data=body, headers=headers or {})
    try:
        with urlopen(request, timeout=10) as answer:
            status, found, content = answer.status, answer.headers, answer.read()
    except HTTPError as error:
        status, found, content = error.code, error.headers, error.read()
    return status, {k.lower(): v for k, v in found.items()}, json.loads(content) if content else None


@dataclass
class Edge:
    """An Envoy in front of two pools; ports are fixed so that parts can be stopped and started again."""

    folder: Path
    client: int
    admin: int
    access: int
    pools: dict[str, tuple[int, int]]
    gateway: Gateway
    process: "subprocess.Popen[bytes] | None" = None
    lite: tuple[int, int] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.client}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin}"

    def start(self) -> None:
        envoy.prepare(self.folder, self.client, self.admin, self.pools, self.access, self.lite)
        self.process = start(envoy.command(SERVERS, self.folder), self.folder / "envoy.log")
        wait_until(self.is_ready, what="envoy")

    def is_ready(self) -> bool:
        envoy.ready(self.admin_url)
        return True

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)

    def count(self, pool: str) -> int:
        """Infer requests that reached the pool, mirrored ones included."""
        return int(call(f"http://127.0.0.1:{self.pools[pool][0]}/count")[2])


@contextmanager
def running_edge(
    folder: Path, pools: dict[str, tuple[int, int]] | None = None, lite: tuple[int, int] | None = None
) -> Iterator[Edge]:
    """An Envoy alone: without pools it gets free ports for them, and the caller starts what answers there."""
    client, admin, access, *rest = free_ports(7)
    pools = pools or {"blue": (rest[0], rest[1]), "green": (rest[2], rest[3])}
    folder.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(folder, f"http://127.0.0.1:{admin}")
    edge = Edge(folder, client, admin, access, pools, gateway, lite=lite)
    edge.start()
    try:
        yield edge
    finally:
        edge.stop()


@dataclass
class RunningObserver:
    url: str
    process: "subprocess.Popen[bytes]"


@contextmanager
def running_observer(folder: Path, edge: Edge, store: S3Store, *flags: str) -> Iterator[RunningObserver]:
    """The observer as people start it, behind the edge's Envoy."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "pipelines.observer", "--access-port", str(edge.access)]
    command += ["--http-port", str(port), "--envoy-admin", edge.admin_url]
    command += ["--s3-endpoint", str(store.endpoint), "--bucket", store.bucket, *flags]
    process = start(command, folder / "observer.log")
    try:
        wait_until(lambda: call(f"{url}/healthz")[0] == 200, what=(folder / "observer.log").read_text())
        yield RunningObserver(url, process)
    finally:
        stop(process)


def has_bucket(store: S3Store) -> bool:
    store.ensure_bucket()
    return True


@contextmanager
def running_store(folder: Path) -> Iterator[S3Store]:
    """SeaweedFS as the local stack starts it; this process and its children get its credentials."""
    folder.mkdir(parents=True, exist_ok=True)
    keys, ports = STORE_KEYS, dict(zip(s3.PORTS, free_ports(len(s3.PORTS)), strict=True))
    part = s3.part(SERVERS, folder, ports, keys, "trimtab")
    (folder / "keys").mkdir(exist_ok=True)
    part.prepare()
    os.environ.update(AWS_ACCESS_KEY_ID=keys.s3_access, AWS_SECRET_ACCESS_KEY=keys.s3_secret)
    process = start(list(part.command), folder / "s3.log")
    store = S3Store("trimtab", part.address)
    try:
        wait_until(lambda: has_bucket(store), 40, str(folder / "s3.log"))
        yield store
    finally:
        process.kill()  # told to end it waits for its own streams; every write is with the kernel already
        process.wait()
