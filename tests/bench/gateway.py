"""The gateway on real servers: what it costs a request, and what clients notice when weights move.

`python -m tests.bench.gateway cost` and `switches` print one part alone.
"""

import http.client
import json
import math
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pipelines.demo.clients import Pace
from resources.envoy_config import bootstrap
from resources.gateway import Split
from resources.local import envoy
from tests.bench.lines import Line, at_most
from tests.gateway_stack import SERVERS, free_ports, is_open, start, stop
from tests.rollout_stack import MODEL, Site, running_site
from tests.serving_stack import ROWS, question, until

RATE_PER_S, SWITCHES = 300.0, 100
ROUNDS, EACH = 30, 60
ALLOWED_US = 250
FORWARDED = {"/inference.": "grpc", "/": "http"}


def lines() -> Iterator[Line]:
    """About a minute."""
    with tempfile.TemporaryDirectory() as name, running_site(Path(name)) as site:
        for part in PARTS.values():
            yield from part(site)


def cost(site: Site) -> Iterator[Line]:
    """One client, a request after the other, three ways by turns, so that all see the same load.

    An Envoy that does nothing but forward stands beside ours: what a hop costs on this machine, whoever makes it.
    """
    _in_both_pools(site)
    site.edge.gateway.set_split(MODEL, Split({"blue": 100}))
    ports = site.edge.pools["blue"]
    with _forwarding(site.edge.folder / "forwarding", ports) as forwarding:
        for protocol, direct, ask in (("HTTP", ports[0], _http), ("gRPC", ports[1], _grpc)):
            paths = {"direct": ask(direct), "forwarding": ask(forwarding), "gateway": ask(site.edge.client)}
            seconds: dict[str, list[float]] = {name: [] for name in paths}
            for _ in range(ROUNDS):
                for name, once in paths.items():
                    for _ in range(EACH):
                        began = time.perf_counter()
                        once()
                        seconds[name].append(time.perf_counter() - began)
            median = {name: 1e6 * float(np.median(values[EACH:])) for name, values in seconds.items()}
            more, hop = (median[name] - median["direct"] for name in ("gateway", "forwarding"))
            name = f"{protocol}: p50 through the gateway, logged with bodies, beyond direct ({median['direct']:.0f} µs)"
            reference = f"an Envoy that only forwards, {hop:.0f} µs more than direct"
            yield Line("canary", name, more, "µs", f"≤ {ALLOWED_US} µs", more <= ALLOWED_US, more / hop, reference)


@contextmanager
def _forwarding(folder: Path, ports: tuple[int, int]) -> Iterator[int]:
    """The port of a bare Envoy: ours, less its logs, its filters and its care for what clients send."""
    client, admin, nobody = free_ports(3)
    config = bootstrap(folder, client, admin, {"blue": ports}, nobody)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    ways = [{"match": {"prefix": path}, "route": {"cluster": f"blue-{kind}"}} for path, kind in FORWARDED.items()]
    hosts = [{"name": "all", "domains": ["*"], "routes": ways}]
    bare = {key: manager[key] for key in ("@type", "stat_prefix", "codec_type")}
    bare |= {"route_config": {"virtual_hosts": hosts}, "http_filters": manager["http_filters"][-1:]}
    config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"] = bare
    folder.mkdir(parents=True)
    (folder / envoy.BOOTSTRAP_FILE).write_text(json.dumps(config))
    process = start(envoy.command(SERVERS, folder), folder / "envoy.log")
    try:
        until(lambda: is_open(client), "a bare Envoy listens")
        yield client
    finally:
        stop(process)


def _http(port: int) -> Callable[[], None]:
    """Over a bare socket, each request in one piece: http.client sends two, and each hop would wake for both."""
    body = json.dumps(question(ROWS[:1])).encode()
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: {port}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def once() -> None:
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        answer.read()
        answer.close()
        if answer.status != 200:
            raise RuntimeError(f"port {port}: {answer.status}")

    return once


def _grpc(port: int) -> Callable[[], None]:
    import tritonclient.grpc as grpcclient

    client, tensors = grpcclient.InferenceServerClient(f"127.0.0.1:{port}"), []
    for item in question(ROWS[:1])["inputs"]:
        tensor = grpcclient.InferInput(item["name"], item["shape"], item["datatype"])
        kind = {"BYTES": np.object_, "FP32": np.float32, "INT64": np.int64}[item["datatype"]]
        tensor.set_data_from_numpy(np.array(item["data"], dtype=kind).reshape(item["shape"]))
        tensors.append(tensor)
    return lambda: client.infer(MODEL, tensors)


def switches(site: Site) -> Iterator[Line]:
    """All traffic from one version to the other and back, while clients ask."""
    _in_both_pools(site)
    failed, asked, late = _under_load(site)
    name = (
        f"{SWITCHES} promotions and rollbacks of a real model at {RATE_PER_S:.0f}/s: failed client requests of {asked}"
    )
    yield Line("canary", name, float(failed), "", "0", failed == 0 and asked > 100)
    yield at_most("canary", "rollback order to last answer of the challenger, slowest", max(late), "s", 1)
    yield Line("canary", "of these, median", float(np.median(late)), "s", "for comparison", True)


def _in_both_pools(site: Site) -> None:
    """Version 1 in blue and version 2 in green, as after a promotion."""
    for pool in site.edge.pools:
        if MODEL not in site.pools.desired(pool):
            assignment = site.publish()
            site.pools.assign(pool, MODEL, assignment)
            site.pools.wait_ready(pool, MODEL, assignment)


def _under_load(site: Site) -> tuple[int, int, list[float]]:
    gateway = site.edge.gateway
    gateway.set_split(MODEL, Split({"blue": 100}))
    answers: list[tuple[float, str]] = []  # when it ended, pool; '' for a failure
    over, pace = threading.Event(), Pace(RATE_PER_S)
    clients = [threading.Thread(target=_ask, args=(site.edge.client, pace, over, answers)) for _ in range(8)]
    for client in clients:
        client.start()
    orders = []
    try:
        time.sleep(0.5)
        for number in range(SWITCHES):
            old, new = ("blue", "green") if number % 2 == 0 else ("green", "blue")
            orders.append((time.monotonic(), old))
            gateway.set_split(MODEL, Split({new: 100}))
            time.sleep(0.1)
    finally:
        over.set()
        for client in clients:
            client.join()
    ends = [at for at, _ in orders[1:]] + [math.inf]
    late = [
        max((at for at, pool in answers if pool == old and order < at < end), default=order) - order
        for (order, old), end in zip(orders, ends, strict=True)
    ]
    return sum(pool == "" for _, pool in answers), len(answers), late


def _ask(port: int, pace: Pace, over: threading.Event, answers: list[tuple[float, str]]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps(question(ROWS[:1]))
    while not over.is_set():
        pace.wait()
        try:
            connection.request("POST", f"/v2/models/{MODEL}/infer", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            pool = str(answer.getheader("x-pool", "")) if answer.status == 200 else ""
        except (OSError, http.client.HTTPException):
            connection.close()
            pool = ""
        answers.append((time.monotonic(), pool))


PARTS: dict[str, Callable[[Site], Iterator[Line]]] = {"cost": cost, "switches": switches}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, running_site(Path(folder)) as running:
        for part in sys.argv[1:] or PARTS:
            for line in PARTS[part](running):
                print(line, flush=True)
