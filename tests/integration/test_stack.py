import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from pipelines import local
from resources.local import postgres, s3
from resources.local.keys import ensure_keys
from resources.local.ledger import Ledger
from resources.local.ports import HOST
from resources.local.processes import marked, tree
from resources.local.stack import down, status, up
from tests.conftest import RunningStack
from tests.killing import kill
from tests.local_parts import only

pytestmark = pytest.mark.integration
TRIMTAB = (sys.executable, "-m", "pipelines.cli")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home of its own, for tests that break things."""
    yield tmp_path
    down(tmp_path, local.strays(tmp_path))
    assert running(tmp_path) == []


def running(home: Path) -> list[str]:
    """Command lines of all processes of the home, marked or only named after it."""
    found = {process.pid: process for process in marked(home)}
    for process in psutil.process_iter():
        try:
            if str(home) in " ".join(process.cmdline()) and "pytest" not in process.cmdline():
                found[process.pid] = process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [process.name() for process in found.values() if process.pid != os.getpid()]


def trimtab(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*TRIMTAB, *map(str, words)], capture_output=True, text=True, timeout=180, check=False)


def test_every_part_is_healthy_by_its_real_probe(stack: RunningStack) -> None:
    found = trimtab("status", "--home", stack.home, "--json")
    parts = {part["name"]: part for part in json.loads(found.stdout)}
    assert {name: part["reason"] for name, part in parts.items() if part["state"] != "healthy"} == {}
    assert len(parts) == 13
    assert found.returncode == 0
    memory_mb = {name: part["memory_mb"] for name, part in parts.items()}
    print(f"up {stack.up_s:.0f} s, memory {sum(memory_mb.values()):,.0f} MB: {memory_mb}")
    assert sum(memory_mb.values()) < 5000


def test_nothing_listens_beyond_loopback(stack: RunningStack) -> None:
    members = {m.pid: m for r in Ledger(stack.home).read().parts.values() if (p := r.process()) for m in tree(p)}
    listening = []
    for member in members.values():
        with suppress(psutil.NoSuchProcess):  # PostgreSQL's come and go
            found = member.net_connections("inet")
            listening += [connection.laddr for connection in found if connection.status == psutil.CONN_LISTEN]
    assert len(listening) >= 20
    # An IPv6 socket may hold a mapped IPv4 address.
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {HOST}


def test_no_secret_shows_in_the_list_of_processes(stack: RunningStack) -> None:
    keys = ensure_keys(stack.home)
    words = "\n".join(" ".join(process.cmdline()) for process in marked(stack.home))
    assert "mlflow" in words
    for secret in (keys.s3_access, keys.s3_secret, keys.postgres_password):
        assert secret not in words


def test_up_on_a_healthy_stack_changes_nothing(stack: RunningStack) -> None:
    before = Ledger(stack.home).read()
    found = trimtab("up", "--home", stack.home, "--json")
    assert found.returncode == 0, found.stderr
    assert Ledger(stack.home).read() == before
    assert json.loads(found.stdout)["ports"] == before.ports


def test_up_repairs_what_was_killed_and_leaves_the_rest(stack: RunningStack) -> None:
    before = Ledger(stack.home).read().parts
    # The supervisor first, or it would be quicker.
    for name in ("supervisor", "gateway", "agent-blue", "dagster-daemon"):
        kill(before[name].pid)
    status = trimtab("status", "--home", stack.home)
    assert status.returncode == 1
    assert f"process {before['gateway'].pid} is gone" in status.stdout
    found = trimtab("up", "--home", stack.home)
    assert found.returncode == 0, found.stderr
    after = Ledger(stack.home).read().parts
    assert {name for name in after if after[name].pid != before[name].pid} == {
        "supervisor",
        "gateway",
        "agent-blue",
        "dagster-daemon",
    }
    assert trimtab("status", "--home", stack.home).returncode == 0


def test_killed_parts_come_back_without_anyone_and_status_says_so(home: Path) -> None:
    names = ("s3", "triton-blue", "agent-blue", "gateway")
    blueprint = only(home, *names, "supervisor")
    ports = up(home, blueprint).ports
    before = Ledger(home).read().parts
    for name in ("triton-blue", "agent-blue", "gateway"):
        os.kill(before[name].pid, signal.SIGKILL)
    started = time.monotonic()
    while True:
        found = {part.name: part for part in status(home, blueprint.build(ports), datetime.now(UTC))}
        back = [name for name in names[1:] if found[name].healthy and "restarted once" in found[name].note]
        if len(back) == 3:
            break
        assert time.monotonic() - started < 60, found
        time.sleep(0.1)
    print(f"Triton, agent and gateway back {time.monotonic() - started:.1f} s after they were killed")
    after = Ledger(home).read().parts
    assert (after["s3"], after["supervisor"]) == (before["s3"], before["supervisor"])
    assert found["supervisor"].memory_mb < 60


def test_a_model_s_runs_and_artifacts_go_through_mlflow_without_s3_keys(stack: RunningStack, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    script = """
import sys, mlflow
client = mlflow.MlflowClient(sys.argv[1])
run = client.create_run(client.create_experiment("stack-test")).info.run_id
client.log_text(run, "kept", "note.txt")
print(open(client.download_artifacts(run, "note.txt", sys.argv[2])).read())
"""
    command = [sys.executable, "-c", script, stack.addresses.url("mlflow"), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert found.stdout.strip().endswith("kept"), found.stderr
    client = s3.client(stack.addresses.url("s3", "api"), ensure_keys(stack.home))
    stored = [item["Key"] for item in client.list_objects_v2(Bucket="trimtab", Prefix="mlflow/")["Contents"]]
    assert any(key.endswith("note.txt") for key in stored)


def test_a_port_asked_for_that_is_taken_is_one_line_and_starts_nothing(home: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        found = trimtab("up", "--home", home, "--port", f"mlflow={taken}")
    assert found.returncode == 1
    assert found.stderr == (
        f"Error: mlflow: port {taken} is taken by another process: choose another with --port mlflow=N\n"
    )
    assert running(home) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_up_that_is_ended_half_way_leaves_nothing_that_down_does_not_end(home: Path, number: int) -> None:
    process = subprocess.Popen([*TRIMTAB, "up", "--home", str(home)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(Ledger(home).read().parts) < 5:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    if number == signal.SIGKILL:
        assert len(running(home)) >= 5
    else:
        assert said.splitlines()[-1] == "Error: interrupted: what was started is stopped again"
        assert running(home) == []
    assert trimtab("down", "--home", home).returncode == 0
    assert running(home) == []


def test_objects_survive_down_and_a_killed_server(home: Path) -> None:
    blueprint = only(home, "s3")
    ports = up(home, blueprint).ports
    client = s3.client(f"http://{HOST}:{ports['s3.api']}", ensure_keys(home))
    bodies = {f"k/{n}": os.urandom(1000 * n) for n in range(1, 60)}
    for key, body in bodies.items():
        client.put_object(Bucket="trimtab", Key=key, Body=body)
    for end in (lambda: down(home), lambda: kill(Ledger(home).read().parts["s3"].pid)):
        end()
        up(home, blueprint)
        assert {key: client.get_object(Bucket="trimtab", Key=key)["Body"].read() for key in bodies} == bodies


def test_a_killed_server_s_sockets_are_removed(home: Path) -> None:
    up(home, only(home, "s3"))
    sockets = [Path(file) for file in Ledger(home).read().parts["s3"].leftovers]
    assert all(socket.exists() for socket in sockets)
    down(home)
    assert not any(socket.exists() for socket in sockets)


def test_s3_refuses_foreign_keys(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from botocore.exceptions import ClientError

    ports = up(home, only(home, "s3")).ports
    stranger = s3.client(f"http://{HOST}:{ports['s3.api']}", ensure_keys(tmp_path_factory.mktemp("stranger")))
    with pytest.raises(ClientError, match=r"InvalidAccessKeyId|AccessDenied"):
        stranger.list_objects_v2(Bucket="trimtab")


def test_rows_survive_a_killed_server_and_its_stale_note(home: Path) -> None:
    import psycopg2

    blueprint, keys = only(home, "postgres"), ensure_keys(home)
    port = up(home, blueprint).ports["postgres.sql"]

    def ask(statement: str, password: str = keys.postgres_password) -> None:
        where = {"host": HOST, "port": port, "user": postgres.USER, "dbname": "mlflow"}
        with closing(psycopg2.connect(password=password, **where)) as connection:
            connection.autocommit = True
            connection.cursor().execute(statement)

    ask("CREATE TABLE kept (n int)")
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        ask("SELECT 1", "guess")
    kill(Ledger(home).read().parts["postgres"].pid)
    # The number in the note now belongs to somebody else, as after a restart of the machine.
    note = home / "data" / "postgres" / "postmaster.pid"
    note.write_text("\n".join([str(os.getpid()), *note.read_text().splitlines()[1:]]) + "\n")
    up(home, blueprint)
    ask("SELECT n FROM kept")
