"""The files of a package, and the probe: real rows whose answers every replica must reproduce."""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assets.scoring import tensors

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

WIRE_TYPES = {"string": "BYTES", "float": "FP32", "int": "INT64", "bool": "BOOL"}


def build_probe(
    frame: "pd.DataFrame", features: Mapping[str, str], answers: "np.ndarray", tolerance: float = 1e-5
) -> dict[str, Any]:
    """frame: n rows of features; answers: (n,) probability of class 1 as ONNX Runtime gave them for these rows."""
    if len(frame) != len(answers) or not len(frame):
        raise ValueError(f"{len(frame)} rows and {len(answers)} answers: a probe needs as many, and at least one")
    rows = len(frame)
    inputs = {
        name: {"datatype": WIRE_TYPES[features[name]], "shape": [rows, 1], "data": column.ravel().tolist()}
        for name, column in tensors(frame, features).items()
    }
    pairs = [value for p in answers for value in (1.0 - float(p), float(p))]
    outputs = {"probabilities": {"datatype": "FP32", "shape": [rows, 2], "data": pairs}}
    return {"inputs": inputs, "outputs": outputs, "tolerance": tolerance}


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
    """Every file but the signature, by its name in the package. config, device_configs: protobuf text."""
    files = {
        "config.pbtxt": config.encode(),
        **{f"configs/{device}.pbtxt": text.encode() for device, text in sorted((device_configs or {}).items())},
        f"{version}/model.onnx": onnx,
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
