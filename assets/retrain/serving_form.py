"""What serving reads: the ONNX versions a package may use, and the refusal of a model that has no such form."""

from collections.abc import Mapping
from typing import Any

from assets.retrain.one_sum import one_sum

# What conversions aim at: onnxmltools converts LightGBM up to opset 15; trees are in the ML domain's version 3.
OPSETS = {"": 15, "ai.onnx.ml": 3}
# Triton 24.10 carries ONNX Runtime 1.19, which reads nothing newer and no other domain.
MAX_OPSETS = {"": 21, "ai.onnx.ml": 5}
MAX_IR_VERSION = 10


class NotConvertible(ValueError):
    """The estimator has no ONNX form that serving can load. Says why and what to fit instead."""


def finished(model: Any, output: str = "probabilities") -> bytes:
    """The bytes of a converted estimator with its one output. `NotConvertible` names what is off.

    model: an `onnx.ModelProto`. The same model gives the same bytes.
    """
    import onnx

    outputs = [item for item in model.graph.output if item.name == output]
    if not outputs:
        names = [item.name for item in model.graph.output]
        raise NotConvertible(f"the converted model gives {names}, not {output}: fit an estimator of the spec's task")
    # The converted label has a wrong shape, and nobody asks for it.
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    one_sum(model)
    # skl2onnx keeps them in a set: their order would differ from process to process, and so would the digest.
    opsets = sorted(model.opset_import, key=lambda item: item.domain)
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    _readable(model.ir_version, {item.domain: item.version for item in model.opset_import})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def _readable(ir_version: int, opsets: Mapping[str, int]) -> None:
    if ir_version > MAX_IR_VERSION:
        raise NotConvertible(
            f"IR version {ir_version} is newer than {MAX_IR_VERSION}, which serving reads: fit a model of another "
            "kind, or convert with an older onnx"
        )
    for domain, version in opsets.items():
        newest = MAX_OPSETS.get(domain)
        if newest is None or version > newest:
            reads = "none of it" if newest is None else f"up to {newest}"
            raise NotConvertible(
                f"opset {version} of {domain or 'ai.onnx'} is used, and serving reads {reads}: fit a model of other "
                "parts"
            )


def first_line(error: BaseException) -> str:
    """An exporter's refusal without its pages of advice."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


def tensor(kind: str) -> Any:
    """skl2onnx's type of one named input: a column of this feature type, shape (n, 1)."""
    from skl2onnx.common import data_types

    kinds = {
        "string": data_types.StringTensorType,
        "float": data_types.FloatTensorType,
        "int": data_types.Int64TensorType,
        "bool": data_types.BooleanTensorType,
    }
    return kinds[kind]([None, 1])
