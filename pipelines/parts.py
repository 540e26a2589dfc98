"""The parts that are this project's own: what each is started with, and how it shows that it works."""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from resources.envoy_front import read_front
from resources.errors import StackError
from resources.local import device, envoy, s3, supervisor, triton
from resources.local.keys import Keys
from resources.local.part import Part, inherited
from resources.local.ports import HOST
from resources.local.probes import fetch
from resources.local.supervisor import Journal
from resources.pools import LITE, status_key

BUCKET = "trimtab"
POOLS = ("blue", "green")
FRESH = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where everything listens. ports: part to port name to number; servers: the servers' virtual environment."""

    ports: Mapping[str, Mapping[str, int]]
    servers: Path

    def url(self, part: str, port: str = "http") -> str:
        return f"http://{HOST}:{self.ports[part][port]}"

    @property
    def gateway(self) -> str:
        """host:port that clients send requests to, HTTP and gRPC alike."""
        return f"{HOST}:{self.ports['gateway']['client']}"


def triton_part(home: Path, addresses: Addresses, keys: Keys, pool: str) -> Part:
    """The pool's Triton, its model control behind a key."""
    name, data = f"triton-{pool}", home / "data"
    ports, url, repository = addresses.ports[name], addresses.url(name), data / name
    backends, key = data / f"{name}-backends", keys.triton_control.read_text()
    numbers = ports["http"], ports["grpc"], ports["metrics"]
    name_of_config = device.place()["config_name"]
    plain = triton.command(addresses.servers, backends, repository, *numbers, config_name=name_of_config)
    command, secret = triton.restricted(plain, key)
    return Part(
        name=name,
        command=tuple(command),
        ready=lambda _started: triton.ready(url, control_key=key),
        address=url,
        ports=ports,
        environment=triton.environment(addresses.servers) | secret,
        prepare=partial(triton.prepare, addresses.servers, backends, repository),
        grace_s=9,
    )


def agent_part(home: Path, addresses: Addresses, keys: Keys, pool: str, told: Mapping[str, str]) -> Part:
    """The agent beside it. told: the stack's environment."""
    name, replica, beside = f"agent-{pool}", f"{pool}-0", f"triton-{pool}"
    where = {
        "--pool": pool,
        "--replica": replica,
        "--triton": addresses.url(beside),
        "--repository": str(home / "data" / beside),
        "--control-key": str(keys.triton_control),
        "--s3-endpoint": addresses.url("s3", "api"),
        "--bucket": BUCKET,
        "--gateway-folder": str(home / "data" / "gateway"),
    }

    trusted = [("--public-key", str(key)) for key in keys.trusted]

    def ready(started: datetime) -> None:
        """Its report is younger than the process, and fresh."""
        client = s3.client(addresses.url("s3", "api"), keys)
        body = client.get_object(Bucket=BUCKET, Key=status_key(pool, replica))["Body"].read()
        seen_at = datetime.fromisoformat(json.loads(body)["seen_at"])
        if seen_at < max(started, datetime.now(UTC) - FRESH):
            raise StackError(f"{name}: last report at {seen_at:%H:%M:%S}")

    return Part(
        name=name,
        command=(
            sys.executable,
            "-m",
            "pipelines.agent",
            *(word for pair in (*where.items(), *trusted) for word in pair),
        ),
        ready=ready,
        prime=partial(s3.client, addresses.url("s3", "api"), keys),
        address=f"(beside {beside})",
        after=(s3.NAME, beside),
        environment=inherited() | dict(told),
    )


def gateway_part(home: Path, addresses: Addresses, with_lite: bool) -> Part:
    """Envoy before the pools, and before the tier of cheaper copies where there is one."""
    folder, admin = home / "data" / "gateway", addresses.url("gateway", "admin")
    ports, observer = addresses.ports["gateway"], addresses.ports["observer"]
    tritons = {pool: addresses.ports[f"triton-{pool}"] for pool in (*POOLS, LITE)}
    pools = {pool: (tritons[pool]["http"], tritons[pool]["grpc"]) for pool in POOLS}
    lite = (tritons[LITE]["http"], tritons[LITE]["grpc"]) if with_lite else None

    front = read_front(folder)

    def ready(_started: datetime) -> None:
        """Envoy says so, and the listener answers."""
        import urllib.error

        envoy.ready(admin)
        if front.certificate:  # whom it is made out to is not for the stack to judge
            with socket.create_connection(("127.0.0.1", ports["client"]), timeout=2):
                return
        try:
            fetch(f"http://{addresses.gateway}/v2/health/live")
        except urllib.error.HTTPError as error:
            # Any answer of its own will do: whether pools answer is theirs to say.
            error.close()

    return Part(
        name="gateway",
        command=tuple(envoy.command(addresses.servers, folder)),
        ready=ready,
        address=f"http{'s' * bool(front.certificate)}://{addresses.gateway}",
        ports=ports,
        environment=inherited(),
        prepare=partial(envoy.prepare, folder, ports["client"], ports["admin"], pools, observer["access"], lite),
    )


def observer_part(addresses: Addresses, told: Mapping[str, str]) -> Part:
    """The inference log. told: the stack's environment."""
    ports, url = addresses.ports["observer"], addresses.url("observer")
    where = {
        "--access-port": str(ports["access"]),
        "--http-port": str(ports["http"]),
        "--envoy-admin": addresses.url("gateway", "admin"),
        "--s3-endpoint": addresses.url("s3", "api"),
        "--bucket": BUCKET,
        # Replays give each request the instant it was of.
        "--event-time-header": "x-event-time",
    }

    def ready(_started: datetime) -> None:
        fetch(f"{url}/healthz")

    return Part(
        name="observer",
        command=(sys.executable, "-m", "pipelines.observer", *(word for pair in where.items() for word in pair)),
        ready=ready,
        address=url,
        ports=ports,
        after=(s3.NAME,),
        environment=inherited() | dict(told),
    )


def supervisor_part(home: Path, definitions: str, others: Sequence[str]) -> Part:
    """It restarts the others."""
    journal = Journal(home)

    def ready(started: datetime) -> None:
        """It wrote since it started, and lately."""
        seen_at = journal.read()[0]
        if seen_at is None or seen_at < max(started, datetime.now(UTC) - FRESH):
            raise StackError(f"{supervisor.NAME}: last sign of life {seen_at or 'never'}")

    return Part(
        name=supervisor.NAME,
        command=(sys.executable, "-m", "pipelines.supervisor", "--home", str(home), "--definitions", definitions),
        ready=ready,
        address=f"(restarts: {journal.file.name})",
        after=tuple(others),
        environment=inherited(),
        # A restart that goes on when it is told to end is undone first.
        grace_s=20,
    )
