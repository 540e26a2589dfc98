"""Warm-up by real rows: typed values as the files that Triton reads, named by their content."""

import hashlib
import math
import struct
from pathlib import Path
from typing import Any

from resources.errors import PackageRefused

WARMUP = "warmup"
SIZES = {
    "TYPE_FP32": 4,
    "TYPE_FP64": 8,
    "TYPE_FP16": 2,
    "TYPE_INT64": 8,
    "TYPE_INT32": 4,
    "TYPE_BOOL": 1,
}


def check_warmup(config: Any, file: str, folder: Path) -> None:
    """Each sample fills every input with its type, from files that are there. `PackageRefused` names the field.

    config: a `ModelConfig`; file: its name, for the refusal; folder: where the values' files lie.
    """
    from tritonclient.grpc import model_config_pb2

    wanted = {tensor.name: tensor for tensor in config.input}
    for at, sample in enumerate(config.model_warmup):
        where = f"{file}: model_warmup[{at}]"
        if sample.batch_size > config.max_batch_size:
            raise PackageRefused(f"{where}.batch_size = {sample.batch_size}: max_batch_size is {config.max_batch_size}")
        if set(sample.inputs) != set(wanted):
            raise PackageRefused(f"{where}.inputs = {sorted(sample.inputs)}: the inputs are {sorted(wanted)}")
        for name, value in sorted(sample.inputs.items()):
            field, tensor = f"{where}.inputs.{name}", wanted[name]
            kind = model_config_pb2.DataType.Name(value.data_type)
            if value.data_type != tensor.data_type:
                told = model_config_pb2.DataType.Name(tensor.data_type)
                raise PackageRefused(f"{field}.data_type = {kind!r}: the input is {told}")
            if value.WhichOneof("input_data_type") == "input_data_file":
                _check_file(folder, value.input_data_file, f"{field}.input_data_file", kind, math.prod(value.dims))


def _check_file(folder: Path, name: str, field: str, kind: str, count: int) -> None:
    if not (folder / name).is_file():
        raise PackageRefused(f"{field} = {name!r}: {WARMUP}/{name} is missing")
    body = (folder / name).read_bytes()
    if hashlib.sha256(body).hexdigest()[:16] != name:
        raise PackageRefused(f"{field} = {name!r}: {WARMUP}/{name} holds other values than its name says")
    fits = _strings(body) == count if kind == "TYPE_STRING" else len(body) == count * SIZES.get(kind, 0)
    if not fits:
        raise PackageRefused(f"{field} = {name!r}: {len(body)} bytes are not {count} values of {kind}")


def _strings(body: bytes) -> int:
    """How many strings, each after its length in four bytes; -1 when they don't end where the file ends."""
    at = count = 0
    while at + 4 <= len(body):
        at += 4 + int(struct.unpack_from("<I", body, at)[0])
        count += 1
    return count if at == len(body) else -1
