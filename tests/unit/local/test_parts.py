"""What the stack's parts are told, without starting them."""

from pathlib import Path

import pytest
import yaml

from pipelines import local
from pipelines.environments import environment, ports
from pipelines.parts import Addresses
from resources.errors import StackError
from resources.local import dagster
from resources.local.ledger import Ledger, Record
from resources.local.part import Part, inherited
from resources.local.postgres import postmaster


@pytest.fixture
def parts(tmp_path: Path) -> list[Part]:
    blueprint = local.blueprint(tmp_path)
    return list(blueprint.build(blueprint.preferred))


def test_every_part_needs_only_parts_that_exist(parts: list[Part]) -> None:
    names = {part.name for part in parts}
    assert len(names) == len(parts) == 13
    assert all(set(part.after) <= names for part in parts)


def test_no_secret_is_in_a_command_line(parts: list[Part], tmp_path: Path) -> None:
    secrets = [
        (tmp_path / "keys" / name).read_text() for name in ("s3-access", "s3-secret", "postgres", "triton-control")
    ]
    words = " ".join(word for part in parts for word in part.command)
    assert not any(secret in words for secret in secrets)


def test_nothing_is_told_to_listen_beyond_loopback(parts: list[Part]) -> None:
    words = " ".join(word for part in parts for word in part.command)
    assert "0.0.0.0" not in words


def test_every_port_belongs_to_one_part(parts: list[Part]) -> None:
    numbers = [port for part in parts for port in part.ports.values()]
    kept = {name: ports for name, ports in local.PREFERRED.items() if name != "triton-lite"}
    assert len(numbers) == len(set(numbers)) == sum(map(len, kept.values()))


def test_a_model_that_keeps_a_fallback_copy_brings_the_lite_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "churn").mkdir(parents=True)
    (tmp_path / "models" / "churn" / "model.yaml").write_text("fallback: {enabled: true}")
    monkeypatch.setenv("TRIMTAB_MODELS", str(tmp_path / "models"))
    blueprint = local.blueprint(tmp_path)
    parts = {part.name: part for part in blueprint.build(blueprint.preferred)}
    assert {"triton-lite", "agent-lite"} <= set(parts)
    assert len(parts) == 15
    where = environment(dict(parts["agent-lite"].environment))
    assert where.triton_lite == "http://127.0.0.1:8020"
    assert tuple(ports(where).pools.replicas) == ("blue", "green", "lite")


def test_a_lite_tier_that_runs_belongs_to_the_stack_for_every_command(tmp_path: Path) -> None:
    """`trimtab status` is not told with which models `trimtab up` was."""
    assert not local.wants_lite(tmp_path)
    Ledger(tmp_path).add(Record("triton-lite", 1, 0.0, "2024-01-01T00:00:00+00:00", "", {}, (), 15, 9))
    blueprint = local.blueprint(tmp_path)
    assert {"triton-lite", "agent-lite"} <= {part.name for part in blueprint.build(blueprint.preferred)}


def test_without_a_lite_tier_pools_are_two(parts: list[Part]) -> None:
    where = environment(dict(next(part for part in parts if part.name == "agent-blue").environment))
    assert where.triton_lite is None
    assert tuple(ports(where).pools.replicas) == ("blue", "green")


def test_the_environment_of_the_stack_is_understood_by_its_processes(tmp_path: Path) -> None:
    flat = local.blueprint(tmp_path).preferred
    nested: dict[str, dict[str, int]] = {}
    for name, port in flat.items():
        nested.setdefault(name.split(".")[0], {})[name.split(".")[1]] = port
    told = local.stack_environment(Addresses(nested, local.SERVERS), tmp_path)
    where = environment(told)
    assert where.home == tmp_path
    assert where.s3_endpoint == "http://127.0.0.1:8333"
    assert where.mlflow_uri == "http://127.0.0.1:5000"
    assert where.gateway_admin == "http://127.0.0.1:9901"
    assert where.observer == "http://127.0.0.1:8090"
    assert where.signing_key.is_file()
    assert (where.triton_blue, where.triton_green) == ("http://127.0.0.1:8000", "http://127.0.0.1:8010")


def test_a_caller_s_own_credentials_do_not_reach_the_parts() -> None:
    theirs = {"AWS_SESSION_TOKEN": "x", "MLFLOW_TRACKING_URI": "y", "PGHOST": "z", "DAGSTER_HOME": "/elsewhere"}
    found = inherited({**theirs, "PATH": "/bin", "no_proxy": "corp", "TRIMTAB_MODELS": "/models"})
    assert not theirs.keys() & found.keys()
    assert (found["PATH"], found["TRIMTAB_MODELS"]) == ("/bin", "/models")
    assert found["no_proxy"] == "corp,127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kafka": 1}, "--port kafka=1: no such part: one of postgres, s3"),
        ({"s3.ftp": 1}, "--port s3.ftp=1: s3 has api, grpc"),
    ],
)
def test_a_port_of_an_unknown_part_is_refused_with_the_choice(given: dict[str, int], words: str) -> None:
    with pytest.raises(StackError, match=words):
        local.explicit_ports(given)


def test_a_part_s_name_alone_means_its_first_port() -> None:
    assert local.explicit_ports({"gateway": 1, "gateway.admin": 2}) == {"gateway.client": 1, "gateway.admin": 2}


def test_a_missing_environment_of_servers_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="run `make setup`"):
        local.blueprint(tmp_path, tmp_path / "nowhere")


def test_addresses_of_a_home_without_a_stack_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no stack was started here"):
        local.read_addresses(tmp_path)


def test_dagster_reads_one_rollout_a_model_at_a_time_from_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster._core.instance.config import ConcurrencyConfig
    from dagster._core.instance.ref import InstanceRef
    from dagster._core.run_coordinator import QueuedRunCoordinator

    monkeypatch.setenv(dagster.PASSWORD, "secret")
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(dagster.instance_config(tmp_path, 5432)))
    instance = InstanceRef.from_dir(str(tmp_path))
    coordinator = instance.run_coordinator
    assert isinstance(coordinator, QueuedRunCoordinator)
    assert coordinator.dequeue_interval_seconds == 1
    settings = instance.settings["concurrency"]
    assert isinstance(settings, dict)
    found = ConcurrencyConfig.from_concurrency_settings(settings, coordinator.get_run_queue_config())
    assert found.run_queue_config is not None
    assert found.run_queue_config.tag_concurrency_limits == [
        {"key": "rollout/model", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
    ]
    assert found.pool_config.default_pool_limit == 1


def test_a_postmaster_note_of_a_dead_or_foreign_process_is_not_believed(tmp_path: Path) -> None:
    import os

    assert postmaster(tmp_path) is None
    (tmp_path / "postmaster.pid").write_text(f"{os.getpid()}\n{tmp_path}\n")
    assert postmaster(tmp_path) is None
