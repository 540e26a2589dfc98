"""Every version of every feature set, as people wrote them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from resources.errors import SpecError
from resources.features.sets import CANONICAL, FeatureSet
from resources.yaml_lines import Document, documents, line_of


@dataclass(frozen=True, slots=True)
class FeatureRegistry:
    """At each instant at most one version of a name is valid."""

    sets: tuple[FeatureSet, ...]

    @staticmethod
    def load(path: Path) -> "FeatureRegistry":
        """One YAML file, or every `features*.yaml` under a folder; one document a version. `SpecError` on a flaw."""
        files = sorted(path.rglob("features*.yaml")) if path.is_dir() else [path]
        if not files:
            raise SpecError(path, "features.yaml", None, "no such file in the folder: write one or point elsewhere")
        return FeatureRegistry(_in_turn(version for file in files for version in _parse(file)))

    def resolve(self, name: str, at: datetime) -> FeatureSet:
        """The version of `name` valid at an instant."""
        versions = [item for item in self.sets if item.name == name]
        if not versions:
            known = ", ".join(sorted({item.name for item in self.sets}))
            raise SpecError("features.yaml", "name", name, f"no such feature set: choose one of {known}")
        for item in versions:
            if item.valid_from <= at and (item.valid_to is None or at < item.valid_to):
                return item
        first, last = versions[0], versions[-1]
        if last.valid_to is not None and at >= last.valid_to:
            remedy = (
                f"no version of {name} is valid then: the last ends at {last.valid_to.isoformat()}, write a new one"
            )
            raise last.flaw("valid_to", at.isoformat(), remedy)
        raise first.flaw(
            "valid_from",
            at.isoformat(),
            f"no version of {name} is valid then: the first starts at {first.valid_from.isoformat()}",
        )


def _parse(file: Path) -> list[FeatureSet]:
    found = documents(file)
    if not found:
        raise SpecError(file, "yaml", None, "is empty: write one document a feature set version")
    return [_validated(file, item) for item in found]


def _validated(file: Path, document: Document) -> FeatureSet:
    if not isinstance(document.value, dict):
        remedy = "has to be a mapping with name, version, valid_from, columns, sql, ..."
        raise SpecError(file, "yaml", document.value, remedy, line_of(document.lines, ""))
    given = {**document.value, "file": str(file), "lines": document.lines}
    try:
        parsed = TypeAdapter(FeatureSet).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        plain = {"missing": "is missing: add it", "unexpected_keyword_argument": "is no field: check its spelling"}
        said = plain.get(first["type"], first["msg"])
        value = None if first["type"] == "missing" else first["input"]
        raise SpecError(file, field, value, said, line_of(document.lines, field)) from error
    _refuse(parsed)
    return parsed


def _refuse(parsed: FeatureSet) -> None:
    """What fields say together."""
    if parsed.label in CANONICAL:
        raise parsed.flaw("label", parsed.label, "is a name that every snapshot has: rename the label")
    for position, name in enumerate(parsed.features):
        if name in CANONICAL or name == parsed.label:
            remedy = "is the label or a name that every snapshot has: rename the column"
            raise parsed.flaw(f"columns.{position}.name", name, remedy)
    if len(parsed.features) < len(parsed.columns):
        raise parsed.flaw("columns", [c.name for c in parsed.columns], "names a column twice: keep one")
    if parsed.valid_to is not None and parsed.valid_to <= parsed.valid_from:
        raise parsed.flaw("valid_to", parsed.valid_to.isoformat(), "has to be later than valid_from")
    if not parsed.sql.strip() and not parsed.python:
        raise parsed.flaw("sql", parsed.sql, "is missing: write the SQL over the sources, or python: module:function")
    if parsed.sql.strip() and parsed.python:
        raise parsed.flaw("python", parsed.python, "stands beside sql: rows come from one of them, drop the other")
    if parsed.sql and not parsed.sources:
        raise parsed.flaw("sources", [], "is missing: name the tables that the SQL reads")
    if parsed.python and parsed.sources:
        raise parsed.flaw("sources", list(parsed.sources), "are for SQL: a Python function reads its own")


def _in_turn(sets: Iterable[FeatureSet]) -> tuple[FeatureSet, ...]:
    """By name and valid_from, refusing two versions at one instant and instants without one in between."""
    ordered = sorted(sets, key=lambda item: (item.name, item.valid_from))
    for earlier, later in pairwise(ordered):
        if earlier.name != later.name:
            continue
        if earlier.version == later.version:
            raise later.flaw("version", later.version, f"of {later.name} exists already: raise it")
        if earlier.valid_to != later.valid_from:
            flaw = "overlaps" if earlier.valid_to is None or earlier.valid_to > later.valid_from else "leaves a gap to"
            raise earlier.flaw(
                "valid_to",
                None if earlier.valid_to is None else earlier.valid_to.isoformat(),
                f"{earlier.name} version {earlier.version} {flaw} version {later.version}: "
                f"set it to {later.valid_from.isoformat()}",
            )
    return tuple(ordered)
