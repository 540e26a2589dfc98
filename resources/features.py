"""Feature sets: YAML in Git, read from the store by DuckDB, as known at an instant.

A set's SQL sees its sources as tables. Every instant in it is a plain TIMESTAMP in UTC, on the way in and out.
It gives one row a version of an entity; the row's `known_at` is no earlier than that of anything joined into it.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from resources.errors import DataError, NotFound, SpecError
from resources.store import Store

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

FeatureType = Literal["string", "float", "int", "bool"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

# Every snapshot has these beside its features and its label.
CANONICAL = ("entity", "event_time", "label_known_at")
_SQL_TYPES: dict[str, str] = {"string": "VARCHAR", "float": "DOUBLE", "int": "BIGINT", "bool": "BOOLEAN"}


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Column:
    """One model input."""

    name: Name
    type: FeatureType
    description: str = ""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", coerce_numbers_to_str=True))
class FeatureSet:
    """One version of a feature set, valid over [valid_from, valid_to). The first five name columns of the SQL."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    valid_from: AwareDatetime
    entity: Name
    event_time: Name
    known_at: Name
    label: Name
    label_known_at: Name
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    sources: Annotated[tuple[Name, ...], Field(min_length=1)]
    sql: Annotated[str, Field(min_length=1)]
    valid_to: AwareDatetime | None = None
    freshness_hours: Annotated[float, Field(gt=0)] = 24.0
    description: str = ""
    file: str = ""

    @property
    def features(self) -> dict[str, str]:
        """Column name to type, in order."""
        return {column.name: column.type for column in self.columns}


@dataclass(frozen=True, slots=True)
class FeatureRegistry:
    """Every version of every feature set; at each instant at most one version of a name is valid."""

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
        raise SpecError(
            versions[0].file,
            "valid_from",
            at.isoformat(),
            f"no version of {name} is valid then: the first starts at {versions[0].valid_from.isoformat()}",
        )


def read(feature_set: FeatureSet, store: Store, start: datetime, end: datetime, as_of: datetime) -> "pd.DataFrame":
    """Rows with event time in [start, end), exactly as they were known at `as_of`, by event_time and entity.

    Columns: entity, event_time, the features, the label (float, by the set's own name for it), label_known_at. What
    became known after `as_of` does not enter: a later row is absent, a later correction is ignored, a later label and
    its instant are null.
    `SpecError` when the SQL fails or lacks a column, `DataError` when its rows break the schema, `NotFound` without
    a source.
    """
    with TemporaryDirectory(prefix="trimtab-sources-") as folder:
        files = {source: _fetch(feature_set, store, source, Path(folder)) for source in feature_set.sources}
        table = _query(feature_set, files, start, end, as_of)
    return _checked(feature_set, table)


