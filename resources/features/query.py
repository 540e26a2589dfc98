"""The bitemporal query, and the database it runs in."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from resources.errors import DataError
from resources.features.sets import FeatureSet

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# DuckDB spills to disk beyond it. With what Arrow and Parquet hold beside it, a snapshot of any size stays below 2 GB.
MEMORY_LIMIT = "700MB"
THREADS = 2
PEERS = "_peers"
_SQL_TYPES: Mapping[str, str] = {"string": "VARCHAR", "float": "DOUBLE", "int": "BIGINT", "bool": "BOOLEAN"}


@contextmanager
def database(folder: Path, files: Sequence[Path]) -> "Iterator[duckdb.DuckDBPyConnection]":
    """A DuckDB that reads these files and nothing else on this machine, and spills into `folder`."""
    import duckdb

    with duckdb.connect() as connection:
        allowed = ", ".join(quoted(str(path)) for path in files)
        connection.execute(
            # Instants with a zone become plain ones in the session's: the machine's own must not decide.
            "SET TimeZone = 'UTC'; SET preserve_insertion_order = false;"
            f"SET memory_limit = '{MEMORY_LIMIT}'; SET threads = {THREADS};"
            f"SET temp_directory = {quoted(str(folder / 'spill'))};"
            f"SET allowed_paths = [{allowed}]; SET enable_external_access = false"
        )
        yield connection


def view(connection: "duckdb.DuckDBPyConnection", source: str, files: Sequence[Path]) -> None:
    """A source as a view whose instants are plain TIMESTAMPs in UTC."""
    reader = "read_csv" if files[0].suffix == ".csv" else "read_parquet"
    named = ", ".join(quoted(str(path)) for path in files)
    scan = f"{reader}([{named}]{', union_by_name = true' if len(files) > 1 else ''})"
    columns = connection.execute(f"DESCRIBE FROM {scan}").fetchall()
    zoned = [f'CAST("{name}" AS TIMESTAMP) AS "{name}"' for name, kind, *_ in columns if kind.endswith("TIME ZONE")]
    replace = f" REPLACE ({', '.join(zoned)})" if zoned else ""
    connection.execute(f'CREATE VIEW "{source}" AS SELECT *{replace} FROM {scan}')


def require(feature_set: FeatureSet, given: set[str]) -> None:
    """`SpecError` for the first column that the set names and its rows lack."""
    roles = ("entity", "event_time", "known_at", "label", "label_known_at")
    wanted = {getattr(feature_set, role): role for role in roles}
    wanted |= {column.name: f"columns.{position}.name" for position, column in enumerate(feature_set.columns)}
    giver = "the function" if feature_set.python else "the SQL"
    for name, field in wanted.items():
        if name not in given:
            raise feature_set.flaw(field, name, f"{giver} does not give it, only {', '.join(sorted(given))}")


def as_known(feature_set: FeatureSet, rows: str) -> str:
    """The bitemporal query over `rows`, a SELECT. A correction is a later row of the same entity: the last one known
    by then is the row. `_peers` counts rows of an entity that became known at that same instant: one, or it's a flaw.
    A number that is none (NaN) is a missing one.

    The rows are run through twice, for the names of corrected entities are few and the rows are many: a window over
    whole rows would hold all of them at once.
    """
    features = ", ".join(f'{_cast(column.name, column.type)} AS "{column.name}"' for column in feature_set.columns)
    label = _cast(feature_set.label, "float")
    entity, known_at = f'"{feature_set.entity}"', f'"{feature_set.known_at}"'
    return f"""
        WITH known AS NOT MATERIALIZED (SELECT * FROM ({rows}) WHERE CAST({known_at} AS TIMESTAMP) <= $as_of),
        told AS (SELECT {entity} AS _entity, {known_at} AS _at, count(*) AS _rows FROM known GROUP BY ALL),
        corrected AS (
            SELECT _entity, max(_at) AS _last, arg_max(_rows, _at) AS {PEERS} FROM told
            GROUP BY _entity HAVING sum(_rows) > 1
        ), rows AS (
            SELECT *, CAST("{feature_set.label_known_at}" AS TIMESTAMP) <= $as_of AS _mature
            FROM known LEFT JOIN corrected ON {entity} = _entity WHERE _last IS NULL OR {known_at} = _last
        )
        SELECT CAST({entity} AS VARCHAR) AS entity,
            CAST("{feature_set.event_time}" AS TIMESTAMP) AS event_time, {features},
            CASE WHEN _mature THEN {label} END AS "{feature_set.label}",
            CASE WHEN _mature THEN CAST("{feature_set.label_known_at}" AS TIMESTAMP) END AS label_known_at,
            coalesce({PEERS}, 1) AS {PEERS}
        FROM rows WHERE CAST("{feature_set.event_time}" AS TIMESTAMP) >= $start
            AND CAST("{feature_set.event_time}" AS TIMESTAMP) < $end
        ORDER BY event_time, entity
    """


def bounds(start: datetime, end: datetime, as_of: datetime) -> dict[str, datetime]:
    """The query's parameters. DuckDB compares plain timestamps: without a zone one would be anybody's guess."""
    found = {}
    for name, instant in (("start", start), ("end", end), ("as_of", as_of)):
        if instant.tzinfo is None:
            raise DataError(f"{name} = {instant.isoformat()} has no time zone: use datetime(..., tzinfo=UTC)")
        found[name] = instant.astimezone(UTC).replace(tzinfo=None)
    return found


def quoted(text: str) -> str:
    """A string in SQL."""
    return "'" + text.replace("'", "''") + "'"


def _cast(name: str, kind: str) -> str:
    cast = f'CAST("{name}" AS {_SQL_TYPES[kind]})'
    return f"nullif({cast}, 'NaN'::DOUBLE)" if kind == "float" else cast


def utc_schema(schema: "pa.Schema") -> "pa.Schema":
    """The schema of a snapshot: instants in UTC, no helper column."""
    import pyarrow as pa

    stamp = pa.timestamp("us", "UTC")
    kept = [field for field in schema if field.name != PEERS]
    return pa.schema([f.with_type(stamp) if pa.types.is_timestamp(f.type) else f for f in kept])
