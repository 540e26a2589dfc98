"""Dagster: code server, webserver and daemon over PostgreSQL, as three processes of the project's own Python."""

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from resources.errors import StackError
from resources.local import postgres
from resources.local.part import Part
from resources.local.ports import HOST
from resources.local.probes import TIMEOUT_S, post

CODE, WEBSERVER, DAEMON = "dagster-code", "dagster-webserver", "dagster-daemon"
PORTS = {CODE: {"grpc": 4000}, WEBSERVER: {"http": 3000}}
DATABASE = "dagster"
LOCATION = "trimtab"
PASSWORD = "TRIMTAB_POSTGRES_PASSWORD"
# The daemon beats every 30 s.
STALE = timedelta(seconds=120)
LOCATIONS = """{ workspaceOrError { __typename ... on PythonError { message } ... on Workspace { locationEntries {
  name loadStatus locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
DAEMONS = """{ instance { daemonHealth { allDaemonStatuses {
  daemonType required lastHeartbeatTime lastHeartbeatErrors { message } } } } }"""


def parts(
    home: Path, ports: Mapping[str, Mapping[str, int]], database_port: int, environment: Mapping[str, str], module: str
) -> list[Part]:
    """The three processes. environment: complete, with DAGSTER_HOME and the password's variable."""
    grpc, http = ports[CODE]["grpc"], ports[WEBSERVER]["http"]
    folder, url = home / "dagster", f"http://{HOST}:{http}"
    workspace = f"--workspace={folder / 'workspace.yaml'}"
    web = (sys.executable, "-m", "dagster_webserver", f"--host={HOST}", f"--port={http}", workspace)
    return [
        _code_server(grpc, partial(_prepare, folder, database_port, grpc), environment, module),
        Part(
            name=WEBSERVER,
            command=web,
            ready=partial(_webserver_ready, url),
            address=url,
            ports=ports[WEBSERVER],
            after=(CODE,),
            environment=environment,
            grace_s=3,
        ),
        Part(
            name=DAEMON,
            command=(sys.executable, "-m", "dagster._daemon", "run", workspace),
            ready=partial(_daemon_ready, url),
            address="(no port)",
            after=(CODE,),
            environment=environment,
            grace_s=5,
        ),
    ]


def _code_server(port: int, prepare: Callable[[], None], environment: Mapping[str, str], module: str) -> Part:
    start = (sys.executable, "-m", "dagster", "api", "grpc", f"--module-name={module}", f"--host={HOST}")
    return Part(
        name=CODE,
        # Runs are started with this Python, whatever `dagster` the PATH finds.
        command=(*start, f"--port={port}", f"--location-name={LOCATION}", "--use-python-environment-entry-point"),
        ready=partial(_code_ready, port),
        address=f"{HOST}:{port}",
        ports={"grpc": port},
        after=(postgres.NAME,),
        environment=environment,
        prepare=prepare,
        prime=_health_stub,
        # It would wait up to a minute for calls that go on; a rollout is resumed by its state in S3.
        grace_s=4,
    )


def instance_config(folder: Path, database_port: int) -> dict[str, Any]:
    """dagster.yaml. One rollout a model at a time, and a run's slot never outlives the run."""
    return {
        "storage": {"postgres": {"postgres_db": _database(database_port)}},
        "local_artifact_storage": {
            "module": "dagster._core.storage.root",
            "class": "LocalArtifactStorage",
            "config": {"base_dir": str(folder)},
        },
        "run_coordinator": {
            "module": "dagster._core.run_coordinator",
            "class": "QueuedRunCoordinator",
            # On a crowded machine the code server may answer late: the run waits and is tried again.
            "config": {
                "dequeue_interval_seconds": 1,
                "max_user_code_failure_retries": 5,
                "user_code_failure_retry_delay": 10,
            },
        },
        "run_launcher": {"module": "dagster._core.launcher", "class": "DefaultRunLauncher"},
        "concurrency": {
            "pools": {"default_limit": 1, "granularity": "op"},
            "runs": {
                "max_concurrent_runs": 8,
                "tag_concurrency_limits": [
                    {"key": "rollout/model", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
                ],
            },
        },
        "run_monitoring": {
            "enabled": True,
            "start_timeout_seconds": 180,
            "max_runtime_seconds": 86400,
            "free_slots_after_run_end_seconds": 60,
        },
        "run_retries": {"enabled": True, "max_retries": 2, "retry_on_asset_or_op_failure": False},
        "sensors": {"use_threads": True, "num_workers": 4},
        "schedules": {"use_threads": True, "num_workers": 2},
        "retention": {"sensor": {"purge_after_days": {"skipped": 3, "success": 30, "failure": 90}}},
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},
    }


