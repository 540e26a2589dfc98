"""The live detector: what a value costs, what a million requests leave behind, how often it asks in a quiet month."""

import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import psutil

from assets.champion import reference_key
from assets.drift.aggregate import ANSWER
from assets.drift.live import SLOTS, LiveWindow, Watch
from assets.drift.reference import build_reference
from assets.drift.settings import DriftSettings
from pipelines.observer.envoy_messages import message_class
from pipelines.observer.service import Observer
from resources.envoy_lua import ANSWER_BODY, BODY, REQUEST_BODY
from tests.bench.lines import Line, at_most
from tests.fakes import MemoryStore

START = datetime(2030, 1, 7, tzinfo=UTC)
COLUMNS = 50
REQUESTS, AT_ONCE = 1_000_000, 2_000
FEATURES = {"temp": "float", "wind": "float", "hour": "int", "carrier": "string"}


def lines() -> Iterator[Line]:
    """About two minutes of one core."""
    yield _cost()
    yield _memory()
    yield from _asked()


def _cost() -> Line:
    """Wall clock of a run, as the observer spends it."""
    rng = np.random.default_rng(0)
    features = {f"f{i}": "float" for i in range(COLUMNS)}
    frame = pd.DataFrame({name: rng.normal(size=3_000) for name in features})
    frame["event_time"] = [START + timedelta(minutes=15 * i) for i in range(len(frame))]
    batches, rows = 1_000, 50
    event_us = (1.9e15 + np.arange(batches * rows) * 60e6).astype(np.int64)
    values = {name: rng.normal(size=batches * rows) for name in features}
    found = []
    for _ in range(3):
        window = LiveWindow(build_reference(frame, features, {}, DriftSettings(), 0.2))
        began = time.perf_counter()
        for at in range(0, batches * rows, rows):
            window.add(event_us[at : at + rows], {name: column[at : at + rows] for name, column in values.items()})
            window.distances()
        found.append(1e6 * (time.perf_counter() - began) / (batches * rows * COLUMNS))
    name = f"live window, {COLUMNS} features, a batch of {rows}, all distances, best of 3"
    return at_most("drift", name, min(found), "us a value", 2.5)


class _Sink(MemoryStore):
    """Keeps no segment: what the log weighs is not what the observer weighs."""

    def put(self, key: str, body: bytes) -> None:
        if not key.startswith("log/"):
            super().put(key, body)


def _memory() -> Line:
    """The observer's own path, from Envoy's bytes to the window and the log, turn by turn of two seconds."""
    store, rng, now = _Sink(), np.random.default_rng(0), 1.9e9
    frame = pd.DataFrame({name: rng.normal(size=6_000).astype(np.float32) for name in FEATURES})
    frame = frame.assign(hour=rng.integers(0, 24, 6_000), carrier=rng.choice(["AA", "UA"], 6_000))
    frame[ANSWER] = rng.uniform(size=6_000)
    frame["event_time"] = [START - timedelta(days=30) + timedelta(minutes=7 * i) for i in range(6_000)]
    store.put(reference_key("m", 1), build_reference(frame, FEATURES, {}, DriftSettings(), 0.2).to_bytes())
    observer = Observer(store, "http://127.0.0.1:1", "x-event-time", clock=lambda: now)
    requests = [_request(rng) for _ in range(64)]
    process, before, began = psutil.Process(), 0, time.perf_counter()
    for sent in range(0, REQUESTS, AT_ONCE):
        now += 2
        observer.inbox.put(_message(requests, now, START + timedelta(seconds=sent / 10)))
        observer.decode()
        observer.live.look(now)
        observer.writer.write(now, force=True)
        observer.ledger.settle(now, force=True)
        if sent == REQUESTS // 10:
            before = process.memory_info().rss
    grown = (process.memory_info().rss - before) / 2**20
    (status,) = observer.live.status()
    dropped = observer.live.dropped + observer.inbox.dropped + sum(observer.undecoded.values())
    each = 1e6 * (time.perf_counter() - began) / REQUESTS
    name = f"observer's memory grown over the last 9/10 of {REQUESTS:.0e} requests ({each:.0f} us each, all decoded)"
    return Line("drift", name, grown, "MB", "≤ 50 MB", grown <= 50 and dropped == 0 and status["rows"] > 0)


