"""Where a process of trimtab runs: the one place that reads the environment and chooses resources."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from resources.errors import SpecError
from resources.gateway import Gateway
from resources.lineage import Lineage
from resources.pools import LITE, Pools
from resources.profiler import Profiler
from resources.signing import key_file
from resources.store import S3Store
from resources.traffic import Traffic

MODELS = Path(__file__).parent / "models"
EXECUTORS = ("in_process", "kubernetes")
# As long as a restart of MLflow takes, twice.
STEP_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Environment:
    """Addresses and files, as `TRIMTAB_*` variables give them. Defaults suit `dagster definitions validate`."""

    home: Path
    models: Path
    bucket: str
    s3_endpoint: str | None
    mlflow_uri: str
    gateway_folder: Path
    gateway_admin: str
    observer: str | None
    servers: Path
    signing_key: Path
    verify_keys: tuple[Path, ...]
    triton_blue: str
    triton_green: str
    triton_lite: str | None
    """Of the tier of cheaper copies; None where there is none."""
    max_loops: int
    """Loops of all models that may run at once."""
    executor: str
    """Where steps run: `in_process` or `kubernetes`."""
    visible_devices: str
    """GPUs or MIG slices that this process's children see, as CUDA_VISIBLE_DEVICES names them; '' for all."""


def environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read the process's environment, or the mapping given instead of it."""
    env = os.environ if variables is None else variables
    home = Path(env.get("TRIMTAB_HOME", ".trimtab")).absolute()
    return Environment(
        home=home,
        models=Path(env.get("TRIMTAB_MODELS", str(MODELS))),
        bucket=env.get("TRIMTAB_BUCKET", "trimtab"),
        s3_endpoint=env.get("TRIMTAB_S3_ENDPOINT"),
        mlflow_uri=env.get("TRIMTAB_MLFLOW_URI", "http://127.0.0.1:5000"),
        gateway_folder=Path(env.get("TRIMTAB_GATEWAY_FOLDER", str(home / "data" / "gateway"))),
        gateway_admin=env.get("TRIMTAB_GATEWAY_ADMIN", "http://127.0.0.1:9901"),
        observer=env.get("TRIMTAB_OBSERVER"),
        servers=Path(env.get("TRIMTAB_SERVERS", str(Path(__file__).parents[1] / "deploy" / "servers" / ".venv"))),
        # Keys are files, or PEM text.
        signing_key=key_file(env.get("TRIMTAB_SIGNING_KEY", str(home / "keys" / "signing.pem"))),
        # Several while keys are rotated, as in PATH.
        verify_keys=tuple(
            key_file(name)
            for name in env.get("TRIMTAB_VERIFY_KEY", str(home / "keys" / "signing.pub.pem")).split(os.pathsep)
            if name
        ),
        triton_blue=env.get("TRIMTAB_TRITON_BLUE", "http://127.0.0.1:8000"),
        triton_green=env.get("TRIMTAB_TRITON_GREEN", "http://127.0.0.1:8100"),
        triton_lite=env.get("TRIMTAB_TRITON_LITE"),
        max_loops=_whole(env.get("TRIMTAB_MAX_LOOPS", "4")),
        executor=_executor(env.get("TRIMTAB_EXECUTOR", EXECUTORS[0])),
        visible_devices=env.get("CUDA_VISIBLE_DEVICES", ""),
    )


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SpecError("environment", "TRIMTAB_MAX_LOOPS", text, "has to be a whole number of at least 1")
    return int(text)


def _executor(name: str) -> str:
    if name not in EXECUTORS:
        raise SpecError("environment", "TRIMTAB_EXECUTOR", name, f"is none: choose one of {', '.join(EXECUTORS)}")
    return name


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything the rooms' doors ask for. Nothing is connected before it is used."""

    store: S3Store
    lineage: Lineage
    traffic: Traffic
    gateway: Gateway
    pools: Pools
    profiler: Profiler
    signing_key: Path

    def as_resources(self) -> dict[str, object]:
        """By the names the doors ask for them. A step waits for MLflow to come back; a person is told at once."""
        patient = replace(self, lineage=replace(self.lineage, patience_s=STEP_PATIENCE_S))
        return {field.name: getattr(patient, field.name) for field in fields(patient)}


def ports(where: Environment) -> Ports:
    """The ports of an environment: the one place where they are chosen."""
    store = S3Store(where.bucket, where.s3_endpoint)
    lite = {f"{LITE}-0": where.triton_lite} if where.triton_lite else {}
    return Ports(
        store=store,
        lineage=Lineage(where.mlflow_uri),
        traffic=Traffic(store, where.observer),
        gateway=Gateway(where.gateway_folder, where.gateway_admin),
        pools=Pools(
            store,
            # Rollouts take the first free pool: the lite tier comes last, so it is never theirs.
            replicas={"blue": ("blue-0",), "green": ("green-0",)} | ({LITE: (f"{LITE}-0",)} if lite else {}),
            triton_urls={"blue-0": where.triton_blue, "green-0": where.triton_green} | lite,
        ),
        profiler=Profiler(where.servers, where.home / "data" / "profiler", where.visible_devices),
        signing_key=where.signing_key,
    )


def enter(variables: Mapping[str, str]) -> Environment:
    """Make this process one of a stack: libraries with settings of their own (boto3) see its variables as well."""
    os.environ.update(variables)
    return environment()
