"""Envoy's messages as rows of the inference log. Pure: bytes in, values out."""

import binascii
import hashlib
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from pipelines.observer.envoy_messages import access_log_message
from resources import inference_protocol as protocol
from resources.envoy_config import CELL_HEADER, UNIT
from resources.envoy_fallback import DEGRADED
from resources.envoy_lua import ANSWER_BODY, BODY, LARGEST_COPY_BYTES, REQUEST_BODY, SIZE
from resources.errors import DataError
from resources.inference_protocol import Message, Tensor, Values
from resources.segments import ANSWER_COLUMNS, microseconds

_GRPC_UNKNOWN = 2


class Access(NamedTuple):
    """One request, in the order of the access columns."""

    request_id: str
    model: str
    event_us: int
    seen_us: int
    protocol: str
    pool: str
    code: int
    grpc_status: int
    ok: bool
    latency_ms: float
    attempts: int
    unit: str = ""
    cell: str = ""
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's rows. inputs: column name to n values; answers: (n,); keys: (n,)."""

    model: str
    request_id: str
    event_us: int
    seen_us: int
    version: str
    keys: tuple[str, ...]
    answers: np.ndarray[Any, np.dtype[np.float64]]
    inputs: dict[str, Values]

    @property
    def signature(self) -> tuple[tuple[str, str], ...]:
        """Answers of one signature share a table."""
        return tuple((name, "str" if isinstance(v, list) else v.dtype.str) for name, v in self.inputs.items())


def entries(message: bytes) -> Sequence[Any]:
    """The requests of one StreamAccessLogsMessage; `DataError` when it is none."""
    from google.protobuf.message import DecodeError

    try:
        return list(access_log_message(message).http_logs.log_entry)
    except DecodeError as error:
        raise DataError(f"not an access log message: {error}") from error


def access(entry: Any, event_time_header: str | None) -> Access:
    """The row of one request. event_time_header: honoured where given."""
    common, headers = entry.common_properties, entry.request.request_headers
    seen_us = common.start_time.seconds * 1_000_000 + common.start_time.nanos // 1_000
    is_grpc = entry.request.path.startswith("/inference.")
    code = entry.response.response_code.value
    status = _grpc_status(entry.response) if is_grpc else 0
    last = (
        common.time_to_last_downstream_tx_byte
        if common.HasField("time_to_last_downstream_tx_byte")
        else common.duration
    )
    return Access(
        request_id=entry.request.request_id,
        model=headers.get("x-model", ""),
        event_us=event_us(headers.get(event_time_header) if event_time_header else None, seen_us),
        seen_us=seen_us,
        protocol="grpc" if is_grpc else "http",
        # The pool that it was sent to first, whether that could be reached or not: its failures are its own.
        pool=common.upstream_cluster.rpartition("-")[0].partition("+")[0],
        code=code,
        grpc_status=status,
        ok=200 <= code < 300 and status == 0,
        latency_ms=last.seconds * 1e3 + last.nanos / 1e6,
        attempts=common.upstream_request_attempt_count,
        unit=unit_of(headers.get(UNIT, "")),
        cell=_cell(headers.get(CELL_HEADER, "")),
        degraded=entry.response.response_headers.get(DEGRADED, "") == "true",
    )


def unit_of(value: str) -> str:
    """16 digits that tell users apart and can't be turned back into the header; '' without one."""
    if value in ("", "-"):  # Envoy writes a dash for a header that is not there
        return ""
    return hashlib.blake2b(value.encode(), digest_size=8, person=b"trimtab unit").hexdigest()


def _cell(text: str) -> str:
    """A cell's number as it stands, for that is what the gateway's routes compare; '' for anything else."""
    return text if len(text) <= 6 and text.isdecimal() else ""


def _grpc_status(response: Any) -> int:
    """In the trailers, or in the headers of an answer without body; UNKNOWN where the stream broke before it."""
    text = response.response_trailers.get("grpc-status") or response.response_headers.get("grpc-status")
    return int(text) if text is not None and text.isdigit() else _GRPC_UNKNOWN


def event_us(text: str | None, otherwise_us: int) -> int:
    """Microseconds of an ISO 8601 instant with its zone; `otherwise_us` without one.

    >>> event_us("2013-01-01T00:00:01Z", 0) == 1356998401000000, event_us("yesterday", 7)
    (True, 7)
    """
    if not text:
        return otherwise_us
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return otherwise_us
    return max(microseconds(instant.astimezone(UTC)), 0) if instant.tzinfo else otherwise_us


