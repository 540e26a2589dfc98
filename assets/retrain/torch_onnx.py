"""A network as one ONNX graph: its columns by skl2onnx, its module by PyTorch's exporter, joined."""

import io
import warnings
from collections.abc import Mapping
from typing import Any

from assets.network import AnyNetwork, Network
from assets.retrain.serving_form import OPSETS, NotConvertible, first_line, tensor
from assets.task import OUTPUTS, Task

# Where the two graphs meet.
SEAM = "network_input"
REMEDY = (
    "columns have to be a fitted ColumnTransformer that gives numbers, the module one that PyTorch's exporter takes"
)


def convert(network: AnyNetwork, features: Mapping[str, str]) -> Any:
    """An `onnx.ModelProto` with one named input a column and the output of the network's task."""
    import onnx

    task: Task = "binary" if isinstance(network, Network) else "regression"
    try:
        columns = _columns(network.columns, features)
        width = columns.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
        module = onnx.load_from_string(_module(network.module, width, task))
        module = onnx.compose.add_prefix(module, "network/", rename_inputs=False, rename_outputs=False)
        # Both graphs were made for one opset, though each names only what it uses of it; either format holds both.
        for graph in (columns, module):
            graph.ir_version = min(module.ir_version, columns.ir_version)
            for used in graph.opset_import:
                used.version = OPSETS[used.domain]
        seam = columns.graph.output[0].name
        joined = onnx.compose.merge_models(columns, module, io_map=[(seam, SEAM)])
    except Exception as error:  # neither exporter has a common base for its refusals
        raise NotConvertible(f"the network does not convert: {first_line(error)}: {REMEDY}") from error
    return joined


def _columns(columns: Any, features: Mapping[str, str]) -> Any:
    from skl2onnx import convert_sklearn

    made = convert_sklearn(
        columns,
        name="columns",
        initial_types=[(name, tensor(kind)) for name, kind in features.items()],
        target_opset=OPSETS,
    )
    return made


def _module(module: Any, width: int, task: Task) -> bytes:
    import torch

    output = OUTPUTS[task][0]

    class Answers(torch.nn.Module):  # type: ignore[misc]
        """What the module gives as the task's output: the logit as probabilities of both classes, or the number."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, inputs: Any) -> Any:
            found = self.module(inputs).reshape(-1, 1)
            if task == "regression":
                return found
            chance = torch.sigmoid(found)
            return torch.cat([1 - chance, chance], dim=1)

    sink = io.BytesIO()
    with warnings.catch_warnings():
        # The exporter that needs no second library is called the older one.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Answers().eval(),
            (torch.zeros(2, width),),
            sink,
            input_names=[SEAM],
            output_names=[output],
            dynamic_axes={SEAM: {0: "n"}, output: {0: "n"}},
            opset_version=OPSETS[""],
            dynamo=False,
        )
    return sink.getvalue()
