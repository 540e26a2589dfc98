"""Bodies as tritonclient's own encoders make them are read back to the same values; whatever else is a DataError."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.http._utils import _get_inference_request as _get_http_request
from tritonclient.utils import triton_to_np_dtype

from resources.errors import DataError
from resources.inference_protocol import (
    Message,
    Tensor,
    decompressed,
    grpc_answer,
    grpc_request,
    http_answer,
    http_request,
)

NUMBERS = ("FP32", "FP64", "INT64", "INT32", "INT8", "UINT8", "FP16", "BOOL")
FLOATS = {"FP16": 16, "FP32": 32, "FP64": 64}


def values(datatype: str, size: int) -> st.SearchStrategy[list[Any]]:
    if datatype == "BYTES":
        element: st.SearchStrategy[Any] = st.text(max_size=12)
    elif datatype == "BOOL":
        element = st.booleans()
    elif datatype in FLOATS:
        element = st.floats(width=FLOATS[datatype], allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    else:
        info = np.iinfo(np.dtype(triton_to_np_dtype(datatype)))
        element = st.integers(int(info.min), int(info.max))
    return st.lists(element, min_size=size, max_size=size)


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[str, str, tuple[int, int], list[Any]]]:
    rows, found = draw(st.integers(1, 5)), []
    for at in range(draw(st.integers(1, 4))):
        datatype = draw(st.sampled_from((*NUMBERS, "BYTES")))
        width = draw(st.integers(1, 3))
        found.append((f"x{at}", datatype, (rows, width), draw(values(datatype, rows * width))))
    return found


def array(datatype: str, shape: tuple[int, int], flat: list[Any]) -> np.ndarray[Any, Any]:
    if datatype == "BYTES":
        return np.array([value.encode() for value in flat], dtype=np.object_).reshape(shape)
    return np.array(flat, dtype=triton_to_np_dtype(datatype)).reshape(shape)


def framed(message: Any) -> bytes:
    content = message.SerializeToString()
    return b"\x00" + len(content).to_bytes(4, "big") + bytes(content)


def expect(message: Message, sent: list[tuple[str, str, tuple[int, int], list[Any]]]) -> None:
    assert [t.name for t in message.tensors] == [name for name, *_ in sent]
    for tensor, (_, datatype, shape, flat) in zip(message.tensors, sent, strict=True):
        assert (tensor.datatype, tensor.shape) == (datatype, shape)
        if datatype == "BYTES":
            assert tensor.values == flat
        else:
            np.testing.assert_array_equal(tensor.values, array(datatype, shape, flat).ravel())


@given(tensors())
@settings(deadline=None)
def test_a_grpc_request_of_tritonclient_is_read_back(sent: list[tuple[str, str, tuple[int, int], list[Any]]]) -> None:
    inputs = []
    for name, datatype, shape, flat in sent:
        tensor = grpcclient.InferInput(name, list(shape), datatype)
        tensor.set_data_from_numpy(array(datatype, shape, flat))
        inputs.append(tensor)
    request = _get_inference_request(
        model_name="m",
        inputs=inputs,
        model_version="",
        request_id="id-1",
        outputs=None,
        sequence_id=0,
        sequence_start=False,
        sequence_end=False,
        priority=0,
        timeout=None,
        parameters=None,
    )
    message = grpc_request(framed(request))
    assert (message.model, message.id) == ("m", "id-1")
    expect(message, sent)


@given(tensors(), st.booleans(), st.sampled_from(("", "gzip", "deflate")))
@settings(deadline=None)
def test_an_http_request_of_tritonclient_is_read_back(
    sent: list[tuple[str, str, tuple[int, int], list[Any]]], binary: bool, encoding: str
) -> None:
    inputs = []
    for name, datatype, shape, flat in sent:
        tensor = httpclient.InferInput(name, list(shape), datatype)
        # tritonclient sends FP16 in binary only: JSON has no such numbers.
        tensor.set_data_from_numpy(array(datatype, shape, flat), binary_data=binary or datatype == "FP16")
        inputs.append(tensor)
    body, length = _get_http_request(
        inputs=inputs,
        request_id="id-1",
        outputs=None,
        sequence_id=0,
        sequence_start=False,
        sequence_end=False,
        priority=0,
        timeout=None,
        custom_parameters=None,
    )
    body = body.encode() if isinstance(body, str) else bytes(body)
    packed = {"": lambda b: b, "gzip": gzip.compress, "deflate": zlib.compress}[encoding](body)
    message = http_request(packed, length, encoding)
    assert message.id == "id-1"
    expect(message, sent)


@given(tensors())
@settings(deadline=None)
def test_typed_contents_say_what_raw_contents_say(sent: list[tuple[str, str, tuple[int, int], list[Any]]]) -> None:
    fields = {"BYTES": "bytes", "BOOL": "bool", "FP32": "fp32", "FP64": "fp64", "INT64": "int64", "UINT8": "uint"}
    sent = [entry for entry in sent if entry[1] != "FP16"]
    request = service_pb2.ModelInferRequest(model_name="m")
    for name, datatype, shape, flat in sent:
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        plain = [value.encode() for value in flat] if datatype == "BYTES" else flat
        getattr(tensor.contents, f"{fields.get(datatype, 'int')}_contents").extend(plain)
    expect(grpc_request(framed(request)), sent)


def test_an_answer_names_its_version_in_both_protocols() -> None:
    answer = service_pb2.ModelInferResponse(model_name="m", model_version="7", id="a")
    answer.outputs.add(name="probabilities", datatype="FP32", shape=[1, 2])
    answer.raw_output_contents.append(np.array([0.25, 0.75], np.float32).tobytes())
    document = {"name": "probabilities", "datatype": "FP32", "shape": [1, 2], "data": [[0.25, 0.75]]}
    body = json.dumps({"model_name": "m", "model_version": "7", "id": "a", "outputs": [document]}).encode()
    for message in (grpc_answer(framed(answer)), http_answer(body)):
        assert (message.model, message.version, message.id) == ("m", "7", "a")
        assert list(message.tensors[0].values) == [0.25, 0.75]


def test_a_compressed_grpc_answer_is_read() -> None:
    content = service_pb2.ModelInferResponse(model_name="m").SerializeToString()
    for packed in (gzip.compress(content), zlib.compress(content)):
        assert grpc_answer(b"\x01" + len(packed).to_bytes(4, "big") + packed).model == "m"


def test_bf16_is_read_as_the_float_that_it_cuts_short() -> None:
    document = {"inputs": [{"name": "x", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}}]}
    header = json.dumps(document).encode()
    raw = np.array([1.5, -2.0], np.float32).view(np.uint32) >> 16
    message = http_request(header + raw.astype("<u2").tobytes(), len(header))
    assert list(message.tensors[0].values) == [1.5, -2.0]


def test_text_that_is_not_utf_8_is_replaced_not_refused() -> None:
    request = service_pb2.ModelInferRequest()
    request.inputs.add(name="x", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\x02\x00\x00\x00\xff\xfe")
    assert grpc_request(framed(request)).tensors[0] == Tensor("x", "BYTES", (1,), ["\ufffd\ufffd"])


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2]}, "2 values for shape"),
        ({"name": "x", "datatype": "FP33", "shape": [1], "data": [1]}, "FP33"),
        ({"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}, "4 binary bytes"),
        ({"name": "x", "datatype": "INT8", "shape": [1], "data": [1000]}, "not a v2"),
        ({"name": "x", "shape": [1], "data": [1]}, "datatype"),
    ],
)
def test_a_wrong_tensor_is_refused_with_its_reason(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        http_request(json.dumps({"inputs": [entry]}).encode())


def test_an_unknown_encoding_and_a_broken_body_are_refused() -> None:
    with pytest.raises(DataError, match="zstd"):
        decompressed(b"", "zstd")
    with pytest.raises(DataError, match="not gzip"):
        decompressed(b"no", "gzip")
    with pytest.raises(DataError, match="not one whole message"):
        grpc_request(b"\x00\x00\x00\x00\x09abc")


@given(st.binary(max_size=400), st.integers(-1, 500), st.sampled_from(("", "gzip", "deflate")))
@settings(deadline=None)
def test_noise_is_a_data_error_and_nothing_else(noise: bytes, length: int, encoding: str) -> None:
    framed_noise = b"\x00" + len(noise).to_bytes(4, "big") + noise
    readers: tuple[Callable[[], Message], ...] = (
        lambda: http_request(noise, length, encoding),
        lambda: http_answer(noise),
        lambda: grpc_request(framed_noise),
        lambda: grpc_answer(framed_noise),
        lambda: grpc_answer(noise),
    )
    for read in readers:
        try:
            found = read()
        except DataError:
            continue
        assert isinstance(found, Message)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda s: (
            st.lists(s)
            | st.dictionaries(
                st.sampled_from(("inputs", "name", "shape", "datatype", "data", "parameters", "binary_data_size")), s
            )
        ),
    )
)
@settings(deadline=None, max_examples=300)
def test_json_of_another_shape_is_a_data_error_and_nothing_else(document: Any) -> None:
    for body in (document, {"inputs": document}, {"inputs": [document]}):
        try:
            found = http_request(json.dumps(body).encode())
        except DataError:
            continue
        assert isinstance(found, Message)
