"""Ways to spoil a good model for the demo of the canary. Nothing of the product makes or expects such models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Each answer waits this long for others to share its batch: a misconfiguration that costs no core.
QUEUE_DELAY_US = 80_000
KINDS = ("slow", "errors", "wrong", "crash", "split")


@dataclass(frozen=True, slots=True)
class Damaged:
    """registered: what MLflow is told it is; packaged: what its package really holds; choice: of its configuration."""

    registered: bytes
    packaged: bytes
    choice: Mapping[str, Any] = field(default_factory=dict)


def damaged(kind: str, onnx: bytes, feature: str, limit: float) -> Damaged:
    """A challenger of that kind, from the champion's file. feature > limit: the rows on which 'errors' fails."""
    match kind:
        case "slow":
            return Damaged(onnx, onnx, {"max_queue_delay_us": QUEUE_DELAY_US})
        case "errors":
            broken = failing_above(onnx, feature, limit)
            return Damaged(broken, broken)
        case "wrong":
            return Damaged(onnx, swapped(onnx))
        case _:  # crash and split happen to a challenger that is as good as the champion
            return Damaged(onnx, onnx)


def swapped(onnx: bytes) -> bytes:
    """The same model with its two probabilities exchanged."""
    from onnx import helper, numpy_helper

    model, honest, output = _opened(onnx)
    model.graph.initializer.append(numpy_helper.from_array(_integers(1, 0), "demo_order"))
    model.graph.node.append(helper.make_node("Gather", [honest, "demo_order"], [output], axis=1))
    return bytes(model.SerializeToString())


def failing_above(onnx: bytes, feature: str, limit: float) -> bytes:
    """The same model, but the server fails on rows whose (float) feature is above the limit: an index out of range."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    model, honest, output = _opened(onnx)
    constants = {"demo_limit": np.array([limit], np.float32), "demo_table": np.array([1.0], np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model.graph.node.extend(
        [
            helper.make_node("Greater", [feature, "demo_limit"], ["demo_above"]),
            helper.make_node("Cast", ["demo_above"], ["demo_index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["demo_table", "demo_index"], ["demo_one"], axis=0),
            helper.make_node("Mul", [honest, "demo_one"], [output]),
        ]
    )
    return bytes(model.SerializeToString())


def _opened(onnx: bytes) -> tuple[Any, str, str]:
    """The model with its first output renamed inside, so that new nodes can give it: (model, inner name, output)."""
    import onnx as library

    model = library.load_from_string(onnx)
    output = model.graph.output[0].name
    honest = f"demo_honest_{output}"
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == output:
                node.output[place] = honest
        for place, name in enumerate(node.input):
            if name == output:
                node.input[place] = honest
    return model, honest, output


def _integers(*values: int) -> Any:
    import numpy as np

    return np.array(values, dtype=np.int64)
