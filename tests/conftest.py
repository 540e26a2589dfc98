"""Fixtures that every test may ask for. Nothing is started before a test asks."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines import local
from pipelines.parts import Addresses
from resources.local.stack import down, up


@dataclass(frozen=True, slots=True)
class RunningStack:
    """The whole stack on loopback. environment: what a process of trimtab needs to reach it."""

    home: Path
    addresses: Addresses
    environment: Mapping[str, str]
    up_s: float


@pytest.fixture(scope="session")
def stack_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="session")
def stack(stack_home: Path) -> Iterator[RunningStack]:
    """One stack for the whole session, gone after it: tests keep apart by model names and keys of their own."""
    start = time.monotonic()
    try:
        up(stack_home, local.blueprint(stack_home))
        addresses = local.read_addresses(stack_home)
        yield RunningStack(
            stack_home, addresses, local.stack_environment(addresses, stack_home), time.monotonic() - start
        )
    finally:
        down(stack_home, local.strays(stack_home))
