"""Overload on a real gateway: the cheaper copy answers under the same name, and every answer of its says so."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from resources.gateway import Fallback, Split
from resources.packages import render_config
from resources.traffic import Traffic
from tests.gateway_stack import Edge, call, free_ports, running_edge, running_observer, running_store, start_pool, stop
from tests.serving_stack import ROWS, LocalTriton, config, question, running_triton, tiny_onnx

pytestmark = pytest.mark.integration

CHAMPION, COPY = "1", "9"
FULL, SLOW = ("--unavailable",), ("--delay-s", "0.6")
ALWAYS = (datetime(1990, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))


@contextmanager
def site(folder: Path, *, champion: tuple[str, ...] | None, copy: bool = True) -> Iterator[Edge]:
    """Blue as its flags say (None: down), green well, and the lite tier."""
    lite = tuple(free_ports(2))
    with running_edge(folder, lite=(lite[0], lite[1])) as edge:
        assert edge.lite is not None
        processes = [start_pool(folder, edge.pools["green"], "2")]
        try:
            if champion is not None:
                processes.append(start_pool(folder, edge.pools["blue"], CHAMPION, *champion))
            if copy:
                processes.append(start_pool(folder, edge.lite, COPY))
            yield edge
        finally:
            for process in processes:
                stop(process)


def ask(edge: Edge, protocol: str, model: str) -> tuple[str, str]:
    """Version that answered, and the mark on its answer."""
    address = f"127.0.0.1:{edge.client}"
    if protocol == "http":
        tensor = {"name": "temp", "datatype": "FP32", "shape": [1, 1], "data": [0.0]}
        body = json.dumps({"inputs": [tensor]}).encode()
        status, found, answer = call(f"{edge.url}/v2/models/{model}/infer", body)
        return (str(answer["model_version"]) if status == 200 else str(status)), found.get("x-degraded", "")
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[b"\0\0\0\0"])
    request.inputs.add(name="temp", datatype="FP32", shape=[1, 1])
    with grpc.insecure_channel(address) as channel:
        try:
            reply, made = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.with_call(request, timeout=10)
        except grpc.RpcError as error:
            return str(error.code().name), ""
        return reply.model_version, dict(made.initial_metadata()).get("x-degraded", "")


def serve(edge: Edge, model: str, fallback: Fallback | None, pool: str = "blue") -> None:
    edge.gateway.set_split(model, Split({pool: 100}))
    edge.gateway.set_fallback(model, fallback)


BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with site(tmp_path_factory.mktemp("full"), champion=FULL) as edge:
        yield edge


@BOTH
def test_a_full_champion_s_copy_answers_under_the_same_name_and_says_so(full: Edge, protocol: str) -> None:
    serve(full, "kept", Fallback())
    assert {ask(full, protocol, "kept") for _ in range(20)} == {(COPY, "true")}


@BOTH
def test_a_model_without_fallback_is_told_that_it_is_overloaded(full: Edge, protocol: str) -> None:
    serve(full, "plain", None)
    assert ask(full, protocol, "plain") == ({"http": "503", "grpc": "UNAVAILABLE"}[protocol], "")


@BOTH
def test_what_the_champion_answers_is_not_marked_and_costs_the_copy_nothing(full: Edge, protocol: str) -> None:
    serve(full, "well", Fallback(), pool="green")
    assert full.lite is not None
    count = f"http://127.0.0.1:{full.lite[0]}/count"
    before = call(count)[2]
    assert {ask(full, protocol, "well") for _ in range(20)} == {("2", "")}
    assert call(count)[2] == before


@BOTH
def test_a_split_changes_and_the_fallback_stays(full: Edge, protocol: str) -> None:
    serve(full, "moved", Fallback(), pool="green")
    full.gateway.set_split("moved", Split({"blue": 100}))
    assert ask(full, protocol, "moved") == (COPY, "true")
    full.gateway.set_fallback("moved", None)
    assert ask(full, protocol, "moved")[1] == ""


@BOTH
def test_a_champion_that_is_down_is_stood_in_for(tmp_path: Path, protocol: str) -> None:
    with site(tmp_path, champion=None) as edge:
        serve(edge, "m", Fallback())
        assert {ask(edge, protocol, "m") for _ in range(5)} == {(COPY, "true")}


@BOTH
def test_without_a_copy_that_answers_all_is_as_before(tmp_path: Path, protocol: str) -> None:
    with site(tmp_path, champion=FULL, copy=False) as edge:
        serve(edge, "m", Fallback())
        assert ask(edge, protocol, "m") == ({"http": "503", "grpc": "UNAVAILABLE"}[protocol], "")


@BOTH
def test_a_champion_that_is_late_is_overtaken_by_its_copy(tmp_path: Path, protocol: str) -> None:
    with site(tmp_path, champion=SLOW) as edge:
        serve(edge, "m", Fallback(after_ms=50))
        started = time.monotonic()
        assert ask(edge, protocol, "m") == (COPY, "true")
        assert time.monotonic() - started < 0.5


@BOTH
def test_a_late_champion_whose_copy_is_down_still_answers(tmp_path: Path, protocol: str) -> None:
    with site(tmp_path, champion=SLOW, copy=False) as edge:
        serve(edge, "m", Fallback(after_ms=50))
        assert ask(edge, protocol, "m") == (CHAMPION, "")


def test_the_observer_counts_what_copies_answered(tmp_path: Path) -> None:
    with (
        running_store(tmp_path / "s3") as store,
        site(tmp_path, champion=FULL) as edge,
        running_observer(tmp_path, edge, store) as observer,
    ):
        serve(edge, "m", Fallback())
        serve(edge, "well", Fallback(), pool="green")
        for protocol in ("http", "grpc"):
            for model in ("m", "well"):
                for _ in range(5):
                    ask(edge, protocol, model)
        time.sleep(1)
        traffic = Traffic(store, observer.url)
        traffic.flush()
        access, answers = traffic.access("m", *ALWAYS), traffic.answers("m", *ALWAYS)
        assert access["degraded"].tolist() == [True] * 10
        assert access["ok"].all()
        assert set(access["pool"]) == {"blue"}
        assert answers["version"].tolist() == [f"{COPY}-lite"] * 10
        assert not traffic.access("well", *ALWAYS)["degraded"].any()
        assert set(traffic.answers("well", *ALWAYS)["version"]) == {"2"}
        with urlopen(f"{observer.url}/metrics") as page:
            text = page.read().decode()
        assert 'trimtab_degraded_total{model="m",pool="blue"} 10.0' in text
        assert 'trimtab_degraded_total{model="well"' not in text


def test_a_real_triton_with_a_full_queue_degrades_and_fails_nobody(tmp_path: Path) -> None:
    waiting = {
        "instance_group": [{"kind": "KIND_CPU", "count": 2}],
        "dynamic_batching": {
            "max_queue_delay_microseconds": 200_000,
            "preferred_batch_size": [64],
            "default_queue_policy": {"max_queue_size": 4},
        },
    }
    with running_triton(tmp_path / "blue") as blue, running_triton(tmp_path / "lite") as lite:
        _place(blue, 0.0, **waiting)
        _place(lite, 1.0)
        pools = {"blue": (blue.ports[0], blue.ports[1]), "green": (blue.ports[0], blue.ports[1])}
        with running_edge(tmp_path / "edge", pools, (lite.ports[0], lite.ports[1])) as edge:
            serve(edge, "flight", None)
            assert _crowd(edge).count(("503", "")) > 0, "the queue was never full: nothing is shown"
            serve(edge, "flight", Fallback())
            seen = _crowd(edge)
    assert {status for status, _ in seen} == {"200"}
    degraded = sum(mark == "true" for _, mark in seen)
    assert 0 < degraded < len(seen)


def _place(local: LocalTriton, bias: float, **changes: Any) -> None:
    folder = local.repository / "flight"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(tiny_onnx(bias))
    (folder / "config.pbtxt").write_text(render_config(config("flight", 1, **changes)))
    local.server.load("flight")


def _crowd(edge: Edge, clients: int = 16, each: int = 5) -> list[tuple[str, str]]:
    """Status and mark of every answer; all clients ask at once."""
    body, together = json.dumps(question(ROWS.head(1))).encode(), threading.Barrier(clients)

    def run(_: int) -> list[tuple[str, str]]:
        together.wait()
        answers = [call(f"{edge.url}/v2/models/flight/infer", body) for _ in range(each)]
        return [(str(status), headers.get("x-degraded", "")) for status, headers, _ in answers]

    with ThreadPoolExecutor(clients) as pool:
        return [answer for mine in pool.map(run, range(clients)) for answer in mine]
