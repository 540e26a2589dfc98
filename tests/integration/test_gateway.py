"""A real Envoy before two pools, asked by stock clients."""

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from scipy.stats import binomtest
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from resources import envoy_routes, gateway
from resources.envoy_front import Front, write_front
from resources.errors import GatewayError
from resources.gateway import Gateway, Needed, Split, read_splits
from tests.gateway_stack import Edge, call, running_edge, start_pool, stop

pytestmark = pytest.mark.integration

BLUE, GREEN = "1", "2"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_edge(folder) as running:
        pools = [start_pool(folder, running.pools["blue"], BLUE), start_pool(folder, running.pools["green"], GREEN)]
        yield running
        for pool in pools:
            stop(pool)


@dataclass
class Clients:
    http: Any
    grpc: Any

    def version(self, protocol: str, model: str, rows: int = 1, **options: Any) -> str:
        kind = httpclient if protocol == "http" else grpcclient
        tensor = kind.InferInput("temp", [rows, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((rows, 1), np.float32))
        answer = getattr(self, protocol).infer(model, [tensor], **options).get_response()
        return str(answer["model_version"] if protocol == "http" else answer.model_version)


@pytest.fixture(scope="module")
def clients(edge: Edge) -> Clients:
    address = f"127.0.0.1:{edge.client}"
    return Clients(httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_stock_clients_are_split_by_the_weights(edge: Edge, clients: Clients, protocol: str) -> None:
    edge.gateway.set_split("split", Split({"blue": 70, "green": 30}))
    versions = Counter(clients.version(protocol, "split") for _ in range(1_000))
    assert versions.total() == 1_000
    # A right gateway fails this once in ten million runs.
    assert binomtest(versions[GREEN], 1_000, 0.3).pvalue > 1e-7


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_user_stays_in_the_pool_whose_share_grows_and_users_fall_on_pools_by_the_weights(
    edge: Edge, clients: Clients, protocol: str
) -> None:
    users, held = [f"user-{number}" for number in range(300)], set[str]()
    for percent in (10, 30, 50):
        edge.gateway.set_split("sticky", Split({"blue": 100 - percent, "green": percent}, sticky="x-user"))
        by_user = {u: {clients.version(protocol, "sticky", headers={"x-user": u}) for _ in range(2)} for u in users}
        assert all(len(versions) == 1 for versions in by_user.values())
        green = {user for user, versions in by_user.items() if versions == {GREEN}}
        assert held <= green
        assert binomtest(len(green), len(users), percent / 100).pvalue > 1e-7
        held = green
    nobody = Counter(clients.version(protocol, "sticky") for _ in range(200))
    assert binomtest(nobody[GREEN], 200, 0.5).pvalue > 1e-7


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_pool_of_weight_zero_gets_nothing(edge: Edge, clients: Clients, protocol: str) -> None:
    edge.gateway.set_split("zero", Split({"blue": 0, "green": 100}))
    assert {clients.version(protocol, "zero") for _ in range(200)} == {GREEN}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_that_name_a_cell_in_need_are_split_by_weights_of_their_own(
    edge: Edge, clients: Clients, protocol: str
) -> None:
    edge.gateway.set_split("needed", Split({"blue": 99, "green": 1}, needed=Needed((7, 17), {"blue": 50, "green": 50})))

    def green(cell: str | None) -> int:
        headers = {} if cell is None else {"x-trimtab-cell": cell}
        return Counter(clients.version(protocol, "needed", headers=headers) for _ in range(400))[GREEN]

    for cell in ("7", "17"):
        assert binomtest(green(cell), 400, 0.5).pvalue > 1e-7
    for other in (None, "1", "71", "07", "7,17", "7|17", ""):
        assert binomtest(green(other), 400, 0.01).pvalue > 1e-7, other


def test_stock_clients_may_ask_about_server_and_model(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("about", Split({"blue": 100}))
    for client in (clients.http, clients.grpc):
        assert client.is_server_live()
        assert client.is_model_ready("about")
    assert clients.http.is_server_ready()
    assert clients.grpc.get_model_metadata("about").versions == [BLUE]
    assert clients.http.get_server_metadata()["path"] == "/v2"


def test_every_answer_names_its_pool_and_a_request_id_that_no_client_chose(edge: Edge) -> None:
    edge.gateway.set_split("named", Split({"green": 100}))
    ids = set()
    for _ in range(5):
        _, headers, _ = call(f"{edge.url}/v2/models/named/ready", headers={"x-request-id": "mine"})
        assert headers["x-pool"] == "green"
        ids.add(headers["x-request-id"])
    assert len(ids) == 5
    assert "mine" not in ids


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/repository/index", b"{}"),
        ("/v2/repository/models/open/load", b"{}"),
        ("/v2/repository/models/open/unload", b"{}"),
        ("/v2/systemsharedmemory/status", None),
        ("/v2/cudasharedmemory/region/x/register", b"{}"),
        ("/v2/trace/setting", b"{}"),
        ("/v2/models/open/trace/setting", b"{}"),
        ("/v2/models/open/generate", b"{}"),
        ("/v2/models/stats", None),
        ("/v2/logging", b"{}"),
        ("/metrics", None),
        ("/v2/models/open/../../repository/index", b"{}"),
        ("//v2//repository/index", b"{}"),
        ("/v2/models/open/infer/../trace/setting", b"{}"),
    ],
)
def test_whatever_is_not_inference_is_not_found(edge: Edge, path: str, body: bytes | None) -> None:
    edge.gateway.set_split("open", Split({"blue": 100}))
    status, headers, answer = call(edge.url + path, body)
    assert status == 404
    assert set(answer) == {"error"}
    assert headers["content-type"] == "application/json"


def test_an_escaped_slash_is_refused(edge: Edge) -> None:
    edge.gateway.set_split("open", Split({"blue": 100}))
    status, _, answer = call(f"{edge.url}/v2/models/open%2finfer/..%2f..%2frepository/index", b"{}")
    assert status in (400, 404)
    assert "error" in answer


def test_model_control_is_unimplemented_to_grpc_clients(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("open", Split({"blue": 100}))
    calls: list[Callable[[], Any]] = [
        lambda: clients.grpc.load_model("open"),
        lambda: clients.grpc.unload_model("open"),
        lambda: clients.grpc.get_model_repository_index(),
        lambda: clients.grpc.get_system_shared_memory_status(),
        lambda: clients.grpc.get_trace_settings("open"),
        lambda: clients.grpc.get_log_settings(),
    ]
    for ask in calls:
        with pytest.raises(InferenceServerException, match="not open here") as refused:
            ask()
        assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


def test_an_unknown_model_is_not_found_in_both_protocols(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("gone", Split({"blue": 100}))
    edge.gateway.remove("gone")
    for protocol, status in (("http", "404"), ("grpc", "StatusCode.NOT_FOUND")):
        for model in ("nobody", "gone"):
            with pytest.raises(InferenceServerException, match="unknown model") as refused:
                clients.version(protocol, model)
            assert refused.value.status() == status


@pytest.mark.parametrize("length", [1, 127, 128, 129, 200, 255])
def test_a_models_name_may_be_long(edge: Edge, clients: Clients, length: int) -> None:
    model = "m" * length
    edge.gateway.set_split(model, Split({"green": 100}))
    for protocol in ("http", "grpc"):
        assert clients.version(protocol, model) == GREEN


def test_many_models_stand_side_by_side(edge: Edge, clients: Clients) -> None:
    for number in range(60):
        edge.gateway.set_split(f"many-{number}", Split({"blue": 100} if number % 2 else {"green": 100}))
    for number in range(60):
        for protocol in ("http", "grpc"):
            assert clients.version(protocol, f"many-{number}") == (BLUE if number % 2 else GREEN)


def test_a_large_request_is_routed_by_its_name(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("large", Split({"green": 100}))
    for protocol in ("http", "grpc"):
        assert clients.version(protocol, "large", rows=1_000_000) == GREEN


def test_a_clients_own_x_model_does_not_move_its_request(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("mine", Split({"blue": 100}))
    edge.gateway.set_split("other", Split({"green": 100}))
    for protocol in ("http", "grpc"):
        versions = {clients.version(protocol, "mine", headers={"x-model": "other"}) for _ in range(20)}
        assert versions == {BLUE}
    with pytest.raises(InferenceServerException, match="unknown model"):
        clients.version("http", "nobody", headers={"x-model": "other"})


def test_of_two_names_in_one_grpc_message_the_last_counts_as_it_does_in_triton(edge: Edge) -> None:
    import grpc

    edge.gateway.set_split("first", Split({"blue": 100}))
    edge.gateway.set_split("last", Split({"green": 100}))
    request = service_pb2.ModelInferRequest(model_name="first")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    body = request.SerializeToString() + service_pb2.ModelInferRequest(model_name="last").SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{edge.client}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = service_pb2.ModelInferResponse.FromString(infer(body))
    assert (answer.model_name, answer.model_version) == ("last", GREEN)


@pytest.mark.parametrize(
    "body", [b"", b"\x0a", b"\x0a\x05ab", b"\xff" * 50, b"\x0a\x04a\r\nb", b"\x0b\x0b", b"\x12\x01a"]
)
def test_a_grpc_message_without_a_readable_name_is_refused_cleanly(edge: Edge, body: bytes) -> None:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{edge.client}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            infer(body, timeout=5)
    assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)


def test_a_compressed_grpc_request_is_told_what_to_do(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("packed", Split({"blue": 100}))
    with pytest.raises(InferenceServerException, match="send them uncompressed") as refused:
        clients.version("grpc", "packed", rows=1_000, compression_algorithm="gzip")
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
    with pytest.raises(InferenceServerException, match="unknown model"):
        clients.version("http", "nobody", rows=1_000, request_compression_algorithm="gzip")


def test_envoys_own_headers_are_not_taken_from_clients(edge: Edge) -> None:
    edge.gateway.set_split("cleansed", Split({"blue": 100}))
    wishes = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-retry-on": "5xx",
        "x-envoy-max-retries": "50",
        "x-envoy-upstream-alt-stat-name": "mine",
        "x-envoy-original-path": "/v2/repository/index",
        "x-envoy-decorator-operation": "mine",
        "x-forwarded-for": "10.0.0.1",
    }
    status, _, answer = call(f"{edge.url}/v2/models/cleansed/ready", headers=wishes)
    assert status == 200
    arrived = {name.lower(): value for name, value in answer["headers"].items()}
    assert answer["path"] == "/v2/models/cleansed/ready"
    kept = {name: value for name, value in wishes.items() if name != "x-forwarded-for" and arrived.get(name) == value}
    assert kept == {}


def test_clients_notice_none_of_fifty_weight_changes(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("steady", Split({"blue": 50, "green": 50}))
    done, failures, served = threading.Event(), [], Counter[str]()

    def ask(protocol: str) -> None:
        address = f"127.0.0.1:{edge.client}"
        mine = Clients(httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address))
        while not done.is_set():
            try:
                served[mine.version(protocol, "steady")] += 1
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=ask, args=(protocol,)) for protocol in ("http", "grpc", "http", "grpc")]
    for thread in threads:
        thread.start()
    try:
        seconds = [edge.gateway.set_split("steady", Split({"blue": n, "green": 100 - n})) for n in range(1, 51)]
    finally:
        time.sleep(0.1)
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert max(seconds) < 2
    assert served[BLUE] > 10
    assert served[GREEN] > 10


def test_a_confirmed_split_holds_for_the_very_next_request(edge: Edge, clients: Clients) -> None:
    for number in range(30):
        pool, version = (("blue", BLUE), ("green", GREEN))[number % 2]
        edge.gateway.set_split("next", Split({pool: 100}))
        assert {clients.version("grpc", "next"), clients.version("http", "next")} == {version}


def test_writers_in_several_processes_do_not_undo_each_other(edge: Edge) -> None:
    gateways = [Gateway(edge.folder, edge.admin_url) for _ in range(4)]

    def write(at: int) -> None:
        for number in range(8):
            gateways[at].set_split(f"writer-{at}-{number}", Split({"blue": 100}))

    threads = [threading.Thread(target=write, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(model.startswith("writer-") for model in edge.gateway.splits()) == 32


def test_routes_that_envoy_refuses_are_an_error_and_the_former_ones_stay(
    edge: Edge, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(splits: Any, version: str, *others: Any) -> Any:
        right = envoy_routes.routes(splits, version, *others)
        return (
            right
            if "broken" not in splits
            else {**right, "resources": [{**right["resources"][0], "virtual_hosts": [{"name": "x"}]}]}
        )

    monkeypatch.setattr(gateway, "routes", table)
    edge.gateway.set_split("sound", Split({"blue": 100}))
    with pytest.raises(GatewayError, match="update_rejected"):
        edge.gateway.set_split("broken", Split({"blue": 100}))
    assert "broken" not in read_splits(edge.folder)[0]
    assert clients.version("grpc", "sound") == BLUE
    edge.gateway.set_split("sound", Split({"green": 100}))
    assert clients.version("grpc", "sound") == GREEN


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_mirror_gets_copies_and_clients_never_its_answers(edge: Edge, clients: Clients, protocol: str) -> None:
    edge.gateway.set_split("mirrored", Split({"blue": 100}, mirror="green"))
    before = edge.count("green")
    assert {clients.version(protocol, "mirrored") for _ in range(50)} == {BLUE}
    deadline = time.monotonic() + 5
    while edge.count("green") < before + 50 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert edge.count("green") == before + 50
    edge.gateway.set_split("mirrored", Split({"blue": 100}))
    clients.version(protocol, "mirrored")
    time.sleep(0.2)
    assert edge.count("green") == before + 50


def test_a_part_of_the_requests_is_copied(edge: Edge, clients: Clients) -> None:
    edge.gateway.set_split("partly", Split({"blue": 100}, "green", mirror_percent=30))
    before = edge.count("green")
    for _ in range(400):
        clients.version("http", "partly")
    time.sleep(1)
    assert binomtest(edge.count("green") - before, 400, 0.3).pvalue > 1e-7


def test_a_dead_mirror_and_then_a_dead_pool_and_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("dying")
    with running_edge(folder) as edge:
        blue = start_pool(folder, edge.pools["blue"], BLUE)
        address = f"127.0.0.1:{edge.client}"
        mine = Clients(httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address))
        edge.gateway.set_split("m", Split({"blue": 100}, mirror="green"))
        started = time.monotonic()
        for protocol in ("http", "grpc"):
            assert {mine.version(protocol, "m") for _ in range(100)} == {BLUE}
        assert time.monotonic() - started < 10
        assert mine.grpc.is_server_live()  # answered by the pool that is up
        stop(blue)
        status, _, answer = call(f"{edge.url}/v2/models/m/infer", b"{}")
        assert status == 503
        assert "error" in answer
        edge.stop()
        edge.start()
        blue = start_pool(folder, edge.pools["blue"], BLUE)
        try:
            body = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}).encode()
            assert call(f"{edge.url}/v2/models/m/infer", body)[0] == 200
            assert edge.gateway.split("m") == Split({"blue": 100}, "green")
            assert edge.gateway.set_split("m", Split({"blue": 100})) < 10
        finally:
            stop(blue)


def test_an_overloaded_pool_is_asked_once_more_and_then_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("full")
    with running_edge(folder) as edge:
        blue = start_pool(folder, edge.pools["blue"], BLUE, "--unavailable")
        try:
            address = f"127.0.0.1:{edge.client}"
            mine = Clients(httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address))
            edge.gateway.set_split("m", Split({"blue": 100}))
            for at, protocol in enumerate(("http", "grpc"), 1):
                with pytest.raises(InferenceServerException, match="queue is full"):
                    mine.version(protocol, "m")
                assert edge.count("blue") == 2 * at
        finally:
            stop(blue)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("weights", [{"blue": 50, "green": 50}, {"blue": 0, "green": 100}])
def test_what_a_pool_cannot_answer_the_other_one_does(
    tmp_path_factory: pytest.TempPathFactory, protocol: str, weights: dict[str, int]
) -> None:
    """Dead or overloaded: while both serve the model no client notices, and the answer names who gave it."""
    folder = tmp_path_factory.mktemp("second")
    with running_edge(folder) as edge:
        blue = start_pool(folder, edge.pools["blue"], BLUE)
        green = start_pool(folder, edge.pools["green"], GREEN, "--unavailable")
        try:
            address = f"127.0.0.1:{edge.client}"
            mine = Clients(httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address))
            edge.gateway.set_split("m", Split(weights))
            assert {mine.version(protocol, "m") for _ in range(20)} == {BLUE}
            assert edge.count("green") > 0
            stop(green)
            assert {mine.version(protocol, "m") for _ in range(20)} == {BLUE}
            body = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}).encode()
            for _ in range(5):
                status, headers, _ = call(f"{edge.url}/v2/models/m/infer", body)
                assert (status, headers["x-pool"]) == (200, "blue")
        finally:
            for pool in (blue, green):
                stop(pool)


