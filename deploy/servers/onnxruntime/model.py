"""A Triton python-based backend NAMED onnxruntime, for servers without the native one.

It lies in the backends folder beside `python/`, never in a model repository: what is published stays data only
(`config.pbtxt`, `<version>/model.onnx`) and runs unchanged on the native backend, which Triton looks for first.
It runs inside the serving environment (numpy<2), apart from the project's own.
"""

import json
import os
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read as it is loaded: nothing is told to anyone outside

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

ONNX_TYPES = {
    "TYPE_STRING": "tensor(string)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_BOOL": "tensor(bool)",
}


class TritonPythonModel:
    """One instance of one version: opens `<version>/model.onnx`, answers batches with one run."""

    session: Any
    inputs: list[str]
    outputs: list[str]
    batching: bool

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Packages state their inputs and outputs, so there is nothing to complete."""
        return config

    def initialize(self, args: dict[str, str]) -> None:
        close_connections()
        config = json.loads(args["model_config"])
        if args.get("model_instance_kind") == "GPU":
            raise pb_utils.TritonModelException("KIND_GPU needs Triton's native onnxruntime backend; here use KIND_CPU")
        path = os.path.join(
            args["model_repository"], args["model_version"], config.get("default_model_filename") or "model.onnx"
        )
        if not os.path.isfile(path):
            raise pb_utils.TritonModelException(f"{path} is missing: publish the version with its model.onnx")
        self.session = ort.InferenceSession(path, session_options(config), providers=["CPUExecutionProvider"])
        check(config["input"], self.session.get_inputs(), "input")
        check(config["output"], self.session.get_outputs(), "output")
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.batching = config.get("max_batch_size", 0) > 0

    def execute(self, requests: list[Any]) -> list[Any]:
        if len(requests) > 1 and self.batching:
            try:
                return self.answer_together([self.columns(request) for request in requests])
            except Exception:  # one bad request must not fail its neighbours: find out which one it is
                pb_utils.Logger.log_warn(f"a batch of {len(requests)} requests failed: answering one by one")
        return [self.answer_alone(request) for request in requests]

    def answer_alone(self, request: Any) -> Any:
        try:
            return self.answer_together([self.columns(request)])[0]
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))

    def answer_together(self, asked: list[dict[str, Any]]) -> list[Any]:
        rows = [len(columns[self.inputs[0]]) for columns in asked]
        feed = {name: np.concatenate([columns[name] for columns in asked]) for name in self.inputs}
        answers = self.session.run(self.outputs, feed)
        for name, answer in zip(self.outputs, answers, strict=True):
            if self.batching and len(answer) != sum(rows):
                raise ValueError(f"output {name!r} has {len(answer)} rows for {sum(rows)} rows asked")
        ends = np.cumsum(rows)
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, answer[end - count : end] if self.batching else answer)
                    for name, answer in zip(self.outputs, answers, strict=True)
                ]
            )
            for count, end in zip(rows, ends, strict=True)
        ]

    def columns(self, request: Any) -> dict[str, Any]:
        found = {}
        for name in self.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise ValueError(f"input {name!r} is missing")
            found[name] = text(name, tensor.as_numpy())
        return found


def close_connections() -> None:
    """Close this process's copies of the connections that clients had to Triton when Triton started it.

    With a copy open the kernel tells no client that Triton is gone: a gateway goes on sending requests into
    connections that nobody reads, until it gives up on each. Triton and this process talk through shared memory.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.close(int(name))
        except OSError:
            continue  # the listing's own


def session_options(config: dict[str, Any]) -> Any:
    """The parameters that the native backend knows under the same names."""
    settings = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(settings.get("intra_op_thread_count", "1"))
    options.inter_op_num_threads = int(settings.get("inter_op_thread_count", "1"))
    # A spinning thread takes the core that the next request needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def check(configured: list[dict[str, Any]], found: list[Any], kind: str) -> None:
    """The configuration and the ONNX agree on names and types, as the native backend demands."""
    types = {tensor.name: tensor.type for tensor in found}
    for tensor in configured:
        name, wanted = tensor["name"], ONNX_TYPES.get(tensor["data_type"], tensor["data_type"])
        if name not in types:
            raise pb_utils.TritonModelException(
                f"{kind} {name!r} is in the configuration, not in the ONNX: {list(types)}"
            )
        if types[name] != wanted:
            raise pb_utils.TritonModelException(
                f"{kind} {name!r} is {tensor['data_type']} in the configuration and {types[name]} in the ONNX"
            )
    missing = set(types) - {tensor["name"] for tensor in configured}
    if kind == "input" and missing:
        raise pb_utils.TritonModelException(f"the configuration misses the ONNX inputs {sorted(missing)}")


def text(name: str, values: Any) -> Any:
    """Strings reach a Python backend as bytes; undecoded, every category is unknown and answers are silently wrong."""
    if values.dtype != object:
        return values
    try:
        decoded = [value.decode() if isinstance(value, bytes) else value for value in values.ravel()]
    except UnicodeDecodeError as error:
        raise ValueError(f"input {name!r} is not UTF-8: {error}") from error
    return np.array(decoded, dtype=object).reshape(values.shape)