def _parse(file: Path) -> list[FeatureSet]:
    import yaml

    try:
        documents = [item for item in yaml.safe_load_all(file.read_text()) if item is not None]
    except OSError as error:
        raise SpecError(file, "path", str(file), f"cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SpecError(file, "yaml", None, f"is not YAML: {error}") from error
    if not documents:
        raise SpecError(file, "yaml", None, "is empty: write one document a feature set version")
    return [_validated(file, item) for item in documents]


def _validated(file: Path, document: Any) -> FeatureSet:
    if not isinstance(document, dict):
        raise SpecError(file, "yaml", document, "has to be a mapping with name, version, valid_from, columns, sql, ...")
    try:
        parsed = TypeAdapter(FeatureSet).validate_python({**document, "file": str(file)})
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(file, ".".join(map(str, first["loc"])), first["input"], first["msg"]) from error
    if parsed.label in CANONICAL:
        raise SpecError(file, "label", parsed.label, "is a name that every snapshot has: rename the label")
    for position, name in enumerate(parsed.features):
        field = f"columns.{position}.name"
        if name in CANONICAL or name == parsed.label:
            raise SpecError(file, field, name, "is the label or a name that every snapshot has: rename the column")
    if len(parsed.features) < len(parsed.columns):
        raise SpecError(file, "columns", [c.name for c in parsed.columns], "names a column twice: keep one")
    if parsed.valid_to is not None and parsed.valid_to <= parsed.valid_from:
        raise SpecError(file, "valid_to", parsed.valid_to.isoformat(), "has to be later than valid_from")
    return parsed


def _in_turn(sets: Iterable[FeatureSet]) -> tuple[FeatureSet, ...]:
    """By name and valid_from, refusing two versions at one instant and instants without one in between."""
    ordered = sorted(sets, key=lambda item: (item.name, item.valid_from))
    for earlier, later in pairwise(ordered):
        if earlier.name != later.name:
            continue
        if earlier.version == later.version:
            raise SpecError(later.file, "version", later.version, f"of {later.name} exists already: raise it")
        if earlier.valid_to != later.valid_from:
            flaw = "overlaps" if earlier.valid_to is None or earlier.valid_to > later.valid_from else "leaves a gap to"
            ends = None if earlier.valid_to is None else earlier.valid_to.isoformat()
            raise SpecError(
                earlier.file,
                "valid_to",
                ends,
                f"{earlier.name} version {earlier.version} {flaw} version {later.version}: "
                f"set it to {later.valid_from.isoformat()}",
            )
    return tuple(ordered)


def _fetch(feature_set: FeatureSet, store: Store, source: str, folder: Path) -> Path:
    key = f"raw/{source}.parquet"
    try:
        body = store.get(key)
    except NotFound as error:
        raise NotFound(f"{key}: no such object, and feature set {feature_set.name} reads it: put it there") from error
    path = folder / f"{source}.parquet"
    path.write_bytes(body)
    return path


def _query(
    feature_set: FeatureSet, files: Mapping[str, Path], start: datetime, end: datetime, as_of: datetime
) -> "pa.Table":
    import duckdb

    bounds = {"start": _utc(start, "start"), "end": _utc(end, "end"), "as_of": _utc(as_of, "as_of")}
    with duckdb.connect() as connection:
        # The SQL of a spec reads its sources and nothing else on this machine.
        allowed = ", ".join(_literal(path) for path in files.values())
        connection.execute(f"SET allowed_paths = [{allowed}]; SET enable_external_access = false; SET threads = 2")
        try:
            for source, path in files.items():
                connection.execute(_view(connection, source, path))
            given = {row[0] for row in connection.execute(f"DESCRIBE {feature_set.sql}").fetchall()}
            _require(feature_set, given)
            return connection.sql(_as_known(feature_set), params=bounds).to_arrow_table()
        except duckdb.Error as error:
            raise SpecError(feature_set.file, "sql", feature_set.name, f"DuckDB refuses it: {error}") from error


def _view(connection: "duckdb.DuckDBPyConnection", source: str, path: Path) -> str:
    """A source as a view whose instants are plain TIMESTAMPs in UTC: zones would need an extension to compute with."""
    scan = f"read_parquet({_literal(path)})"
    columns = connection.execute(f"DESCRIBE FROM {scan}").fetchall()
    zoned = [f'CAST("{name}" AS TIMESTAMP) AS "{name}"' for name, kind, *_ in columns if kind.endswith("TIME ZONE")]
    replace = f" REPLACE ({', '.join(zoned)})" if zoned else ""
    return f'CREATE VIEW "{source}" AS SELECT *{replace} FROM {scan}'


def _require(feature_set: FeatureSet, given: set[str]) -> None:
    roles = ("entity", "event_time", "known_at", "label", "label_known_at")
    wanted = {getattr(feature_set, role): role for role in roles}
    wanted |= {column.name: f"columns.{position}.name" for position, column in enumerate(feature_set.columns)}
    for name, field in wanted.items():
        if name not in given:
            raise SpecError(feature_set.file, field, name, f"the SQL does not give it, only {', '.join(sorted(given))}")


def _as_known(feature_set: FeatureSet) -> str:
    """The bitemporal query. A correction is a later row of the same entity: the last one known by then is the row."""
    features = ", ".join(f'CAST("{c.name}" AS {_SQL_TYPES[c.type]}) AS "{c.name}"' for c in feature_set.columns)
    return f"""
        WITH known AS (
            SELECT * FROM ({feature_set.sql}) WHERE CAST("{feature_set.known_at}" AS TIMESTAMP) <= $as_of
            QUALIFY rank() OVER (PARTITION BY "{feature_set.entity}" ORDER BY "{feature_set.known_at}" DESC) = 1
        ), rows AS (
            SELECT *, CAST("{feature_set.label_known_at}" AS TIMESTAMP) <= $as_of AS _mature FROM known
        )
        SELECT CAST("{feature_set.entity}" AS VARCHAR) AS entity,
            CAST("{feature_set.event_time}" AS TIMESTAMP) AS event_time, {features},
            CASE WHEN _mature THEN CAST("{feature_set.label}" AS DOUBLE) END AS "{feature_set.label}",
            CASE WHEN _mature THEN CAST("{feature_set.label_known_at}" AS TIMESTAMP) END AS label_known_at
        FROM rows WHERE CAST("{feature_set.event_time}" AS TIMESTAMP) >= $start
            AND CAST("{feature_set.event_time}" AS TIMESTAMP) < $end
        ORDER BY event_time, entity
    """


def _checked(feature_set: FeatureSet, table: "pa.Table") -> "pd.DataFrame":
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in feature_set.columns:
        if column.type in ("int", "bool") and table[column.name].null_count:
            raise DataError(
                f"{feature_set.file}: columns.{column.name} is {column.type} and {table[column.name].null_count} rows "
                "are null: make it a float, or COALESCE in the SQL"
            )
    if table["entity"].null_count:
        raise DataError(f"{feature_set.file}: entity {feature_set.entity} is null: filter such rows in the SQL")
    counts = pc.value_counts(table["entity"].combine_chunks())
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise DataError(
            f"{feature_set.file}: entity {twice[0]['values']} has {twice[0]['counts']} rows known at the same instant: "
            "give the correction a later known_at, or make the entity unique"
        )
    stamp = pa.timestamp("us", "UTC")
    for name in ("event_time", "label_known_at"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(stamp))
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _utc(instant: datetime, name: str) -> datetime:
    """DuckDB compares plain timestamps: an instant without a zone would be anybody's guess."""
    if instant.tzinfo is None:
        raise DataError(f"{name} = {instant.isoformat()} has no time zone: use datetime(..., tzinfo=UTC)")
    return instant.astimezone(UTC).replace(tzinfo=None)


def _literal(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
