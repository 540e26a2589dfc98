"""Some of the real stack's parts, for tests that need no more of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pipelines import local
from resources.local.part import Part
from resources.local.stack import Blueprint


def only(home: Path, *names: str) -> Blueprint:
    """The real stack's parts of these names, waiting for each other alone."""
    whole = local.blueprint(home)

    def build(ports: Mapping[str, int]) -> list[Part]:
        chosen = [part for part in whole.build(ports) if part.name in names]
        return [replace(part, after=tuple(name for name in part.after if name in names)) for part in chosen]

    return Blueprint(whole.servers, whole.preferred, build)
