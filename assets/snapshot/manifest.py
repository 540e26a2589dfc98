"""A snapshot's bytes, and the manifest that says what they hold."""

import hashlib
import io
from datetime import datetime
from typing import Any

import pandas as pd


def snapshot_parquet(frame: pd.DataFrame) -> bytes:
    """Parquet bytes of the rows in their order, without an index. The same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    # pandas' own metadata holds library versions, and an all-null object column has no type of its own.
    fields = [pa.field(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in table.schema]
    table = table.cast(pa.schema(fields))
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=3, write_statistics=True)
    return sink.getvalue()


def manifest(
    frame: pd.DataFrame,
    body: bytes,
    feature_set: str,
    version: str,
    start: datetime,
    end: datetime,
    as_of: datetime,
    label: str,
) -> dict[str, Any]:
    """What lies in `body`, as plain JSON values. Null rates are shares in [0, 1]; labels counts each known value."""
    known = frame[label].dropna()
    return {
        "digest": hashlib.sha256(body).hexdigest(),
        "rows": len(frame),
        "schema": {str(name): str(dtype) for name, dtype in frame.dtypes.items()},
        "null_rates": {str(name): float(column.isna().mean()) if len(frame) else 0.0 for name, column in frame.items()},
        "start": start.isoformat(),
        "end": end.isoformat(),
        "as_of": as_of.isoformat(),
        "feature_set": feature_set,
        "version": version,
        "label": label,
        "labels": {f"{value:g}": int(count) for value, count in known.value_counts().sort_index().items()},
        "unlabelled": int(frame[label].isna().sum()),
    }
