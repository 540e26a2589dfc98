"""Which parts make the stack on one machine, and what each is told about the others."""

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from resources.envoy_front import read_front
from resources.errors import StackError
from resources.local import dagster, device, envoy, mlflow, postgres, s3, supervisor, triton
from resources.local.keys import Keys, ensure_keys
from resources.local.ledger import Ledger
from resources.local.part import Part, inherited
from resources.local.ports import HOST
from resources.local.probes import fetch
from resources.local.stack import Blueprint
from resources.local.supervisor import Journal
from resources.pools import LITE, status_key

PROJECT = Path(__file__).resolve().parents[1]
SERVERS = PROJECT / "deploy" / "servers" / ".venv"
DEFINITIONS = "pipelines.definitions"
BUCKET = "trimtab"
POOLS = ("blue", "green")
MODELS = PROJECT / "pipelines" / "models"
# In the order in which people read them; the first port of a part is the one `--port PART=N` sets.
PREFERRED: dict[str, Mapping[str, int]] = {
    "postgres": postgres.PORTS,
    "s3": s3.PORTS,
    "mlflow": mlflow.PORTS,
    "triton-blue": {"http": 8000, "grpc": 8001, "metrics": 8002},
    "triton-green": {"http": 8010, "grpc": 8011, "metrics": 8012},
    "triton-lite": {"http": 8020, "grpc": 8021, "metrics": 8022},
    "gateway": {"client": 8080, "admin": 9901},
    "observer": {"http": 8090, "access": 8091},
    **dagster.PORTS,
}
FRESH = timedelta(seconds=15)
# Nobody reads progress bars in a log, and nothing is told to anyone outside.
QUIET = {
    "DO_NOT_TRACK": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A dead MLflow is told within seconds, not after minutes of retries.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


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


def read_addresses(home: Path) -> Addresses:
    """The addresses of the stack in this home, running or not; `StackError` when there was none yet."""
    contents = Ledger(home.resolve()).read()
    if not contents.ports:
        raise StackError(f"{home}: no stack was started here: `trimtab up --home {home}`")
    return Addresses(_nested(contents.ports), Path(contents.servers))


def stack_environment(addresses: Addresses, home: Path) -> dict[str, str]:
    """What a process of trimtab is told about the stack (`pipelines.environments` reads it). Makes missing keys."""
    home, keys = home.resolve(), ensure_keys(home.resolve())
    return _s3_environment(keys) | {
        "TRIMTAB_HOME": str(home),
        "TRIMTAB_S3_ENDPOINT": addresses.url("s3", "api"),
        "TRIMTAB_BUCKET": BUCKET,
        "TRIMTAB_MLFLOW_URI": addresses.url("mlflow"),
        "TRIMTAB_GATEWAY_FOLDER": str(home / "data" / "gateway"),
        "TRIMTAB_GATEWAY_ADMIN": addresses.url("gateway", "admin"),
        "TRIMTAB_GATEWAY": addresses.gateway,
        "TRIMTAB_OBSERVER": addresses.url("observer"),
        "TRIMTAB_SERVERS": str(addresses.servers),
        "TRIMTAB_SIGNING_KEY": str(keys.signing),
        "TRIMTAB_VERIFY_KEY": os.pathsep.join(map(str, keys.trusted)),
        "TRIMTAB_TRITON_BLUE": addresses.url("triton-blue"),
        "TRIMTAB_TRITON_GREEN": addresses.url("triton-green"),
        **({"TRIMTAB_TRITON_LITE": addresses.url("triton-lite")} if wants_lite() else {}),
        "TRIMTAB_DAGSTER": addresses.url(dagster.WEBSERVER),
        "DAGSTER_HOME": str(home / "dagster"),
        **QUIET,
        dagster.PASSWORD: keys.postgres_password,
    }


def blueprint(home: Path, servers: Path = SERVERS, definitions: str = DEFINITIONS) -> Blueprint:
    """The whole stack in `home`. definitions: the code location's module. `StackError` without the servers."""
    home, servers = home.resolve(), servers.absolute()
    if not (servers / "bin" / "python").exists():
        raise StackError(
            f"the servers' environment is missing at {servers}: run `make setup`, or name another with --servers"
        )
    preferred = {f"{part}.{name}": port for part, ports in PREFERRED.items() for name, port in ports.items()}
    return Blueprint(servers, preferred, partial(_build, home, servers, definitions))


def wants_lite() -> bool:
    """Whether any model keeps a fallback copy: only then a third Triton and its agent are worth their memory."""
    import yaml

    folder = Path(inherited().get("TRIMTAB_MODELS", MODELS))
    specs = [yaml.safe_load(file.read_text()) for file in folder.glob("*/model.yaml")]
    return any(((spec or {}).get("fallback") or {}).get("enabled") for spec in specs)


def strays(home: Path) -> list[Callable[[], int | None]]:
    """Finders of processes that don't show the home's mark."""
    return [partial(postgres.postmaster, home.resolve() / "data" / postgres.NAME)]


def explicit_ports(given: Mapping[str, int]) -> dict[str, int]:
    """`PART` or `PART.PORT` to number, as people write it, with the port's name filled in. `StackError`."""
    found = {}
    for name, number in given.items():
        part, _, port = name.partition(".")
        ports = PREFERRED.get(part)
        if ports is None:
            raise StackError(f"--port {name}={number}: no such part: one of {', '.join(PREFERRED)}")
        if port and port not in ports:
            raise StackError(f"--port {name}={number}: {part} has {', '.join(ports)}")
        found[f"{part}.{port or next(iter(ports))}"] = number
    return found


def _build(home: Path, servers: Path, definitions: str, flat: Mapping[str, int]) -> list[Part]:
    addresses, keys = Addresses(_nested(flat), servers), ensure_keys(home)
    ports, database_port = addresses.ports, flat["postgres.sql"]
    told = stack_environment(addresses, home)
    tracking = mlflow.part(
        ports["mlflow"],
        postgres.uri(database_port, keys, mlflow.DATABASE),
        BUCKET,
        _s3_environment(keys),
        addresses.url("s3", "api"),
        # Its slow start need not wait for S3, which holds artifacts only.
        after=(postgres.NAME,),
    )
    pools = (*POOLS, LITE) if wants_lite() else POOLS
    parts = [
        postgres.part(servers, home, ports["postgres"], keys, (dagster.DATABASE, mlflow.DATABASE)),
        s3.part(servers, home, ports["s3"], keys, BUCKET),
        tracking,
        *(_triton(home, addresses, keys, pool) for pool in pools),
        *(_agent(home, addresses, keys, pool, told) for pool in pools),
        _gateway(home, addresses),
        _observer(addresses, told),
        *dagster.parts(home, ports, database_port, inherited() | told, definitions),
    ]
    return [*parts, _supervisor(home, definitions, [part.name for part in parts])]


def _triton(home: Path, addresses: Addresses, keys: Keys, pool: str) -> Part:
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


def _agent(home: Path, addresses: Addresses, keys: Keys, pool: str, told: Mapping[str, str]) -> Part:
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


def _gateway(home: Path, addresses: Addresses) -> Part:
    folder, admin = home / "data" / "gateway", addresses.url("gateway", "admin")
    ports, observer = addresses.ports["gateway"], addresses.ports["observer"]
    tritons = {pool: addresses.ports[f"triton-{pool}"] for pool in (*POOLS, LITE)}
    pools = {pool: (tritons[pool]["http"], tritons[pool]["grpc"]) for pool in POOLS}
    lite = (tritons[LITE]["http"], tritons[LITE]["grpc"]) if wants_lite() else None

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


def _observer(addresses: Addresses, told: Mapping[str, str]) -> Part:
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


def _supervisor(home: Path, definitions: str, others: Sequence[str]) -> Part:
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


def _s3_environment(keys: Keys) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": keys.s3_access,
        "AWS_SECRET_ACCESS_KEY": keys.s3_secret,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _nested(flat: Mapping[str, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for name, port in flat.items():
        part, _, key = name.partition(".")
        nested.setdefault(part, {})[key] = port
    return nested
