"""Reading a feature set as of an instant: from sources in the store, or from a function; whole, or as a stream."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from resources.errors import DataError, NotFound, SpecError
from resources.features.callables import write_rows
from resources.features.query import PEERS, as_known, bounds, database, require, utc_schema, view
from resources.features.sets import FeatureSet
from resources.features.statement import refused
from resources.store import Store

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

# Rows that cross from DuckDB at once: of fifty columns some megabytes.
BATCH_ROWS = 16_384
GIVEN = "_given"


@dataclass(frozen=True, slots=True)
class Rows:
    """A feature set's rows as Arrow batches, to be read once. schema: entity, event_time, features, label, ..."""

    schema: "pa.Schema"
    batches: "Iterator[pa.RecordBatch]"


@contextmanager
def opened(feature_set: FeatureSet, store: Store, start: datetime, end: datetime, as_of: datetime) -> "Iterator[Rows]":
    """Rows with event time in [start, end), exactly as they were known at `as_of`, by event_time and entity.

    Columns: entity, event_time, the features, the label (float, by the set's own name for it), label_known_at. What
    became known after `as_of` does not enter: a later row is absent, a later correction is ignored, a later label and
    its instant are null. Memory does not grow with the rows.
    `SpecError` when the SQL fails or lacks a column, `DataError` when its rows break the schema, `NotFound` without
    a source.
    """
    asked = bounds(start, end, as_of)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="trimtab-sources-")))
        if feature_set.python:
            files = {GIVEN: [folder / f"{GIVEN}.parquet"]}
            write_rows(feature_set, start, end, as_of, *files[GIVEN])
        else:
            files = {source: _fetch(feature_set, store, source, folder) for source in feature_set.sources}
        connection = stack.enter_context(database(folder, [path for paths in files.values() for path in paths]))
        rows = _selected(feature_set, connection, files)
        with _told(feature_set):
            reader = connection.sql(as_known(feature_set, rows), params=asked).to_arrow_reader(BATCH_ROWS)
        yield Rows(utc_schema(reader.schema), _checked(feature_set, reader))


def read(feature_set: FeatureSet, store: Store, start: datetime, end: datetime, as_of: datetime) -> "pd.DataFrame":
    """The same rows as a frame, for as many as fit into memory."""
    import pyarrow as pa

    with opened(feature_set, store, start, end, as_of) as rows:
        frame: pd.DataFrame = pa.Table.from_batches(rows.batches, rows.schema).to_pandas()
    return frame


def sources_given(feature_set: FeatureSet, store: Store) -> None:
    """`SpecError` when the SQL names a column or table that the stored sources lack; reads no more than their heads."""
    if feature_set.python:
        return
    with TemporaryDirectory(prefix="trimtab-sources-") as name:
        files = {source: _fetch(feature_set, store, source, Path(name)) for source in feature_set.sources}
        with database(Path(name), [path for paths in files.values() for path in paths]) as connection:
            _selected(feature_set, connection, files)


def _selected(
    feature_set: FeatureSet, connection: "duckdb.DuckDBPyConnection", files: Mapping[str, Sequence[Path]]
) -> str:
    """The set's SELECT, over its sources as views; refused when it does not give what the set promises."""
    with _told(feature_set):
        for source, paths in files.items():
            view(connection, source, paths)
    rows = feature_set.sql.strip().rstrip(";") or f'SELECT * FROM "{GIVEN}"'
    with _told(feature_set, own_lines=True):
        require(feature_set, columns_of(connection, rows))
    return rows


def columns_of(connection: "duckdb.DuckDBPyConnection", rows: str) -> set[str]:
    """Names of what a SELECT gives."""
    return {row[0] for row in connection.execute(f"DESCRIBE {rows}").fetchall()}


def _fetch(feature_set: FeatureSet, store: Store, source: str, folder: Path) -> list[Path]:
    """The files of a source: raw/NAME.parquet, raw/NAME.csv, or all parts of one kind under raw/NAME/."""
    for kind in ("parquet", "csv"):
        path = folder / f"{source}.{kind}"
        try:
            store.fetch(f"raw/{source}.{kind}", path)
        except NotFound:
            continue
        return [path]
    keys = [key for key in store.keys(f"raw/{source}/") if key.endswith((".parquet", ".csv"))]
    if not keys:
        missing = f"raw/{source}.parquet: no such object, nor raw/{source}.csv, nor parts under raw/{source}/"
        raise NotFound(f"{missing}, and feature set {feature_set.name} reads it: put it there")
    if len({Path(key).suffix for key in keys}) > 1:
        raise DataError(f"raw/{source}/ holds both .parquet and .csv: write all parts as one of them")
    paths = [folder / f"{source}-{number}{Path(key).suffix}" for number, key in enumerate(keys)]
    for key, path in zip(keys, paths, strict=True):
        store.fetch(key, path)
    return paths


def _checked(feature_set: FeatureSet, reader: "pa.RecordBatchReader") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    schema = utc_schema(reader.schema)
    while True:
        with _told(feature_set):
            batch = next(reader, None)
        if batch is None:
            return
        _refuse(feature_set, batch)
        columns = [batch[name].cast(schema.field(name).type) for name in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _refuse(feature_set: FeatureSet, batch: "pa.RecordBatch") -> None:
    import pyarrow.compute as pc

    giver = "in the function" if feature_set.python else "in the SQL"
    for column in feature_set.columns:
        if column.type in ("int", "bool") and batch[column.name].null_count:
            raise DataError(
                f"{feature_set.file}: columns.{column.name} is {column.type} and {batch[column.name].null_count} rows "
                f"are null: make it a float, or fill it {giver}"
            )
    if batch["entity"].null_count:
        raise DataError(f"{feature_set.file}: entity {feature_set.entity} is null: filter such rows {giver}")
    twice = batch.filter(pc.greater(batch[PEERS], 1))
    if twice.num_rows:
        raise DataError(
            f"{feature_set.file}: entity {twice['entity'][0]} has {twice[PEERS][0]} rows known at the same instant: "
            "give the correction a later known_at, or make the entity unique"
        )


@contextmanager
def _told(feature_set: FeatureSet, own_lines: bool = False) -> Iterator[None]:
    """DuckDB's errors as ours: about the SQL, at the line it names if that counts the set's own, or about the rows."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise _ours(feature_set, error, own_lines) from error


def _ours(feature_set: FeatureSet, error: Any, own_lines: bool) -> SpecError | DataError:
    text = str(error)
    if "Out of Memory" in text or isinstance(error, OSError):
        return DataError(
            f"{feature_set.file}: {feature_set.name} cannot be read: {text}: give the temporary folder room"
        )
    if feature_set.python:
        return DataError(f"{feature_set.file}: python {feature_set.python} gave rows that DuckDB refuses: {text}")
    return refused(feature_set, text, own_lines)
