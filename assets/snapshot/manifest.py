"""A snapshot's file, written while its rows stream by, and the manifest that says what it holds."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

# Part of the format: another size gives other bytes, and so another digest, to the same rows.
ROW_GROUP_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class Contents:
    """What was written. nulls and infinite: rows by column; labels: rows by value, known ones only; newest: latest
    event time, None without a row."""

    digest: str
    rows: int
    size_bytes: int
    schema: Mapping[str, str]
    nulls: Mapping[str, int]
    infinite: Mapping[str, int]
    labels: Mapping[float, int]
    newest: datetime | None


def write_snapshot(batches: "Iterable[pa.RecordBatch]", schema: "pa.Schema", label: str, path: Path) -> Contents:
    """Rows into a Parquet file, in their order. The same rows give the same bytes however they are cut into batches.

    Memory holds one row group, whatever the number of rows.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows, newest = 0, None
    nulls, infinite, labels = Counter(dict.fromkeys(schema.names, 0)), Counter[str](), Counter[float]()
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, write_statistics=True) as writer:
        for group in _groups(batches, schema):
            writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
            rows += group.num_rows
            latest = pc.max(group["event_time"]).as_py()
            newest = latest if newest is None or latest > newest else newest
            _count(group, label, nulls, infinite, labels)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    kinds = {field.name: str(field.type) for field in schema}
    return Contents(digest, rows, path.stat().st_size, kinds, nulls, infinite, labels, newest)


def manifest(
    contents: Contents, feature_set: str, version: str, start: datetime, end: datetime, as_of: datetime, label: str
) -> dict[str, Any]:
    """What the file holds, as plain JSON values. Null rates are shares in [0, 1]; labels counts each known value."""
    rows = contents.rows
    return {
        "digest": contents.digest,
        "rows": rows,
        "bytes": contents.size_bytes,
        "schema": dict(contents.schema),
        "null_rates": {name: count / rows if rows else 0.0 for name, count in contents.nulls.items()},
        "infinite": {name: count for name, count in contents.infinite.items() if count},
        "start": start.isoformat(),
        "end": end.isoformat(),
        "as_of": as_of.isoformat(),
        "feature_set": feature_set,
        "version": version,
        "label": label,
        "labels": {f"{value:g}": count for value, count in sorted(contents.labels.items())},
        "unlabelled": contents.nulls[label],
    }


def _groups(batches: "Iterable[pa.RecordBatch]", schema: "pa.Schema") -> "Iterator[pa.Table]":
    """Row groups of one size, the last shorter, each column in one piece."""
    import pyarrow as pa

    held = schema.empty_table()
    for batch in batches:
        held = pa.concat_tables([held, pa.Table.from_batches([batch], schema)])
        while held.num_rows >= ROW_GROUP_ROWS:
            yield held.slice(0, ROW_GROUP_ROWS).combine_chunks()
            held = held.slice(ROW_GROUP_ROWS)
    if held.num_rows:
        yield held.combine_chunks()


def _count(
    group: "pa.Table", label: str, nulls: "Counter[str]", infinite: "Counter[str]", labels: "Counter[float]"
) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in group.column_names:
        nulls[name] += group[name].null_count
        if pa.types.is_floating(group[name].type):
            infinite[name] += pc.sum(pc.is_inf(group[name])).as_py() or 0
    for item in pc.value_counts(group[label].combine_chunks()).to_pylist():
        if item["values"] is not None:
            labels[item["values"]] += item["counts"]
