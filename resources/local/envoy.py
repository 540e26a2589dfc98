"""How Envoy starts on one machine: from the servers' own environment, on loopback."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from resources.envoy_config import bootstrap
from resources.envoy_front import read_front
from resources.errors import StackError
from resources.gateway import read_splits, write_splits

BOOTSTRAP_FILE = "bootstrap.json"


def prepare(
    folder: Path,
    client_port: int,
    admin_port: int,
    pools: Mapping[str, tuple[int, int]],
    access_port: int,
    lite: tuple[int, int] | None = None,
) -> None:
    """Write what Envoy starts with. Splits that the folder already has stay in force, so a restart serves on.

    pools: name to (HTTP port, gRPC port); lite: those of the tier that answers in need.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    front = read_front(folder)
    config = bootstrap(folder, client_port, admin_port, pools, access_port, front=front, lite=lite)
    fresh = folder / f".{BOOTSTRAP_FILE}.new"
    fresh.write_text(json.dumps(config, indent=1))
    os.replace(fresh, folder / BOOTSTRAP_FILE)
    write_splits(folder, *read_splits(folder))


def command(servers: Path, folder: Path) -> list[str]:
    """The command line. servers: the servers' virtual environment; `StackError` when Envoy is not in it."""
    found = sorted(servers.glob("lib/python3*/site-packages/envoy/_bin/envoy"))
    if not found:
        raise StackError(f"envoy: no binary in {servers}: install the servers' environment (uv sync in deploy/servers)")
    # The wheel's own launcher would stand between a signal and Envoy.
    config = str(folder.resolve() / BOOTSTRAP_FILE)
    return [str(found[0]), "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]


def ready(admin_url: str) -> None:
    """Return when Envoy serves; `StackError` with the reason while it does not."""
    try:
        with urlopen(f"{admin_url}/ready", timeout=2) as answer:
            state = answer.read().decode().strip()
    except (URLError, OSError) as error:
        raise StackError(f"envoy: {admin_url}/ready: {error}") from error
    if state != "LIVE":
        raise StackError(f"envoy: {admin_url}/ready says {state}")
