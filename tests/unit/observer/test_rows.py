import json
from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pipelines.observer.envoy_messages import message_class
from pipelines.observer.rows import Access, Answer, access, answer, entries, event_us
from pipelines.observer.tables import answers_tables
from resources.errors import DataError

INFER = "/inference.GRPCInferenceService/ModelInfer"


def entry(path: str = INFER, **changes: Any) -> Any:
    found = message_class("HTTPAccessLogEntry")()
    found.common_properties.start_time.FromNanoseconds(1_700_000_000_000_001_000)
    found.common_properties.time_to_last_downstream_tx_byte.FromMicroseconds(2_500)
    found.common_properties.upstream_request_attempt_count = changes.get("attempts", 1)
    found.common_properties.upstream_cluster = changes.get("cluster", "green-grpc")
    found.request.path, found.request.request_id = path, "r-1"
    found.request.request_headers["x-model"] = "m"
    if "event_time" in changes:
        found.request.request_headers["x-event-time"] = changes["event_time"]
    found.response.response_code.value = changes.get("code", 200)
    for part in ("trailers", "headers"):
        if part in changes:
            getattr(found.response, f"response_{part}")["grpc-status"] = changes[part]
    return found


def message(*requests: Any) -> bytes:
    found = message_class("StreamAccessLogsMessage")()
    found.http_logs.log_entry.extend(requests)
    return bytes(found.SerializeToString())


def access_rows(body: bytes, event_time_header: str | None) -> list[Access]:
    return [access(each, event_time_header) for each in entries(body)]


@pytest.mark.parametrize(
    ("header", "cell"), [("17", "17"), ("0", "0"), ("017", "017"), ("7,17", ""), ("-1", ""), ("x" * 9, ""), ("", "")]
)
def test_a_rows_cell_is_the_number_that_its_request_named(header: str, cell: str) -> None:
    named = entry(trailers="0")
    named.request.request_headers["x-trimtab-cell"] = header
    (row,) = access_rows(message(named), None)
    assert row.cell == cell


def test_an_entry_becomes_a_row() -> None:
    (row,) = access_rows(message(entry(trailers="0", attempts=2)), None)
    at = 1_700_000_000_000_001
    assert tuple(row) == ("r-1", "m", at, at, "grpc", "green", 200, 0, True, 2.5, 2, "", "", False)


def test_a_copy_s_answer_is_marked() -> None:
    answered = entry(trailers="0")
    answered.response.response_headers["x-degraded"] = "true"
    (row,) = access_rows(message(answered), None)
    assert row.degraded
    assert row.ok


@pytest.mark.parametrize(
    ("changes", "status", "ok"),
    [
        ({"trailers": "0"}, 0, True),
        ({"trailers": "14"}, 14, False),
        ({"headers": "14"}, 14, False),
        ({}, 2, False),
        ({"path": "/v2/models/m/infer", "cluster": "green-http"}, 0, True),
        ({"path": "/v2/models/m/infer", "cluster": "green+blue-http"}, 0, True),
        ({"path": "/v2/models/m/infer", "code": 503}, 0, False),
        ({"path": "/v2/models/m/infer", "code": 0}, 0, False),
    ],
)
def test_a_request_is_ok_by_its_code_and_by_its_grpc_status_wherever_that_stands(
    changes: dict[str, Any], status: int, ok: bool
) -> None:
    (row,) = access_rows(message(entry(**changes)), None)
    assert (row.grpc_status, row.ok, row.pool) == (status, ok, "green")


def test_whom_a_request_is_of_is_kept_as_a_hash_only() -> None:
    def unit(*value: str) -> str:
        asked = entry()
        for each in value:
            asked.request.request_headers["x-unit"] = each
        return access_rows(message(asked), None)[0].unit

    assert unit() == unit("-") == ""
    assert unit("ann@example.org") == unit("ann@example.org") != unit("bob@example.org")
    assert len(unit("ann@example.org")) == 16
    assert "ann" not in unit("ann@example.org")


def test_the_event_time_header_counts_only_when_the_observer_was_told_so() -> None:
    told = message(entry(event_time="2013-01-01T00:00:01Z"))
    assert access_rows(told, "x-event-time")[0].event_us == 1_356_998_401_000_000
    assert access_rows(told, None)[0].event_us == 1_700_000_000_000_001


@given(st.text(max_size=30))
def test_any_text_as_event_time_gives_an_instant(text: str) -> None:
    assert event_us(text, 5) >= 0


def test_a_broken_access_message_is_a_data_error() -> None:
    with pytest.raises(DataError):
        access_rows(b"\xff\xff\xff", None)


def keep(found: Any, where: str, body: bytes | None, size: int) -> None:
    """As the Lua does."""
    place = found.common_properties.metadata.filter_metadata.add(key=f"trimtab.{where}")
    place.value.fields.add(key="bytes").value.number_value = size
    if body is not None:
        place.value.fields.add(key="body").value.string_value = b64encode(body)


