"""The Open Inference Protocol v2 as it goes over the wire, read into tensors. Pure: bytes in, values out.

HTTP bodies are JSON, or JSON followed by binary tensors when the header `inference-header-content-length` says how
long the JSON is. A gRPC body is a 5-byte prefix and a protobuf. Whatever is not that raises `DataError`.
Source: https://github.com/kserve/open-inference-protocol and Triton's extension_binary_data.md.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resources.errors import DataError

Values = npt.NDArray[Any] | list[str]

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_TYPED_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """values: flat, in row-major order; strings as a list of str, all else as an array of the tensor's type."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Values


@dataclass(frozen=True, slots=True)
class Message:
    """A request (tensors: its inputs) or an answer (tensors: its outputs; version is set)."""

    model: str
    version: str
    id: str
    tensors: tuple[Tensor, ...]


def grpc_request(body: bytes) -> Message:
    """The gRPC body of a ModelInfer request."""
    from tritonclient.grpc import service_pb2

    return _message(service_pb2.ModelInferRequest, body, lambda m: (m.inputs, m.raw_input_contents))


def grpc_answer(body: bytes) -> Message:
    """The gRPC body of a ModelInfer answer."""
    from tritonclient.grpc import service_pb2

    return _message(service_pb2.ModelInferResponse, body, lambda m: (m.outputs, m.raw_output_contents))


def http_request(body: bytes, header_length: int | None = None, encoding: str = "") -> Message:
    """The body of POST .../infer. header_length: `inference-header-content-length`; encoding: `content-encoding`."""
    return _http(body, header_length, encoding, "inputs")


def http_answer(body: bytes, header_length: int | None = None, encoding: str = "") -> Message:
    """The body of its answer, which names model and version."""
    return _http(body, header_length, encoding, "outputs")


def decompressed(body: bytes, encoding: str) -> bytes:
    """The body as it was before `content-encoding` gzip or deflate."""
    try:
        match encoding.strip().lower():
            case "" | "identity":
                return body
            case "gzip" | "x-gzip":
                return gzip.decompress(body)
            case "deflate":
                return zlib.decompress(body)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"body is not {encoding}: {error}") from error
    raise DataError(f"content-encoding {encoding!r} is not read: send gzip, deflate or none")


def _message(kind: Any, body: bytes, parts: Callable[[Any], tuple[Iterable[Any], Sequence[bytes]]]) -> Message:
    from google.protobuf.message import DecodeError

    if len(body) < 5 or len(body) - 5 != int.from_bytes(body[1:5], "big"):
        raise DataError(f"gRPC body of {len(body)} bytes is not one whole message")
    content = body[5:]
    if body[0]:
        content = decompressed(content, "gzip" if content[:2] == b"\x1f\x8b" else "deflate")
    try:
        message = kind.FromString(content)
    except DecodeError as error:
        raise DataError(f"not a v2 inference message: {error}") from error
    tensors, raws = parts(message)
    return Message(message.model_name, message.model_version, message.id, tuple(_grpc_tensors(tensors, raws)))


def _grpc_tensors(tensors: Iterable[Any], raws: Sequence[bytes]) -> Iterable[Tensor]:
    # Raw contents stand in the order of the tensors that have no typed contents.
    remaining = iter(raws)
    for tensor in tensors:
        shape = tuple(tensor.shape)
        if tensor.HasField("contents"):
            field = _TYPED_CONTENTS.get(tensor.datatype)
            if field is None:
                raise DataError(f"{tensor.name}: {tensor.datatype} has no typed contents")
            values = _typed(tensor.datatype, getattr(tensor.contents, field))
        else:
            raw = next(remaining, None)
            if raw is None:
                raise DataError(f"{tensor.name}: no contents: shared memory is not seen by copies")
            values = _from_raw(tensor.name, tensor.datatype, raw)
        yield _checked(tensor.name, tensor.datatype, shape, values)


def _http(body: bytes, header_length: int | None, encoding: str, part: str) -> Message:
    body = decompressed(body, encoding)
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise DataError(f"inference-header-content-length {length} of a body of {len(body)} bytes")
    try:
        document = json.loads(body[:length])
        tensors, rest = [], body[length:]
        for entry in document[part]:
            size = entry.get("parameters", {}).get("binary_data_size")
            tensors.append(_http_tensor(entry, rest, size))
            rest = rest[size or 0 :]
        model, version, id_ = (str(document.get(key) or "") for key in ("model_name", "model_version", "id"))
        return Message(model, version, id_, tuple(tensors))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(f"not a v2 inference body: {error!r}") from error


def _http_tensor(entry: Mapping[str, Any], rest: bytes, size: int | None) -> Tensor:
    name, datatype = entry["name"], entry["datatype"]
    shape = tuple(int(side) for side in entry["shape"])
    if size is None:
        values = _typed(datatype, _flat(entry["data"]))
    elif 0 <= size <= len(rest):
        values = _from_raw(name, datatype, rest[:size])
    else:
        raise DataError(f"{name}: {size} binary bytes announced, {len(rest)} there")
    return _checked(name, datatype, shape, values)


def _flat(data: Any) -> list[Any]:
    if isinstance(data, list):
        return [value for item in data for value in _flat(item)] if data and isinstance(data[0], list) else data
    return [data]


def _typed(datatype: str, values: Iterable[Any]) -> Values:
    if datatype == "BYTES":
        return [_text(value) if isinstance(value, bytes) else str(value) for value in values]
    if datatype == "BF16":
        return np.array(list(values), dtype=np.float32)
    return np.array(list(values), dtype=_dtype(datatype))


def _from_raw(name: str, datatype: str, raw: bytes) -> Values:
    if datatype == "BYTES":
        return _strings(name, raw)
    if datatype == "BF16":
        return (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    try:
        return np.frombuffer(raw, dtype=_dtype(datatype))
    except ValueError as error:
        raise DataError(f"{name}: {len(raw)} bytes are no {datatype} tensor") from error


def _strings(name: str, raw: bytes) -> list[str]:
    values, at = [], 0
    while at < len(raw):
        if at + 4 > len(raw):
            raise DataError(f"{name}: a string's length is cut off")
        (length,) = struct.unpack_from("<I", raw, at)
        if at + 4 + length > len(raw):
            raise DataError(f"{name}: a string of {length} bytes is cut off")
        values.append(_text(raw[at + 4 : at + 4 + length]))
        at += 4 + length
    return values


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _dtype(datatype: str) -> np.dtype[Any]:
    try:
        return _DTYPES[datatype]
    except KeyError:
        raise DataError(f"datatype {datatype!r} is not one of the protocol's") from None


def _checked(name: str, datatype: str, shape: tuple[int, ...], values: Values) -> Tensor:
    expected = 1
    for side in shape:
        expected *= side
    if len(values) != expected:
        raise DataError(f"{name}: {len(values)} values for shape {list(shape)}")
    return Tensor(name, datatype, shape, values)
