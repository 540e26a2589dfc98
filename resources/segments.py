"""The inference log's segments: their columns, their keys, their bytes. The observer writes them, `traffic.py` reads.

A segment is immutable Parquet. Its key says when it was last seen and which event times it spans, so a reader
fetches only what it needs.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from resources.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

ACCESS, ANSWERS = "access", "answers"

# Columns that every answers segment has; after them comes one for each named input.
ANSWER_COLUMNS = ("request_id", "event_time", "seen_at", "key", "version", "answer", "row")
LABEL_COLUMNS = ("key", "label", "known_at")


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """`log/<model>/<kind>/<seen_us>-<event_min_s>-<event_max_s>-<id>.parquet`; seen_us is its last row's."""

    model: str
    kind: str
    seen_us: int
    event_min_s: int
    event_max_s: int
    id: str

    def __str__(self) -> str:
        times = f"{self.seen_us:016d}-{self.event_min_s}-{self.event_max_s}"
        return f"{prefix(self.model, self.kind)}{times}-{self.id}.parquet"

    @classmethod
    def parse(cls, key: str) -> "SegmentKey":
        """`DataError` for a key of another form."""
        try:
            _, model, kind, name = key.split("/")
            seen, first, last, id8 = name.removesuffix(".parquet").split("-")
            return cls(model, kind, int(seen), int(first), int(last), id8)
        except ValueError as error:
            raise DataError(f"{key}: not a segment of the inference log") from error

    def overlaps(self, start: datetime, end: datetime) -> bool:
        """Whether it may hold events of [start, end)."""
        return self.event_max_s >= start.timestamp() and self.event_min_s < end.timestamp()


def prefix(model: str, kind: str) -> str:
    return f"log/{model}/{kind}/"


def since_key(model: str, kind: str, since: datetime) -> str:
    """Every segment with a row seen at or after `since` has a later key than this."""
    return f"{prefix(model, kind)}{max(microseconds(since), 0):016d}"


def labels_prefix(model: str) -> str:
    return f"labels/{model}/"


def labels_key(model: str, known_max_s: int, body: bytes) -> str:
    return f"{labels_prefix(model)}{known_max_s:012d}-{digest8(body)}.parquet"


def digest8(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:8]


def microseconds(instant: datetime) -> int:
    delta = instant - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def access_schema() -> "pa.Schema":
    """One row a request; event_time and seen_at are when it arrived, event_time by its header where that counts.

    pool: the one it was sent to; ok: what the client got. attempts: how often it was sent on; an answer that is ok
    after two came from a second try, during a rollout in the other pool. unit: hash of the header by which the model's
    split is sticky, else ''. cell: of the feature space, by the request's header, '' without one. degraded: answered
    by a cheaper copy. Segments of before have null in the last four.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("request_id", pa.string()),
            ("model", pa.string()),
            ("event_time", _time()),
            ("seen_at", _time()),
            ("protocol", pa.string()),
            ("pool", pa.string()),
            ("code", pa.int32()),
            ("grpc_status", pa.int32()),
            ("ok", pa.bool_()),
            ("latency_ms", pa.float64()),
            ("attempts", pa.int32()),
            ("unit", pa.string()),
            ("cell", pa.string()),
            ("degraded", pa.bool_()),
        ]
    )


def answers_schema() -> "pa.Schema":
    """One row of a batch; `answer` is the last column of the first FP32 output. Inputs' columns follow."""
    import pyarrow as pa

    types = (pa.string(), _time(), _time(), pa.string(), pa.string(), pa.float64(), pa.int32())
    return pa.schema(list(zip(ANSWER_COLUMNS, types, strict=True)))


def labels_schema() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([("key", pa.string()), ("label", pa.float64()), ("known_at", _time())])


def to_bytes(table: "pa.Table") -> bytes:
    """Parquet with zstd; the same table always gives the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def from_bytes(body: bytes, key: str) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(pa.BufferReader(body))
    except pa.ArrowException as error:
        raise DataError(f"{key}: not Parquet: {error}") from error


def segment(model: str, kind: str, table: "pa.Table") -> tuple[str, bytes]:
    """The key and the bytes of a table with rows. Written twice it is one object: the same table, the same key."""
    body = to_bytes(table)
    events, seen = (_microseconds(table.column(name)) for name in ("event_time", "seen_at"))
    key = SegmentKey(model, kind, max(seen), min(events) // 1_000_000, -(-max(events) // 1_000_000), digest8(body))
    return str(key), body


def _microseconds(column: Any) -> Sequence[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = pc.min_max(column.cast(pa.int64())).as_py()
    return (bounds["min"], bounds["max"])


def _time() -> Any:
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC")