def _database(port: int) -> dict[str, Any]:
    return {
        "username": postgres.USER,
        "password": {"env": PASSWORD},
        "hostname": HOST,
        "port": port,
        "db_name": DATABASE,
        # SQLAlchemy 2.1 would take another driver.
        "scheme": "postgresql+psycopg2",
    }


def _prepare(folder: Path, database_port: int, code_port: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    server = {"host": HOST, "port": code_port, "location_name": LOCATION}
    _write(folder / "dagster.yaml", instance_config(folder, database_port))
    _write(folder / "workspace.yaml", {"load_from": [{"grpc_server": server}]})


def _write(file: Path, body: Mapping[str, Any]) -> None:
    partial_file = file.with_suffix(".new")
    partial_file.write_text(yaml.safe_dump(body, sort_keys=False))
    partial_file.replace(file)


def _code_ready(port: int, _started: datetime) -> None:
    """The gRPC health service of the code server, which serves once the definitions are loaded."""
    import grpc

    health_pb2, health_pb2_grpc = _health_stub()
    with grpc.insecure_channel(f"{HOST}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = health_pb2.HealthCheckRequest(service="DagsterApi")
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=3)
        except grpc.RpcError as error:
            raise StackError(f"{CODE}: {HOST}:{port}: {error.code().name}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise StackError(f"{CODE}: {HOST}:{port} is not serving")


def _health_stub() -> tuple[Any, Any]:
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

    return health_pb2, health_pb2_grpc


def _webserver_ready(url: str, _started: datetime) -> None:
    """It answers and has our code location, loaded without an error."""
    found = _ask(url, LOCATIONS)["workspaceOrError"]
    entries = {entry["name"]: entry for entry in found.get("locationEntries", [])}
    if LOCATION not in entries:
        raise StackError(f"{WEBSERVER}: no code location {LOCATION!r}: {found.get('message', sorted(entries))}")
    entry = entries[LOCATION]
    loaded = entry["locationOrLoadError"] or {}
    if entry["loadStatus"] != "LOADED" or loaded.get("__typename") != "RepositoryLocation":
        raise StackError(f"{WEBSERVER}: {LOCATION} is {entry['loadStatus']}: {loaded.get('message', 'no location')}")


def _daemon_ready(url: str, started: datetime) -> None:
    """Every daemon that is required has beaten since this process started, and not long ago."""
    oldest = max(started, datetime.now(UTC) - STALE).timestamp()
    statuses = _ask(url, DAEMONS)["instance"]["daemonHealth"]["allDaemonStatuses"]
    late = [s["daemonType"] for s in statuses if s["required"] and (s["lastHeartbeatTime"] or 0) < oldest]
    errors = [error["message"] for s in statuses for error in s["lastHeartbeatErrors"] or []]
    if errors:
        raise StackError(f"{DAEMON}: {errors[0]}")
    if late or not statuses:
        raise StackError(f"{DAEMON}: no heartbeat from {', '.join(late) or 'any daemon'}")


def _ask(url: str, query: str) -> dict[str, Any]:
    answer = post(f"{url}/graphql", {"query": query}, TIMEOUT_S)
    if "errors" in answer:
        raise StackError(f"{url}: {answer['errors'][0]['message']}")
    return dict(answer["data"])