def _message(requests: list[Any], now: float, at: datetime) -> bytes:
    """What Envoy sends of AT_ONCE requests."""
    message = message_class("StreamAccessLogsMessage")()
    for number in range(AT_ONCE):
        entry = message.http_logs.log_entry.add()  # a request set anew and anew would keep every former value
        entry.CopyFrom(requests[number % len(requests)])
        entry.common_properties.start_time.FromNanoseconds(int(now * 1e9))
        entry.request.request_headers["x-event-time"] = at.isoformat()
    return bytes(message.SerializeToString())


def _request(rng: np.random.Generator) -> Any:
    """The log's entry of a request of one row and its answer."""
    from tritonclient.grpc import service_pb2

    asked = service_pb2.ModelInferRequest(model_name="m", id=f"k{rng.integers(1 << 30)}")
    for name, type_ in FEATURES.items():
        datatype, raw = {
            "float": ("FP32", np.float32(rng.normal()).tobytes()),
            "int": ("INT64", np.int64(rng.integers(24)).tobytes()),
            "string": ("BYTES", b"\x02\x00\x00\x00AA"),
        }[type_]
        asked.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        asked.raw_input_contents.append(raw)
    answered = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    answered.outputs.add(name="probabilities", datatype="FP32", shape=[1, 2])
    answered.raw_output_contents.append(rng.uniform(size=2).astype(np.float32).tobytes())
    entry = message_class("HTTPAccessLogEntry")()
    entry.request.path, entry.request.request_id = "/inference.GRPCInferenceService/ModelInfer", "r"
    entry.request.request_headers["x-model"] = "m"
    entry.response.response_code.value = 200
    entry.response.response_trailers["grpc-status"] = "0"
    for where, body in ((REQUEST_BODY, asked), (ANSWER_BODY, answered)):
        wire = body.SerializeToString()
        place = entry.common_properties.metadata.filter_metadata.add(key=where)
        place.value.fields.add(key=BODY).value.string_value = b64encode(b"\x00" + len(wire).to_bytes(4, "big") + wire)
    return entry


MONTHS, DAYS, RATE, SEASONAL = 24, 28, 60, 6


def _asked() -> Iterator[Line]:
    """Drift-free months of hours: daily season, levels that wander (autocorrelation .9 an hour), six features."""
    rng, asked, above_level, readings = np.random.default_rng(2), 0, 0, 0
    features = {f"f{place}": "float" for place in range(SEASONAL)}
    for _ in range(MONTHS):
        past, month = _hours(rng, 60), _hours(rng, DAYS)
        rows = pd.DataFrame(past)
        rows["event_time"] = pd.Timestamp(START) + pd.to_timedelta(np.arange(len(rows)) * 3600 / RATE, unit="s")
        window, watch = LiveWindow(build_reference(rows, features, {}, DriftSettings(), 0.2), points=200), Watch()
        event_us = int(START.timestamp() * 1e6) + (np.arange(DAYS * SLOTS * RATE) * 3_600e6 / RATE).astype(np.int64)
        for at in range(0, len(event_us), RATE):
            window.add(event_us[at : at + RATE], {name: column[at : at + RATE] for name, column in month.items()})
            reading = window.read()
            if reading is None or reading.level is None:
                continue
            watch, alarm = watch.after(reading)
            asked, readings = asked + alarm, readings + 1
            above_level += reading.aggregate > reading.level
    share = 100 * above_level / max(readings, 1)
    name = f"checks asked for in a quiet month by the live alarm ({share:.1f} % of readings lie above the level)"
    yield at_most("drift", name, asked / MONTHS, "a month", 0.5)


def _hours(rng: np.random.Generator, days: int) -> dict[str, np.ndarray]:
    """name -> (days * SLOTS * RATE,)."""
    hours = np.arange(days * SLOTS)
    found = {}
    for place in range(SEASONAL):
        wander, steps = np.zeros(len(hours)), rng.normal(0, 0.05, len(hours))
        for at in range(1, len(hours)):
            wander[at] = 0.9 * wander[at - 1] + steps[at]
        level = 0.3 * np.sin(2 * np.pi * hours / SLOTS) * (place % 3 == 0) + wander
        found[f"f{place}"] = (np.repeat(level, RATE) + rng.normal(size=len(hours) * RATE)).astype(np.float32)
    return {name: column.astype(np.float64) for name, column in found.items()}
