"""The probe: real rows in a package, and whether a server answers them as ONNX Runtime did."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from resources.errors import ModelNotReady, PackageRefused


def probe_request(probe: Mapping[str, Any]) -> dict[str, Any]:
    """The inference request that `probe.json` describes. `PackageRefused` when it would prove nothing."""
    try:
        inputs = [{"name": name, **tensor} for name, tensor in probe["inputs"].items()]
        rows = [len(tensor["data"]) for tensor in probe["outputs"].values()]
        float(probe["tolerance"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PackageRefused(f"probe.json needs inputs, outputs and tolerance: {error!r}") from error
    if not inputs or not rows or not min(rows):
        raise PackageRefused("probe.json holds no rows: it would prove nothing")
    return {"inputs": inputs}


def largest_difference(probe: Mapping[str, Any], answer: Mapping[str, Any], version: int) -> float:
    """Largest distance of the answer from the expected one; `ModelNotReady` when it is beyond the tolerance."""
    if str(answer.get("model_version")) != str(version):
        raise ModelNotReady(f"version {answer.get('model_version')} answered in place of {version}")
    answered = {output["name"]: output for output in answer["outputs"]}
    largest = 0.0
    for name, expected in probe["outputs"].items():
        if name not in answered:
            raise ModelNotReady(f"output {name!r} is missing from the answer: it has {sorted(answered)}")
        if list(answered[name]["shape"]) != list(expected["shape"]):
            raise ModelNotReady(f"output {name!r} has shape {answered[name]['shape']}, expected {expected['shape']}")
        largest = max(largest, _largest(answered[name]["data"], expected["data"]))
    if not largest <= probe["tolerance"]:
        raise ModelNotReady(
            f"answers differ from ONNX Runtime's by {largest:.3g}, allowed is {probe['tolerance']:g}: "
            "is the model in the package the one that was measured?"
        )
    return largest


def wrong_output(probe: Mapping[str, Any], name: str, shape: Sequence[int], data: Sequence[Any]) -> str:
    """What is wrong with one output of ONNX Runtime's own, '' when the probe expects just this. For publishers."""
    expected = probe["outputs"][name]
    if list(shape) != list(expected["shape"]) or len(data) != len(expected["data"]):
        return f"shape {expected['shape']} with {len(expected['data'])} values, ONNX Runtime answers {list(shape)}"
    largest = _largest(data, expected["data"])
    if largest <= probe["tolerance"]:
        return ""
    return f"differs from ONNX Runtime's answers by {largest:.3g}, allowed is {probe['tolerance']:g}"


def _largest(got: Sequence[Any], wanted: Sequence[Any]) -> float:
    return max(_distance(one, other) for one, other in zip(got, wanted, strict=True))


def _distance(got: Any, wanted: Any) -> float:
    if isinstance(got, int | float) and isinstance(wanted, int | float):
        if math.isnan(got) or math.isnan(wanted):
            return 0.0 if math.isnan(got) and math.isnan(wanted) else math.inf
        return abs(float(got) - float(wanted))
    return 0.0 if got == wanted else math.inf