def http_entry(request: bytes, reply: bytes, code: int = 200, **answered: str) -> Any:
    found = entry("/v2/models/m/infer", code=code)
    for key, value in answered.items():
        found.response.response_headers[key.replace("_", "-")] = value
    keep(found, "request", request, len(request))
    keep(found, "answer", reply, len(reply))
    return found


def read(found: Any) -> Answer | None:
    (parsed,) = entries(message(found))
    return answer(parsed, access(parsed, None))


def grpc_entry(rows: int, id_: str = "") -> Any:
    request = service_pb2.ModelInferRequest(model_name="m", id=id_)
    request.inputs.add(name="temp", datatype="FP32", shape=[rows, 1])
    request.raw_input_contents.append(np.arange(rows, dtype=np.float32).tobytes())
    request.inputs.add(name="carrier", datatype="BYTES", shape=[rows, 1])
    request.raw_input_contents.append(b"".join(b"\x02\x00\x00\x00UA" for _ in range(rows)))
    reply = service_pb2.ModelInferResponse(model_name="m", model_version="7")
    reply.outputs.add(name="label", datatype="INT64", shape=[rows])
    reply.raw_output_contents.append(np.zeros(rows, np.int64).tobytes())
    reply.outputs.add(name="probabilities", datatype="FP32", shape=[rows, 2])
    reply.raw_output_contents.append(np.linspace(0, 1, 2 * rows, dtype=np.float32).tobytes())
    found = entry(trailers="0")
    for where, packed in (("request", request.SerializeToString()), ("answer", reply.SerializeToString())):
        body = b"\x00" + len(packed).to_bytes(4, "big") + packed
        keep(found, where, body, len(body))
    return found


def test_a_batch_of_n_rows_gives_n_rows() -> None:
    found = read(grpc_entry(3))
    assert found is not None
    ((model, table),) = answers_tables([found, found])
    assert model == "m"
    rows = table.to_pylist()
    assert [row["row"] for row in rows] == [0, 1, 2] * 2
    assert [row["temp"] for row in rows[:3]] == [0.0, 1.0, 2.0]
    assert [round(row["answer"], 6) for row in rows[:3]] == [0.2, 0.6, 1.0]
    assert {(row["carrier"], row["version"], row["request_id"]) for row in rows} == {("UA", "7", "r-1")}


def test_the_key_is_the_id_that_the_client_gave_else_the_request_id() -> None:
    for id_, key in (("flight-1", "flight-1"), ("", "r-1")):
        found = read(grpc_entry(1, id_))
        assert found is not None
        assert found.keys == (key,)


def test_an_http_answer_is_read_by_its_headers() -> None:
    raw = np.array([0.25, 0.75], np.float32).tobytes()
    outputs = [{"name": "p", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": len(raw)}}]
    header = json.dumps({"model_name": "m", "model_version": "3", "outputs": outputs}).encode()
    request = b'{"id": "k", "inputs": [{"name": "hour", "datatype": "INT64", "shape": [1, 1], "data": [[7]]}]}'
    found = read(http_entry(request, header + raw, inference_header_content_length=str(len(header))))
    assert found is not None
    assert (found.keys, found.version, list(found.answers), list(found.inputs["hour"])) == (("k",), "3", [0.75], [7])


def test_what_was_not_answered_well_is_no_answer() -> None:
    assert read(http_entry(b"{}", b'{"error": "no"}', code=503)) is None
    assert read(entry("/v2/models/m/infer")) is None


def test_a_body_too_large_to_be_copied_is_no_silence() -> None:
    found = entry("/v2/models/m/infer")
    keep(found, "request", None, 5_000_000)
    with pytest.raises(DataError, match="a body of 5000000 bytes: served"):
        read(found)


def test_an_input_named_as_a_column_of_the_log_does_not_replace_it() -> None:
    request = b'{"inputs": [{"name": "answer", "datatype": "FP64", "shape": [1, 2], "data": [1, 2]}]}'
    reply = b'{"outputs": [{"name": "label", "datatype": "INT64", "shape": [1], "data": [1]}]}'
    found = read(http_entry(request, reply))
    assert found is not None
    assert list(found.inputs) == ["input_answer_0", "input_answer_1"]
    assert np.isnan(found.answers).all()


@given(st.binary(max_size=50), st.binary(max_size=50), st.sampled_from([INFER, "/v2/models/m/infer"]))
def test_noise_in_a_body_is_a_data_error(request: bytes, reply: bytes, path: str) -> None:
    found = entry(path, trailers="0")
    keep(found, "request", request, len(request))
    keep(found, "answer", reply, len(reply))
    try:
        kept = read(found)
    except DataError:
        return
    assert kept is None or kept.answers.shape == (len(kept.keys),)


@given(st.binary(min_size=1, max_size=20))
def test_noise_for_a_body_is_a_data_error_or_no_answer(noise: bytes) -> None:
    found = entry("/v2/models/m/infer")
    for where in ("request", "answer"):
        place = found.common_properties.metadata.filter_metadata.add(key=f"trimtab.{where}")
        place.value.fields.add(key="body").value.string_value = noise
    with pytest.raises(DataError):
        read(found)
