"""Envoy, the observer and an S3, all real: what clients sent is in the log, whatever dies on the way."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from assets.canary.looks import count
from resources.envoy_front import Front, write_front
from resources.errors import TrafficError
from resources.gateway import Split
from resources.store import S3Store
from resources.traffic import Traffic
from tests.gateway_stack import (
    Edge,
    RunningObserver,
    call,
    running_edge,
    running_observer,
    running_store,
    start_pool,
    stop,
)

pytestmark = pytest.mark.integration

EVENT_TIME = ("--event-time-header", "x-event-time")
ALWAYS = (datetime(1990, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    with running_store(tmp_path_factory.mktemp("s3") / "s3") as real:
        yield real


@dataclass
class Site:
    """A gateway with two pools and an observer; every test has its own model names."""

    folder: Path
    edge: Edge
    observer: RunningObserver
    traffic: Traffic
    http: Any
    grpc: Any

    def ask(self, protocol: str, model: str, rows: int = 1, **options: Any) -> Any:
        kind = httpclient if protocol == "http" else grpcclient
        temp = kind.InferInput("temp", [rows, 1], "FP32")
        temp.set_data_from_numpy(np.arange(rows, dtype=np.float32).reshape(rows, 1))
        carrier = kind.InferInput("carrier", [rows, 1], "BYTES")
        carrier.set_data_from_numpy(np.array([b"UA"] * rows, np.object_).reshape(rows, 1))
        return getattr(self, protocol).infer(model, [temp, carrier], **options)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, store: S3Store) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        edge = stack.enter_context(running_edge(folder))
        for version, pool in (("1", "blue"), ("2", "green")):
            stack.callback(stop, start_pool(folder, edge.pools[pool], version))
        observer = stack.enter_context(running_observer(folder, edge, store, *EVENT_TIME))
        address = f"127.0.0.1:{edge.client}"
        clients = httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address)
        yield Site(folder, edge, observer, Traffic(store, observer.url), *clients)


def test_every_request_is_in_the_log_with_its_pool_features_and_answer(site: Site) -> None:
    site.edge.gateway.set_split("all", Split({"blue": 50, "green": 50}))
    for number in range(40):
        for protocol in ("http", "grpc"):
            site.ask(protocol, "all", request_id=f"{protocol}-{number}")
    site.traffic.flush()
    access, answers = site.traffic.access("all", *ALWAYS), site.traffic.answers("all", *ALWAYS)
    assert len(access) == len(answers) == 80
    assert access["ok"].all()
    assert (access["latency_ms"] > 0).all()
    assert access["protocol"].value_counts().to_dict() == {"http": 40, "grpc": 40}
    assert sorted(answers["key"]) == sorted(f"{p}-{n}" for p in ("http", "grpc") for n in range(40))
    joined = access.merge(answers, on="request_id")
    assert len(joined) == 80
    assert set(zip(joined["pool"], joined["version"], joined["answer"].round(6), strict=True)) == {
        ("blue", "1", 0.01),
        ("green", "2", 0.02),
    }
    assert set(answers["carrier"]) == {"UA"}
    seconds = (access["seen_at"] - datetime.now(UTC)).dt.total_seconds().abs()
    assert (seconds < 60).all()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_batch_is_one_access_row_and_one_answer_for_each_of_its_rows(site: Site, protocol: str) -> None:
    model = f"batch-{protocol}"
    site.edge.gateway.set_split(model, Split({"blue": 100}))
    site.ask(protocol, model, rows=5, request_id="a,b,c,d,e")
    site.traffic.flush()
    answers = site.traffic.answers(model, *ALWAYS)
    assert answers[["row", "key", "temp"]].to_numpy().tolist() == [[n, "abcde"[n], float(n)] for n in range(5)]
    assert len(site.traffic.access(model, *ALWAYS)) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"request_compression_algorithm": "gzip"},
        {"request_compression_algorithm": "deflate"},
        {"outputs": [httpclient.InferRequestedOutput("probabilities", binary_data=False)]},
        {"outputs": [httpclient.InferRequestedOutput("probabilities", binary_data=True)]},
    ],
    ids=["gzip", "deflate", "json", "binary"],
)
def test_http_bodies_are_read_however_they_are_written(site: Site, options: dict[str, Any]) -> None:
    model = f"body-{abs(hash(str(options)))}"
    site.edge.gateway.set_split(model, Split({"blue": 100}))
    site.ask("http", model, rows=300, **options)
    site.traffic.flush()
    rows = site.traffic.answers(model, *ALWAYS)
    assert rows["answer"].round(6).tolist() == [0.01] * 300
    assert rows["temp"].tolist() == list(range(300))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_body_too_large_to_be_copied_is_served_and_counted_as_not_read(site: Site, protocol: str) -> None:
    model, rows = f"large-{protocol}", 500_000
    site.edge.gateway.set_split(model, Split({"blue": 100}))
    before = call(f"{site.observer.url}/status")[2]["undecoded"]["answers"]
    assert len(site.ask(protocol, model, rows=30_000).as_numpy("probabilities")) == 30_000
    site.traffic.flush()
    assert len(site.traffic.answers(model, *ALWAYS)) == 30_000
    site.ask(protocol, model, rows=rows)
    site.traffic.flush()
    status = call(f"{site.observer.url}/status")[2]
    assert status["undecoded"]["answers"] == before + 1
    assert "none is copied" in status["last_undecoded"]
    assert len(site.traffic.access(model, *ALWAYS)) == 2
    assert len(site.traffic.answers(model, *ALWAYS)) == 30_000


def test_the_event_time_of_the_header_is_the_logs_event_time(site: Site) -> None:
    site.edge.gateway.set_split("replayed", Split({"blue": 100}))
    for day in range(1, 4):
        for protocol in ("http", "grpc"):
            site.ask(protocol, "replayed", headers={"x-event-time": f"2013-01-0{day}T12:00:00Z"})
    site.traffic.flush()
    start = datetime(2013, 1, 2, tzinfo=UTC)
    for frame in (site.traffic.access, site.traffic.answers):
        rows = frame("replayed", start, start + timedelta(days=1))
        assert rows["event_time"].tolist() == [datetime(2013, 1, 2, 12, tzinfo=UTC)] * 2
    assert len(site.traffic.access_seen("replayed", datetime.now(UTC) - timedelta(minutes=5))) == 6
    assert len(site.traffic.access_seen("replayed", datetime.now(UTC))) == 0


def test_mirrored_copies_are_not_in_the_log(site: Site) -> None:
    site.edge.gateway.set_split("mirrored", Split({"blue": 100}, mirror="green"))
    before = site.edge.count("green")
    for protocol in ("http", "grpc"):
        for _ in range(10):
            site.ask(protocol, "mirrored")
    site.traffic.flush()
    assert site.edge.count("green") == before + 20
    assert site.traffic.access("mirrored", *ALWAYS)["pool"].tolist() == ["blue"] * 20
    assert site.traffic.answers("mirrored", *ALWAYS)["version"].tolist() == ["1"] * 20


def test_only_inference_of_known_models_is_logged(site: Site) -> None:
    site.edge.gateway.set_split("known", Split({"blue": 100}))
    site.grpc.is_server_live()
    site.http.is_model_ready("known")
    for protocol in ("http", "grpc"):
        with pytest.raises(InferenceServerException):
            site.ask(protocol, "stranger")
    site.ask("http", "known")
    site.traffic.flush()
    assert len(site.traffic.access("known", *ALWAYS)) == 1
    assert site.traffic.store.keys("log/stranger/") == []


def test_failures_are_logged_with_the_pool_that_failed(site: Site, tmp_path: Path) -> None:
    with running_edge(tmp_path) as edge:
        edge.stop()
        edge.access = site.edge.access
        edge.start()
        full = start_pool(tmp_path, edge.pools["green"], "2", "--unavailable")
        try:
            edge.gateway.set_split("full", Split({"green": 100}))
            edge.gateway.set_split("dead", Split({"blue": 100}))
            address = f"127.0.0.1:{edge.client}"
            failing = Site(tmp_path, edge, site.observer, site.traffic, httpclient.InferenceServerClient(address), None)
            failing.grpc = grpcclient.InferenceServerClient(address)
            for model in ("full", "dead"):
                for protocol in ("http", "grpc"):
                    with pytest.raises(InferenceServerException):
                        failing.ask(protocol, model)
            time.sleep(1)  # a stopped Envoy takes the last half second of its log with it
        finally:
            stop(full)
    site.traffic.flush()
    for model, pool in (("full", "green"), ("dead", "blue")):
        rows = site.traffic.access(model, *ALWAYS).set_index("protocol")
        assert rows["pool"].to_dict() == {"http": pool, "grpc": pool}
        assert not rows["ok"].any()
        assert (rows.loc["http", "code"], rows.loc["grpc", "grpc_status"]) == (503, 14)
        assert len(site.traffic.answers(model, *ALWAYS)) == 0


def test_an_answer_that_the_other_pool_saved_is_on_record_as_the_failure_of_the_first(
    site: Site, tmp_path: Path
) -> None:
    with running_edge(tmp_path) as edge:
        edge.stop()
        edge.access = site.edge.access
        edge.start()
        green = start_pool(tmp_path, edge.pools["green"], "2")
        try:
            edge.gateway.set_split("saved", Split({"blue": 100, "green": 0}))
            address = f"127.0.0.1:{edge.client}"
            saved = Site(tmp_path, edge, site.observer, site.traffic, httpclient.InferenceServerClient(address), None)
            saved.grpc = grpcclient.InferenceServerClient(address)
            for protocol in ("http", "grpc"):
                saved.ask(protocol, "saved")
            time.sleep(1)  # a stopped Envoy takes the last half second of its log with it
        finally:
            stop(green)
    site.traffic.flush()
    rows = site.traffic.access("saved", *ALWAYS)
    assert rows["ok"].tolist() == [True, True]
    assert rows["pool"].tolist() == ["blue", "blue"]
    assert rows["attempts"].tolist() == [2, 2]
    look = count(rows, 0.5, "blue", "green", 50.0, 1.0)
    assert (look.canary_requests, look.canary_errors) == (2, 2)


def test_completeness_is_envoys_own_count_against_the_log(tmp_path: Path, site: Site, store: S3Store) -> None:
    fresh = S3Store("counted", store.endpoint)
    fresh.ensure_bucket()
    with ExitStack() as stack:
        edge = stack.enter_context(running_edge(tmp_path / "edge"))
        stack.callback(stop, start_pool(tmp_path, edge.pools["blue"], "1"))
        edge.gateway.set_split("counted", Split({"blue": 100}))
        grpc = grpcclient.InferenceServerClient(f"127.0.0.1:{edge.client}")
        mine = Site(tmp_path, edge, site.observer, site.traffic, None, grpc)
        with running_observer(tmp_path, edge, fresh) as observer:
            traffic = Traffic(fresh, observer.url)
            assert traffic.completeness().share_access == 0
            for _ in range(100):
                mine.ask("grpc", "counted")
            seen = traffic.completeness()
            assert (seen.requests, seen.access_rows, seen.answers_rows) == (100, 100, 100)
            assert (seen.share_access, seen.share_answers) == (1, 1)
        for _ in range(100):
            mine.ask("grpc", "counted")
        with running_observer(tmp_path, edge, fresh) as observer:
            traffic = Traffic(fresh, observer.url)
            for _ in range(50):
                mine.ask("grpc", "counted")
            seen = traffic.completeness()
            # What nobody observed while the observer was away is missing, and says so.
            assert (seen.requests, seen.access_rows) == (250, 150)
            time.sleep(1.2)  # the count is read every second
            later = datetime.now(UTC)
            for _ in range(20):
                mine.ask("grpc", "counted")
            assert traffic.completeness(since=later).share_access == 1
            edge.stop()
            with pytest.raises(TrafficError, match="is Envoy up"):
                traffic.completeness()


def test_a_killed_observer_is_not_noticed_by_clients(tmp_path: Path, site: Site, store: S3Store) -> None:
    with ExitStack() as stack:
        edge = stack.enter_context(running_edge(tmp_path))
        stack.callback(stop, start_pool(tmp_path, edge.pools["blue"], "1"))
        edge.gateway.set_split("orphan", Split({"blue": 100}))
        observer = stack.enter_context(running_observer(tmp_path, edge, store))
        grpc = grpcclient.InferenceServerClient(f"127.0.0.1:{edge.client}")
        http = httpclient.InferenceServerClient(f"127.0.0.1:{edge.client}")
        mine = Site(tmp_path, edge, observer, Traffic(store, observer.url), http, grpc)
        mine.ask("grpc", "orphan")
        observer.process.kill()
        observer.process.wait()
        slowest = 0.0
        for _ in range(200):
            for protocol in ("http", "grpc"):
                started = time.monotonic()
                mine.ask(protocol, "orphan")
                slowest = max(slowest, time.monotonic() - started)
        assert slowest < 1
        with pytest.raises(TrafficError, match="is it up"):
            mine.traffic.flush()


def test_rows_are_kept_while_the_store_is_down_and_written_when_it_is_back(tmp_path: Path, store: S3Store) -> None:
    with ExitStack() as stack:
        edge = stack.enter_context(running_edge(tmp_path / "edge"))
        stack.callback(stop, start_pool(tmp_path, edge.pools["blue"], "1"))
        edge.gateway.set_split("kept", Split({"blue": 100}))
        gate = stack.enter_context(Gate(int(str(store.endpoint).rpartition(":")[2])))
        behind = S3Store(store.bucket, f"http://127.0.0.1:{gate.port}")
        observer = stack.enter_context(running_observer(tmp_path, edge, behind))
        traffic = Traffic(store, observer.url)
        grpc = grpcclient.InferenceServerClient(f"127.0.0.1:{edge.client}")
        mine = Site(tmp_path, edge, observer, traffic, None, grpc)
        gate.close()
        for _ in range(50):
            mine.ask("grpc", "kept")
        with pytest.raises(TrafficError, match="is the object store up"):
            traffic.flush()
        assert traffic.access("kept", *ALWAYS).empty
        gate.open()
        traffic.flush()
        assert len(traffic.access("kept", *ALWAYS)) == 50
        assert len(traffic.answers("kept", *ALWAYS)) == 50
        assert not any(call(f"{observer.url}/status")[2]["dropped"].values())


def test_a_stopped_observer_writes_what_it_holds(tmp_path: Path, store: S3Store) -> None:
    with running_edge(tmp_path) as edge:
        blue = start_pool(tmp_path, edge.pools["blue"], "1")
        try:
            edge.gateway.set_split("stopped", Split({"blue": 100}))
            with running_observer(tmp_path, edge, store, "--flush-s", "600") as observer:
                traffic = Traffic(store, observer.url)
                mine = Site(tmp_path, edge, observer, traffic, None, None)
                mine.grpc = grpcclient.InferenceServerClient(f"127.0.0.1:{edge.client}")
                for _ in range(30):
                    mine.ask("grpc", "stopped")
                time.sleep(1)
            assert observer.process.returncode == 0
            assert len(traffic.access("stopped", *ALWAYS)) == 30
            assert len(traffic.answers("stopped", *ALWAYS)) == 30
        finally:
            stop(blue)


def test_prometheus_reads_requests_latency_and_completeness(site: Site) -> None:
    site.edge.gateway.set_split("metered", Split({"green": 100}))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: call(f"{site.edge.url}/v2/models/metered/infer", INFER), range(20)))
    site.traffic.flush()
    with urlopen(f"{site.observer.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    assert 'trimtab_requests_total{model="metered",ok="true",pool="green"} 20.0' in lines
    assert 'trimtab_request_latency_seconds_count{model="metered",pool="green"} 20.0' in lines
    assert any(line.startswith('trimtab_completeness_share{log="access"}') for line in lines)


INFER = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}).encode()


class Gate:
    """A door before a server on loopback that can be shut, so that the server is unreachable and not dead."""

    def __init__(self, behind: int) -> None:
        import socket
        import threading

        self.behind, self.is_open = behind, True
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.through: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.is_open = False
        for each in self.through:
            each.close()

    def open(self) -> None:
        self.is_open = True

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self.close()

    def _accept(self) -> None:
        import socket
        import threading

        while True:
            try:
                outside, _ = self.listener.accept()
            except OSError:
                return
            if not self.is_open:
                outside.close()
                continue
            inside = socket.create_connection(("127.0.0.1", self.behind))
            self.through += [outside, inside]
            for one, other in ((outside, inside), (inside, outside)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: Any, target: Any) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        return
    finally:
        target.close()


def test_what_the_limit_refuses_is_in_the_log_and_counted_though_no_pool_saw_it(
    tmp_path_factory: pytest.TempPathFactory, store: S3Store
) -> None:
    folder, asked = tmp_path_factory.mktemp("refused"), 12
    with ExitStack() as stack:
        write_front(folder, Front(requests_per_s=2))
        edge = stack.enter_context(running_edge(folder))
        stack.callback(stop, start_pool(folder, edge.pools["blue"], "1"))
        observer = stack.enter_context(running_observer(folder, edge, store, *EVENT_TIME))
        address = f"127.0.0.1:{edge.client}"
        clients = httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address)
        limited = Site(folder, edge, observer, Traffic(store, observer.url), *clients)
        edge.gateway.set_split("refused", Split({"blue": 100}))
        for _ in range(asked):
            for protocol in ("http", "grpc"):
                with suppress(InferenceServerException):
                    limited.ask(protocol, "refused")
        limited.traffic.flush()
        access = limited.traffic.access("refused", *ALWAYS)
        served, refused = access[access["pool"] == "blue"], access[access["pool"] == ""]
        assert (len(access), len(served)) == (2 * asked, edge.count("blue"))
        assert len(refused) >= asked
        assert not refused["ok"].any()
        assert set(zip(refused["protocol"], refused["code"], refused["grpc_status"], strict=True)) == {
            ("http", 429, 0),
            ("grpc", 200, 8),
        }
        assert len(limited.traffic.answers("refused", *ALWAYS)) == len(served)
        told = urlopen(f"{observer.url}/metrics", timeout=10).read().decode()
        assert f'trimtab_requests_total{{model="refused",ok="false",pool=""}} {len(refused)}.0' in told
