"""The configuration Triton gets, as data. The last line that writes it as protobuf text is `packages.render_config`."""

from collections.abc import Mapping
from typing import Any

from assets.profile.settings import ProfileSettings, Setting
from assets.task import OUTPUTS, Task

TYPES = {"string": "TYPE_STRING", "float": "TYPE_FP32", "int": "TYPE_INT64", "bool": "TYPE_BOOL"}


def starting_choice(settings: ProfileSettings) -> dict[str, Any]:
    """The default configuration: what the sweep starts from and measures twice."""
    return choice_of(settings.candidates[0], settings)


def choice_of(setting: Setting, settings: ProfileSettings) -> dict[str, Any]:
    """One configuration of the search space with what the spec holds for all of them."""
    return {**setting._asdict(), "max_queue_size": settings.max_queue_size}


def serving_config(
    model: str,
    features: Mapping[str, str],
    choice: Mapping[str, Any],
    *,
    version: int,
    lineage: Mapping[str, str] | None = None,
    kind: str = "KIND_CPU",
    task: Task = "binary",
) -> dict[str, Any]:
    """Names and shapes as Triton's `model_config.proto`. features: type by input; task: of the one output.

    lineage: ids that the running server can be asked for, as `snapshot_digest`.
    Source: https://github.com/triton-inference-server/common/blob/r24.10/protobuf/model_config.proto
    """
    inputs = [{"name": name, "data_type": TYPES[type_], "dims": [1]} for name, type_ in features.items()]
    output, width = OUTPUTS[task]
    parameters = {"intra_op_thread_count": str(choice["intra_op_threads"]), "mlflow_version": str(version)}
    return {
        "name": model,
        "backend": "onnxruntime",
        "max_batch_size": choice["max_batch_size"],
        "input": inputs,
        "output": [{"name": output, "data_type": "TYPE_FP32", "dims": [width]}],
        **_chosen(choice, kind),
        "version_policy": {"specific": {"versions": [version]}},
        "parameters": {
            name: {"string_value": value} for name, value in sorted({**parameters, **(lineage or {})}.items())
        },
        "model_warmup": [_warmup(inputs)],
    }


def serving_changes(choice: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The fields that a choice decides, of a configuration that `serving_config` built without lineage."""
    return {
        **_chosen(choice, kind),
        "max_batch_size": choice["max_batch_size"],
        "parameters": {"intra_op_thread_count": {"string_value": str(choice["intra_op_threads"])}},
    }


def _chosen(choice: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"instance_group": [{"kind": kind, "count": choice["instances"]}], "dynamic_batching": _batching(choice)}


def _batching(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A bounded queue where that is safe.

    With one instance Triton's batcher can miss its wake-up when a queue policy is set, and a request then waits
    500 ms: 43 of 5000 of a single client; without a policy 1, from two instances on none. A default timeout would
    turn each into a 503, and throughput decays under one (triton-inference-server/server issue 8870).
    """
    batching: dict[str, Any] = {"max_queue_delay_microseconds": choice["max_queue_delay_us"]}
    if choice["instances"] >= 2:
        batching["default_queue_policy"] = {"max_queue_size": choice["max_queue_size"]}
    return batching


def _warmup(inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Every instance answers before it counts as ready: a first request costs tens of milliseconds otherwise."""
    tensors = {i["name"]: {"data_type": i["data_type"], "dims": i["dims"], "zero_data": True} for i in inputs}
    return {"name": "zeros", "batch_size": 1, "count": 3, "inputs": tensors}
