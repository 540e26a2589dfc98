import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pipelines.observer.envoy_messages import message_class
from pipelines.observer.inbox import Copy
from pipelines.observer.rows import access_rows, answer, event_us
from pipelines.observer.streams import is_last
from pipelines.observer.tables import answers_tables
from resources.errors import DataError

PROCESSING, HEADERS, BODY, TRAILERS = map(
    message_class, ("ProcessingRequest", "HttpHeaders", "HttpBody", "HttpTrailers")
)
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


def message(*entries: Any) -> bytes:
    found = message_class("StreamAccessLogsMessage")()
    found.http_logs.log_entry.extend(entries)
    return bytes(found.SerializeToString())


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


def headers(**values: str) -> Any:
    found = HEADERS()
    for key, value in values.items():
        found.headers.headers.add(key=key.replace("_", "-").replace("status", ":status"), raw_value=value.encode())
    return found


def frames(
    request: bytes, reply: bytes, asked: dict[str, str], answered: dict[str, str], pieces: int = 1
) -> list[bytes]:
    size = max(-(-len(request) // pieces), 1)
    parts = [request[at : at + size] for at in range(0, len(request), size)]
    messages = [
        PROCESSING(request_headers=headers(x_request_id="r-1", x_model="m", **asked)),
        *(PROCESSING(request_body=BODY(body=part)) for part in parts),
        PROCESSING(response_headers=headers(**answered)),
        PROCESSING(response_body=BODY(body=reply, end_of_stream=True)),
    ]
    return [bytes(each.SerializeToString()) for each in messages]


def grpc_copy(rows: int, id_: str = "", pieces: int = 1) -> Copy:
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
    bodies = (b"\x00" + len(b).to_bytes(4, "big") + b for b in (m.SerializeToString() for m in (request, reply)))
    return Copy(5.0, 5.1, frames(next(bodies), next(bodies), {"content_type": "application/grpc"}, {}, pieces))


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_a_batch_of_n_rows_gives_n_rows_however_its_body_was_cut(pieces: int) -> None:
    found = answer(grpc_copy(3, pieces=pieces), None)
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
        found = answer(grpc_copy(1, id_), None)
        assert found is not None
        assert found.keys == (key,)


def test_an_http_answer_is_read_by_its_headers() -> None:
    raw = np.array([0.25, 0.75], np.float32).tobytes()
    outputs = [{"name": "p", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": len(raw)}}]
    header = json.dumps({"model_name": "m", "model_version": "3", "outputs": outputs}).encode()
    request = b'{"id": "k", "inputs": [{"name": "hour", "datatype": "INT64", "shape": [1, 1], "data": [[7]]}]}'
    answered = {"status": "200", "inference_header_content_length": str(len(header))}
    found = answer(Copy(5.0, 5.1, frames(request, header + raw, {}, answered)), None)
    assert found is not None
    assert (found.keys, found.version, list(found.answers), list(found.inputs["hour"])) == (("k",), "3", [0.75], [7])


def test_what_was_not_answered_well_is_no_answer() -> None:
    failed = frames(b"{}", b'{"error": "no"}', {}, {"status": "503"})
    assert answer(Copy(5.0, 5.1, failed), None) is None
    assert answer(Copy(5.0, 5.1, failed[:1]), None) is None
    assert answer(Copy(5.0, 5.1, []), None) is None


def test_an_input_named_as_a_column_of_the_log_does_not_replace_it() -> None:
    request = b'{"inputs": [{"name": "answer", "datatype": "FP64", "shape": [1, 2], "data": [1, 2]}]}'
    reply = b'{"outputs": [{"name": "label", "datatype": "INT64", "shape": [1], "data": [1]}]}'
    found = answer(Copy(5.0, 5.1, frames(request, reply, {}, {"status": "200"})), None)
    assert found is not None
    assert list(found.inputs) == ["input_answer_0", "input_answer_1"]
    assert np.isnan(found.answers).all()


def test_a_copy_ends_with_its_answers_last_message() -> None:
    copy = grpc_copy(1).frames
    assert [is_last(frame) for frame in copy] == [False, False, False, True]
    trailers = PROCESSING(response_trailers=TRAILERS())
    assert is_last(bytes(trailers.SerializeToString()))
    open_body = PROCESSING(response_body=BODY(body=b"x"))
    assert not is_last(bytes(open_body.SerializeToString()))


@given(st.lists(st.binary(max_size=50), max_size=4))
def test_noise_in_a_copy_is_a_data_error_or_no_answer(noise: list[bytes]) -> None:
    try:
        found = answer(Copy(5.0, 5.1, noise), None)
    except DataError:
        return
    assert found is None
