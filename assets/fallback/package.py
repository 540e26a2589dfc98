"""The copy's package: its original's, with another model inside and the answers that this one gives. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from assets.scoring import score

NOT_LISTED = ("manifest.json", "model.sig")


def probe_rows(probe: Mapping[str, Any]) -> pd.DataFrame:
    """The probe's rows as a frame, (n, features)."""
    return pd.DataFrame({name: tensor["data"] for name, tensor in probe["inputs"].items()})


def copy_files(
    files: Mapping[str, bytes], version: int, onnx: bytes, features: Mapping[str, str], trees: int
) -> dict[str, bytes]:
    """Every file of the copy but the signature. files: its original's, by name; features: type by input."""
    probe = json.loads(files["probe.json"])
    answers = score(onnx, probe_rows(probe), features)
    data = [value for p in answers for value in (1.0 - float(np.float64(p)), float(p))]
    probe["outputs"]["probabilities"]["data"] = data
    made = {name: body for name, body in files.items() if name not in NOT_LISTED}
    made |= {f"{version}/model.onnx": onnx, "probe.json": _json(probe)}
    manifest = json.loads(files["manifest.json"])
    manifest["fallback"] = {"trees": trees, "of": hashlib.sha256(files[f"{version}/model.onnx"]).hexdigest()}
    manifest["files"] = {name: hashlib.sha256(body).hexdigest() for name, body in sorted(made.items())}
    return {**made, "manifest.json": _json(manifest)}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
