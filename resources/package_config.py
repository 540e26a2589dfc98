"""A model configuration beside the ONNX it is about, field by field. Pure: what Triton would stumble over, by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from resources.errors import PackageRefused

TRITON_TYPES = {
    "tensor(string)": "TYPE_STRING",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(int64)": "TYPE_INT64",
    "tensor(int32)": "TYPE_INT32",
    "tensor(bool)": "TYPE_BOOL",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of the ONNX. dims: None where any size will do, the rows' axis first."""

    type: str
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What the ONNX takes and gives, by name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


def read_config(text: str, file: str) -> Any:
    """The `ModelConfig` of protobuf text; `PackageRefused` with line and field."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise PackageRefused(f"{file}: {error}: Triton would not read it") from error


def check_config(config: Any, file: str, signature: Signature, model: str, version: int) -> None:
    """config: a `ModelConfig`. Pure."""
    refuse = Refusal(file)
    if config.name != model:
        refuse("name", config.name, f"the package is about {model}")
    if (config.backend, config.platform) not in (("onnxruntime", ""), ("", "onnxruntime_onnx")):
        refuse("backend", config.backend or config.platform, "packages hold ONNX: write onnxruntime")
    if config.runtime:
        refuse("runtime", config.runtime, "a package holds data only: leave it out")
    if config.default_model_filename not in ("", "model.onnx"):
        refuse("default_model_filename", config.default_model_filename, "the model's file is model.onnx")
    policy = config.version_policy
    if policy.WhichOneof("policy_choice") == "specific" and list(policy.specific.versions) != [version]:
        told = list(policy.specific.versions)
        refuse("version_policy.specific.versions", told, f"the only version folder in the package is {version}/")
    _check_tensors(config, refuse, signature)
    _check_groups(config, refuse)
    _check_batching(config, refuse)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Raises with the file's name."""

    file: str

    def __call__(self, field: str, value: object, remedy: str) -> NoReturn:
        raise PackageRefused(f"{self.file}: {field} = {value!r}: {remedy}")


def _check_tensors(config: Any, refuse: Refusal, signature: Signature) -> None:
    for kind, tensors, known in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        for at, tensor in enumerate(tensors):
            if tensor.name not in known:
                refuse(f"{kind}[{at}].name", tensor.name, f"the ONNX has no such {kind}, it has {sorted(known)}")
            _check_tensor(tensor, f"{kind}[{at}]", refuse, known[tensor.name], config.max_batch_size)
        names = [tensor.name for tensor in tensors]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            refuse(kind, twice[0], "is there twice")
    missing = sorted(set(signature.inputs) - {tensor.name for tensor in config.input})
    if missing:
        refuse("input", [tensor.name for tensor in config.input], f"the ONNX also needs {', '.join(missing)}")
    if not config.output:
        refuse("output", [], f"clients would get nothing: name one of {sorted(signature.outputs)}")


def _check_tensor(tensor: Any, field: str, refuse: Refusal, known: Tensor, max_batch_size: int) -> None:
    from tritonclient.grpc import model_config_pb2

    given, wanted = model_config_pb2.DataType.Name(tensor.data_type), TRITON_TYPES.get(known.type, known.type)
    if given != wanted:
        refuse(f"{field}.data_type", given, f"{tensor.name} is {wanted} in the ONNX")
    dims = known.dims
    if max_batch_size > 0:
        if not dims or dims[0] is not None:
            fixed = f"{tensor.name} of the ONNX takes {dims[0] if dims else 'no'} rows, not any number: write 0"
            refuse("max_batch_size", max_batch_size, fixed)
        dims = dims[1:]
    fits = len(dims) == len(tensor.dims) and all(
        size == wish or (wish is None and size > 0) for size, wish in zip(tensor.dims, dims, strict=True)
    )
    # -1 in the configuration stands for any size, as None does in the ONNX.
    if not fits and [None if size == -1 else size for size in tensor.dims] != list(dims):
        shown = [-1 if size is None else size for size in dims]
        refuse(f"{field}.dims", list(tensor.dims), f"{tensor.name} has {shown} in the ONNX")


def _check_groups(config: Any, refuse: Refusal) -> None:
    from tritonclient.grpc import model_config_pb2

    kinds = model_config_pb2.ModelInstanceGroup.Kind
    for at, group in enumerate(config.instance_group):
        if kinds.Name(group.kind) not in ("KIND_CPU", "KIND_GPU"):
            refuse(f"instance_group[{at}].kind", kinds.Name(group.kind), "say KIND_CPU or KIND_GPU")
        if group.count < 1:
            refuse(f"instance_group[{at}].count", group.count, "at least one instance has to answer")


def _check_batching(config: Any, refuse: Refusal) -> None:
    if not config.HasField("dynamic_batching"):
        return
    batching, most = config.dynamic_batching, config.max_batch_size
    if most < 1:
        refuse("dynamic_batching", "set", "max_batch_size is 0: without batches leave it out")
    for size in batching.preferred_batch_size:
        if not 1 <= size <= most:
            refuse("dynamic_batching.preferred_batch_size", size, f"has to lie between 1 and max_batch_size {most}")
    if batching.default_priority_level > batching.priority_levels:
        told = f"there are {batching.priority_levels} priority_levels"
        refuse("dynamic_batching.default_priority_level", batching.default_priority_level, told)
    instances = sum(group.count for group in config.instance_group)
    for field, policy in _policies(batching, refuse):
        _check_policy(policy, f"dynamic_batching.{field}", refuse, batching.max_queue_delay_microseconds, instances)


def _policies(batching: Any, refuse: Refusal) -> Iterator[tuple[str, Any]]:
    if batching.HasField("default_queue_policy"):
        yield "default_queue_policy", batching.default_queue_policy
    for level, policy in sorted(batching.priority_queue_policy.items()):
        if not 1 <= level <= batching.priority_levels:
            told = f"there are {batching.priority_levels} priority_levels"
            refuse("dynamic_batching.priority_queue_policy", level, told)
        yield f"priority_queue_policy[{level}]", policy


def _check_policy(policy: Any, field: str, refuse: Refusal, delay_us: int, instances: int) -> None:
    timeout_us = policy.default_timeout_microseconds
    if not policy.max_queue_size and not timeout_us:
        refuse(f"{field}.max_queue_size", 0, "0 bounds nothing: give a bound or leave the policy out")
    if timeout_us and timeout_us <= delay_us:
        told = f"is over before max_queue_delay_microseconds {delay_us}: every waiting request would be rejected"
        refuse(f"{field}.default_timeout_microseconds", timeout_us, told)
    if instances < 2:
        told = (
            f"with {instances} instance Triton's batcher misses wake-ups under a policy and requests wait for 500 ms: "
            "take 2 instances or leave the policy out"
        )
        refuse(field, "set", told)