def test_beyond_the_limit_requests_are_refused_in_both_protocols_and_told_why(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("limited")
    with running_edge(folder) as edge:
        edge.stop()
        write_front(folder, Front(requests_per_s=3))
        edge.start()
        blue = start_pool(folder, edge.pools["blue"], BLUE)
        try:
            address = f"127.0.0.1:{edge.client}"
            mine = Clients(httpclient.InferenceServerClient(address), grpcclient.InferenceServerClient(address))
            edge.gateway.set_split("m", Split({"blue": 100}))
            for protocol, status in (("http", "429"), ("grpc", "StatusCode.RESOURCE_EXHAUSTED")):
                time.sleep(1.1)
                refused = []
                for _ in range(10):
                    try:
                        mine.version(protocol, "m")
                    except InferenceServerException as error:
                        refused.append(error.status())
                assert set(refused) == {status}
                assert 4 <= len(refused) <= 7
        finally:
            stop(blue)


def test_with_a_certificate_clients_of_both_protocols_speak_tls_and_no_other(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = self_signed(folder)
    with running_edge(folder) as edge:
        edge.stop()
        write_front(folder, Front(str(certificate), str(key)))
        edge.start()
        blue = start_pool(folder, edge.pools["blue"], BLUE)
        try:
            edge.gateway.set_split("m", Split({"blue": 100}))
            address = f"localhost:{edge.client}"
            secure = Clients(
                httpclient.InferenceServerClient(
                    address, ssl=True, ssl_context_factory=lambda: ssl.create_default_context(cafile=str(certificate))
                ),
                grpcclient.InferenceServerClient(address, ssl=True, root_certificates=str(certificate)),
            )
            assert {secure.version(protocol, "m") for protocol in ("http", "grpc")} == {BLUE}
            with pytest.raises(OSError, match=r"closed connection|reset"):
                urlopen(f"{edge.url}/v2/health/live", timeout=5)
        finally:
            stop(blue)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate of localhost and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    signed = built.add_extension(names, critical=False).sign(key, hashes.SHA256())
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
