"""The files of a package, the probe, and the warm-up: real rows whose answers every replica must reproduce."""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from assets.scoring import tensors
from assets.task import OUTPUTS, Task, size

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

WIRE_TYPES = {"string": "BYTES", "float": "FP32", "int": "INT64", "bool": "BOOL"}
# By type on the wire: what the configuration calls it, and how a value is packed. Strings carry their length.
_PACKED = {"FP32": ("TYPE_FP32", "<f"), "INT64": ("TYPE_INT64", "<q"), "BOOL": ("TYPE_BOOL", "<?")}
WARMUP_ROWS = 4


def build_probe(
    frame: "pd.DataFrame",
    features: Mapping[str, str],
    answers: "np.ndarray",
    tolerance: float = 1e-5,
    task: Task = "binary",
) -> dict[str, Any]:
    """frame: n rows of features; answers: (n,) as ONNX Runtime gave them for these rows.

    tolerance: largest difference of a chance; of numbers that go beyond 1, in parts of the largest.
    """
    if len(frame) != len(answers) or not len(frame):
        raise ValueError(f"{len(frame)} rows and {len(answers)} answers: a probe needs as many, and at least one")
    rows = len(frame)
    inputs = {
        name: {"datatype": WIRE_TYPES[features[name]], "shape": [rows, 1], "data": column.ravel().tolist()}
        for name, column in tensors(frame, features).items()
    }
    name, width = OUTPUTS[task]
    data = [value for a in answers for value in (1.0 - float(a), float(a))[-width:]]
    outputs = {name: {"datatype": "FP32", "shape": [rows, width], "data": data}}
    return {"inputs": inputs, "outputs": outputs, "tolerance": tolerance * size(answers)}


def warmup_samples(probe: Mapping[str, Any], rows: int = WARMUP_ROWS) -> list[dict[str, Any]]:
    """`model_warmup` of a configuration: the probe's first rows, one a sample, their values in `warmup_files`.

    Every instance answers them before it counts as ready: a first request costs tens of milliseconds otherwise. Real
    rows take the paths that requests take; zeros would be one path, and empty strings an unknown category.
    """
    return [
        {
            "name": f"row {row}",
            "batch_size": 1,
            "count": 1,
            "inputs": {
                name: {"data_type": data_type, "dims": [1], "input_data_file": _warmup_name(body)}
                for name, data_type, body in _warmup_values(probe, row)
            },
        }
        for row in range(_warmup_rows(probe, rows))
    ]


def warmup_files(probe: Mapping[str, Any], rows: int = WARMUP_ROWS) -> dict[str, bytes]:
    """The values of `warmup_samples` by their names in the package; equal values are one file."""
    return {
        f"warmup/{_warmup_name(body)}": body
        for row in range(_warmup_rows(probe, rows))
        for _, _, body in _warmup_values(probe, row)
    }


def _warmup_rows(probe: Mapping[str, Any], rows: int) -> int:
    return min(rows, *(int(tensor["shape"][0]) for tensor in probe["inputs"].values()))


def _warmup_values(probe: Mapping[str, Any], row: int) -> Iterator[tuple[str, str, bytes]]:
    for name, tensor in probe["inputs"].items():
        value = tensor["data"][row]
        if tensor["datatype"] == "BYTES":
            text = str(value).encode()
            yield name, "TYPE_STRING", struct.pack("<I", len(text)) + text
        else:
            data_type, form = _PACKED[tensor["datatype"]]
            yield name, data_type, struct.pack(form, value)


def _warmup_name(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def package_files(
    model: str,
    version: int,
    onnx: bytes,
    config: str,
    probe: Mapping[str, Any],
    *,
    snapshot_digest: str,
    mlflow_run_id: str,
    profile: Mapping[str, Any],
    device_configs: Mapping[str, str] | None = None,
) -> dict[str, bytes]:
    """Every file but the signature, by its name in the package.

    config, device_configs: protobuf text, whose `model_warmup` is `warmup_samples` of the same probe.
    """
    files = {
        "config.pbtxt": config.encode(),
        **{f"configs/{device}.pbtxt": text.encode() for device, text in sorted((device_configs or {}).items())},
        f"{version}/model.onnx": onnx,
        **warmup_files(probe),
        "probe.json": _json(probe),
    }
    manifest = {
        "model": model,
        "version": version,
        "mlflow_run_id": mlflow_run_id,
        "snapshot_digest": snapshot_digest,
        "profile": dict(profile),
        "files": {name: hashlib.sha256(body).hexdigest() for name, body in sorted(files.items())},
    }
    return {**files, "manifest.json": _json(manifest)}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
