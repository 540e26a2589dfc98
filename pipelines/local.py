"""Which parts make the stack on one machine, and what each is told about the others."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pipelines.parts import (
    BUCKET,
    POOLS,
    Addresses,
    agent_part,
    gateway_part,
    observer_part,
    supervisor_part,
    triton_part,
)
from resources.errors import StackError
from resources.local import dagster, mlflow, postgres, s3
from resources.local.keys import Keys, ensure_keys
from resources.local.ledger import Ledger
from resources.local.part import Part, inherited
from resources.local.stack import Blueprint
from resources.pools import LITE

PROJECT = Path(__file__).resolve().parents[1]
SERVERS = PROJECT / "deploy" / "servers" / ".venv"
DEFINITIONS = "pipelines.definitions"
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
# Nobody reads progress bars in a log.
QUIET = {
    "GIT_PYTHON_REFRESH": "quiet",
    # A dead MLflow is told within seconds, not after minutes of retries.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


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
        **({"TRIMTAB_TRITON_LITE": addresses.url("triton-lite")} if wants_lite(home) else {}),
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


def wants_lite(home: Path) -> bool:
    """Whether any model keeps a fallback copy: only then a third Triton and its agent are worth their memory.

    Where they run they belong to the stack, also for a command that was not told which models it was started for.
    """
    import yaml

    folder = Path(inherited().get("TRIMTAB_MODELS", MODELS))
    specs = [yaml.safe_load(file.read_text()) for file in folder.glob("*/model.yaml")]
    wanted = any(((spec or {}).get("fallback") or {}).get("enabled") for spec in specs)
    return wanted or f"triton-{LITE}" in Ledger(home).read().parts


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
    lite = wants_lite(home)
    pools = (*POOLS, LITE) if lite else POOLS
    parts = [
        postgres.part(servers, home, ports["postgres"], keys, (dagster.DATABASE, mlflow.DATABASE)),
        s3.part(servers, home, ports["s3"], keys, BUCKET),
        tracking,
        *(triton_part(home, addresses, keys, pool) for pool in pools),
        *(agent_part(home, addresses, keys, pool, told) for pool in pools),
        gateway_part(home, addresses, lite),
        observer_part(addresses, told),
        *dagster.parts(home, ports, database_port, inherited() | told, definitions),
    ]
    return [*parts, supervisor_part(home, definitions, [part.name for part in parts])]


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
