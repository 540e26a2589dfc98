"""What a package holds, before it is published: configuration, warm-up and probe beside its ONNX.

No server is started. Each refusal names file, field, value and remedy, as Triton would not: it loads a version whose
folder is missing with a 200, and tells of a wrong type only once a replica has tried.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from resources.errors import PackageRefused
from resources.package_config import TRITON_TYPES, Refusal, Signature, Tensor, check_config, read_config
from resources.package_warmup import WARMUP, check_warmup
from resources.probe import probe_request, wrong_output

WIRE_TYPES = {name: name.removeprefix("TYPE_") for name in TRITON_TYPES.values()} | {"TYPE_STRING": "BYTES"}
NUMPY_TYPES = {"BYTES": "object", "FP32": "float32", "FP64": "float64", "FP16": "float16", "INT64": "int64"}
NUMPY_TYPES |= {"INT32": "int32", "BOOL": "bool"}


def check_content(folder: Path, model: str, version: int) -> None:
    """Configurations, warm-up and probe fit the ONNX, and the ONNX answers the probe. `PackageRefused` names what not.

    folder: a package whose layout holds already. Costs one load of the model by ONNX Runtime.
    """
    _check_digests(folder)
    session = _session(folder / str(version) / "model.onnx", f"{version}/model.onnx")
    signature = Signature(_tensors(session.get_inputs()), _tensors(session.get_outputs()))
    for file in ("config.pbtxt", *sorted(p.relative_to(folder).as_posix() for p in folder.glob("configs/*.pbtxt"))):
        config = read_config((folder / file).read_text(errors="replace"), file)
        check_config(config, file, signature, model, version)
        check_warmup(config, file, folder / WARMUP)
    _check_probe(folder, session, signature)


def _check_digests(folder: Path) -> None:
    listed = json.loads((folder / "manifest.json").read_bytes()).get("files", {})
    if not isinstance(listed, dict):
        raise PackageRefused(f"manifest.json: files = {listed!r}: has to map each file to its SHA-256")
    for name, digest in sorted(listed.items()):
        file = folder / name
        if not file.is_file():
            raise PackageRefused(f"{name} is missing, manifest.json lists it")
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise PackageRefused(f"{name} is not what manifest.json lists: build the package again")


def _session(file: Path, name: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library has no common base for what it raises
        raise PackageRefused(f"{name}: ONNX Runtime can't load it: {error}") from error


def _tensors(items: list[Any]) -> dict[str, Tensor]:
    return {
        item.name: Tensor(item.type, tuple(size if isinstance(size, int) else None for size in item.shape))
        for item in items
    }


def _check_probe(folder: Path, session: Any, signature: Signature) -> None:
    """The probe asks for every input by its type, and the ONNX answers what it expects."""
    import numpy as np

    try:
        probe = json.loads((folder / "probe.json").read_bytes())
    except ValueError as error:
        raise PackageRefused(f"probe.json is not JSON: {error}") from error
    asked, refuse, feed = probe_request(probe)["inputs"], Refusal("probe.json"), {}
    for tensor in asked:
        name, datatype = tensor["name"], tensor["datatype"]
        if name not in signature.inputs:
            refuse(f"inputs.{name}", name, f"the ONNX has no such input, it has {sorted(signature.inputs)}")
        wanted = WIRE_TYPES.get(TRITON_TYPES.get(signature.inputs[name].type, ""), "")
        if datatype != wanted:
            refuse(f"inputs.{name}.datatype", datatype, f"the ONNX's {name} is {wanted} on the wire")
        try:
            feed[name] = np.array(tensor["data"], dtype=NUMPY_TYPES[datatype]).reshape(tensor["shape"])
        except (ValueError, TypeError, OverflowError) as error:
            refuse(f"inputs.{name}.data", tensor["shape"], str(error))
    missing = sorted(set(signature.inputs) - set(feed))
    if missing:
        refuse("inputs", sorted(feed), f"the ONNX also needs {', '.join(missing)}")
    unknown = sorted(set(probe["outputs"]) - set(signature.outputs))
    if unknown:
        refuse("outputs", unknown[0], f"the ONNX has no such output, it has {sorted(signature.outputs)}")
    try:
        answers = session.run(sorted(probe["outputs"]), feed)
    except Exception as error:  # as above
        raise PackageRefused(f"probe.json: ONNX Runtime can't answer its rows: {error}") from error
    for name, answer in zip(sorted(probe["outputs"]), answers, strict=True):
        wrong = wrong_output(probe, name, list(answer.shape), answer.ravel().tolist())
        if wrong:
            refuse(f"outputs.{name}", "as expected", wrong)