def answer(entry: Any, row: Access) -> Answer | None:
    """What was asked and answered, None where it was not answered well; `DataError` when it cannot be read."""
    bodies = _bodies(entry)
    if not row.ok or ANSWER_BODY not in bodies:
        return None
    asked, answered = bodies[REQUEST_BODY], bodies[ANSWER_BODY]
    if row.protocol == "grpc":
        request, reply = protocol.grpc_request(asked), protocol.grpc_answer(answered)
    else:
        request = _http(protocol.http_request, asked, entry.request.request_headers)
        reply = _http(protocol.http_answer, answered, entry.response.response_headers)
    rows = _row_count(request.tensors)
    return Answer(
        model=row.model,
        request_id=row.request_id,
        event_us=row.event_us,
        seen_us=row.seen_us,
        # A copy answers under its original's version, but its answers are not that version's.
        version=f"{reply.version}-lite" if row.degraded else reply.version,
        keys=keys(request.id or row.request_id, rows),
        answers=positive_class(reply, rows),
        inputs={name: values for tensor in request.tensors for name, values in columns(tensor, rows)},
    )


def _bodies(entry: Any) -> dict[str, bytes]:
    """Where a body was kept, and the body."""
    found = {}
    for place in entry.common_properties.metadata.filter_metadata:
        if place.key in (REQUEST_BODY, ANSWER_BODY):
            fields = {field.key: field.value for field in place.value.fields}
            if BODY not in fields:
                size = int(fields[SIZE].number_value) if SIZE in fields else 0
                raise DataError(f"a body of {size} bytes: served, but above {LARGEST_COPY_BYTES} none is copied")
            try:
                found[place.key] = b64decode(fields[BODY].string_value, validate=True)
            except binascii.Error as error:
                raise DataError(f"{place.key} is no base64: {error}") from error
    if ANSWER_BODY in found and REQUEST_BODY not in found:
        raise DataError("an answer without its request")
    return found


def _http(decode: Callable[[bytes, int | None, str], Message], body: bytes, headers: Any) -> Message:
    # Envoy writes a dash for a header that is not there.
    length, encoding = (
        headers.get(name, "").strip("-") for name in ("inference-header-content-length", "content-encoding")
    )
    if length and not length.isdigit():
        raise DataError(f"inference-header-content-length {length!r} is no number")
    return decode(body, int(length) if length else None, encoding)


def _row_count(tensors: Sequence[Tensor]) -> int:
    counts = {tensor.shape[0] if tensor.shape else 1 for tensor in tensors}
    if len(counts) != 1:
        raise DataError(f"inputs of {sorted(counts)} rows in one request")
    return counts.pop()


def keys(id_: str, rows: int) -> tuple[str, ...]:
    """The join keys of a batch: its id, for several rows the ids it lists with commas, else id#row.

    >>> keys("a", 1), keys("a,b", 2), keys("a", 2)
    (('a',), ('a', 'b'), ('a#0', 'a#1'))
    """
    if rows == 1:
        return (id_,)
    parts = tuple(id_.split(","))
    return parts if len(parts) == rows else tuple(f"{id_}#{row}" for row in range(rows))


def positive_class(reply: Message, rows: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The last column of the first FP32 output, (rows,): NaN when none was asked for."""
    for tensor in reply.tensors:
        if tensor.datatype == "FP32" and not isinstance(tensor.values, list):
            if rows == 0 or len(tensor.values) % rows:
                raise DataError(f"output {tensor.name} of shape {list(tensor.shape)} for {rows} rows")
            return tensor.values.reshape(rows, -1)[:, -1].astype(np.float64)
    return np.full(rows, np.nan)


def columns(tensor: Tensor, rows: int) -> list[tuple[str, Values]]:
    """A column for each input of width 1; a wider input gives name_0, name_1 and so on."""
    name = f"input_{tensor.name}" if tensor.name in ANSWER_COLUMNS else tensor.name
    width = len(tensor.values) // rows if rows else 0
    if width == 1:
        return [(name, tensor.values)]
    return [(f"{name}_{at}", tensor.values[at::width]) for at in range(width)]
