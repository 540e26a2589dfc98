"""What is wrong with a package is said before it is published, by the name of the field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resources import packages, signing
from resources.errors import PackageRefused
from resources.package_check import check_content
from tests.fakes import MemoryStore
from tests.serving_stack import Publisher, config, tiny_onnx

MODEL = "flight"
BATCHING = "dynamic_batching"
TWO = [{"kind": "KIND_CPU", "count": 2}]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    return Publisher(tmp_path_factory.mktemp("publisher"), MemoryStore())


@pytest.fixture
def publisher(keys: Publisher) -> Publisher:
    keys.store = MemoryStore()
    return keys


def tensor(kind: str, at: int, **changes: Any) -> dict[str, Any]:
    tensors = [dict(item) for item in config(MODEL, 2)[kind]]
    tensors[at] |= changes
    return {kind: tensors}


def queue(policy: dict[str, Any], **changes: Any) -> dict[str, Any]:
    batching = {"max_queue_delay_microseconds": 500, "default_queue_policy": policy, **changes}
    return {"instance_group": TWO, BATCHING: batching}


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"name": "other"}, r"config\.pbtxt: name = 'other': the package is about flight"),
    ({"backend": "python"}, r"config\.pbtxt: backend = 'python': packages hold ONNX"),
    ({"runtime": "model.py"}, r"runtime = 'model\.py': a package holds data only"),
    ({"default_model_filename": "other.onnx"}, r"default_model_filename = 'other\.onnx'"),
    ({"version_policy": {"specific": {"versions": [3]}}}, r"version_policy\.specific\.versions = \[3\]: .* is 2/"),
    (tensor("input", 1, data_type="TYPE_FP64"), r"input\[1\]\.data_type = 'TYPE_FP64': temp is TYPE_FP32 in the ONNX"),
    (tensor("input", 0, data_type="TYPE_INT64"), r"input\[0\]\.data_type = 'TYPE_INT64': carrier is TYPE_STRING"),
    (tensor("input", 1, name="temperature"), r"input\[1\]\.name = 'temperature': the ONNX has no such input"),
    (tensor("input", 1, name="carrier", data_type="TYPE_STRING"), r"input = 'carrier': is there twice"),
    (tensor("input", 2, dims=[2]), r"input\[2\]\.dims = \[2\]: hour has \[1\] in the ONNX"),
    (tensor("input", 2, dims=[1, 1]), r"input\[2\]\.dims = \[1, 1\]"),
    ({"input": config(MODEL, 2)["input"][:2]}, r"input = \['carrier', 'temp'\]: the ONNX also needs hour"),
    (tensor("output", 0, name="label"), r"output\[0\]\.name = 'label': the ONNX has no such output"),
    (tensor("output", 0, data_type="TYPE_INT64"), r"output\[0\]\.data_type = 'TYPE_INT64'"),
    (tensor("output", 0, dims=[3]), r"output\[0\]\.dims = \[3\]: probabilities has \[2\]"),
    ({"output": []}, r"output = \[\]: clients would get nothing"),
    ({"max_batch_size": 0, BATCHING: None}, r"input\[0\]\.dims = \[1\]: carrier has \[-1, 1\]"),
    ({"instance_group": [{"kind": "KIND_MODEL", "count": 1}]}, r"instance_group\[0\]\.kind = 'KIND_MODEL'"),
    ({"instance_group": [{"kind": "KIND_CPU", "count": 0}]}, r"instance_group\[0\]\.count = 0"),
    ({BATCHING: {"preferred_batch_size": [65]}}, r"dynamic_batching\.preferred_batch_size = 65: .* max_batch_size 64"),
    (queue({}), r"default_queue_policy\.max_queue_size = 0: 0 bounds nothing"),
    (queue({"max_queue_size": 9, "default_timeout_microseconds": 500}), r"default_timeout_microseconds = 500: is over"),
    (queue({"max_queue_size": 9}) | {"instance_group": TWO[:0]}, r"default_queue_policy = 'set': with 0 instance"),
    (queue({"max_queue_size": 9}, default_priority_level=2), r"default_priority_level = 2: there are 0"),
    (
        queue({"max_queue_size": 9}, priority_levels=1, priority_queue_policy={"2": {"max_queue_size": 9}}),
        r"priority_queue_policy = 2: there are 1 priority_levels",
    ),
]


@pytest.mark.parametrize(("change", "told"), CHANGES, ids=[told for _, told in CHANGES])
def test_a_configuration_that_does_not_fit_is_refused_by_its_field_and_nothing_is_published(
    publisher: Publisher, change: dict[str, Any], told: str
) -> None:
    kept = {name: value for name, value in change.items() if value is not None}
    folder = publisher.build(MODEL, 2, **({"model_warmup": []} | kept))
    if None in change.values():
        text = packages.render_config(
            {k: v for k, v in (config(MODEL, 2) | kept).items() if k not in change or k in kept}
        )
        rewrite(folder, "config.pbtxt", text.encode())
    signing.sign(folder, publisher.private)
    with pytest.raises(PackageRefused, match=told):
        packages.publish(publisher.store, MODEL, 2, folder)
    assert publisher.store.keys("packages/") == []


def rewrite(folder: Path, name: str, body: bytes) -> None:
    """One file and its digest in the manifest, as a builder gone wrong would leave them."""
    import hashlib

    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(body)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][name] = hashlib.sha256(body).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"platform": "onnxruntime_onnx", "backend": ""},
        {"version_policy": {"latest": {"num_versions": 1}}},
        queue({"max_queue_size": 9, "default_timeout_microseconds": 501}),
        tensor("input", 1, dims=[1]),
    ],
)
def test_what_fits_is_published(publisher: Publisher, change: dict[str, Any]) -> None:
    publisher.publish(MODEL, 2, **change)
    assert len(publisher.store.keys("packages/")) == 1


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edited(folder: Path) -> None:
        probe = json.loads((folder / "probe.json").read_bytes())
        change(probe)
        rewrite(folder, "probe.json", json.dumps(probe).encode())

    return edited


def device(text: bytes) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, "configs/h100.pbtxt", text)


def warmup_value(folder: Path) -> None:
    file = next(path for path in sorted((folder / "warmup").iterdir()))
    rewrite(folder, f"warmup/{file.name}", file.read_bytes() + b"!")


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: rewrite(f, "config.pbtxt", b'name: "flight" bakend: "x"'), r"config\.pbtxt: 1:16 .* \"bakend\""),
    (device(b'name: "other"'), r"configs/h100\.pbtxt: name = 'other'"),
    (lambda f: rewrite(f, "2/model.onnx", b"no model"), r"2/model\.onnx: ONNX Runtime can't load it"),
    (lambda f: (f / "2" / "model.onnx").write_bytes(tiny_onnx(1.0)), r"2/model\.onnx is not what manifest\.json lists"),
    (lambda f: next((f / "warmup").iterdir()).unlink(), r"warmup/[0-9a-f]{16} is missing, manifest\.json lists it"),
    (warmup_value, r"model_warmup\[\d\]\.inputs\.\w+\.input_data_file = .* holds other values than its name says"),
    (edit(lambda p: p["inputs"].pop("hour")), r"probe\.json: inputs = \['carrier', 'temp'\]: the ONNX also needs hour"),
    (edit(lambda p: p["inputs"]["temp"].update(datatype="FP64")), r"inputs\.temp\.datatype = 'FP64': .* FP32"),
    (edit(lambda p: p["inputs"]["temp"].update(shape=[3, 1])), r"probe\.json: inputs\.temp\.data"),
    (
        edit(lambda p: p["inputs"].update(tail=p["inputs"]["temp"])),
        r"inputs\.tail = 'tail': the ONNX has no such input",
    ),
    (edit(lambda p: p["outputs"].update(y=p["outputs"]["probabilities"])), r"probe\.json: outputs = 'y'"),
    (
        edit(lambda p: p["outputs"]["probabilities"]["data"].__setitem__(0, 9.0)),
        r"outputs\.probabilities .* differs from ONNX Runtime's answers by",
    ),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGES, ids=[told for _, told in DAMAGES])
def test_a_package_that_was_built_wrongly_is_refused_by_file_and_field(
    publisher: Publisher, damage: Callable[[Path], Any], told: str
) -> None:
    folder = publisher.build(MODEL, 2)
    check_content(folder, MODEL, 2)
    damage(folder)
    with pytest.raises(PackageRefused, match=told):
        check_content(folder, MODEL, 2)


def warm(**changes: Any) -> dict[str, Any]:
    value = {"data_type": "TYPE_FP32", "dims": [1], "zero_data": True}
    inputs = {
        "carrier": value | {"data_type": "TYPE_STRING"},
        "temp": value,
        "hour": value | {"data_type": "TYPE_INT64"},
    }
    return {"model_warmup": [{"name": "w", "batch_size": 1, "inputs": inputs | changes.pop("inputs", {})} | changes]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (warm(batch_size=65), r"model_warmup\[0\]\.batch_size = 65: max_batch_size is 64"),
        (warm(inputs={"temp": {"data_type": "TYPE_FP64", "dims": [1]}}), r"inputs\.temp\.data_type = 'TYPE_FP64'"),
        (
            warm(inputs={"x": {"data_type": "TYPE_FP32"}}),
            r"model_warmup\[0\]\.inputs = \['carrier', 'hour', 'temp', 'x'\]",
        ),
        (
            warm(inputs={"temp": {"data_type": "TYPE_FP32", "dims": [1], "input_data_file": "nowhere"}}),
            r"inputs\.temp\.input_data_file = 'nowhere': warmup/nowhere is missing",
        ),
    ],
)
def test_a_warm_up_that_triton_would_stumble_over_is_refused(
    publisher: Publisher, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(PackageRefused, match=told):
        check_content(publisher.build(MODEL, 2, **change), MODEL, 2)


def test_a_warm_up_of_the_wrong_size_is_refused(publisher: Publisher) -> None:
    import hashlib

    body = b"\x03\x00\x00\x00UA"  # three bytes announced, two there
    name = hashlib.sha256(body).hexdigest()[:16]
    value = {"data_type": "TYPE_STRING", "dims": [1], "input_data_file": name}
    folder = publisher.build(MODEL, 2, **warm(inputs={"carrier": value}))
    rewrite(folder, f"warmup/{name}", body)
    with pytest.raises(PackageRefused, match="6 bytes are not 1 values of TYPE_STRING"):
        check_content(folder, MODEL, 2)
