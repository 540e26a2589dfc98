"""The gateway on real servers: what it costs a request, and what clients notice when weights move.

`python -m tests.bench.gateway cost` and `switches` print one part alone.
"""

import http.client
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pipelines.demo.clients import Pace
from resources.gateway import Split
from tests.bench.lines import Line, at_most
from tests.rollout_stack import MODEL, Site, running_site
from tests.serving_stack import ROWS, question

RATE_PER_S, SWITCHES = 300.0, 100
ROUNDS, EACH = 30, 60
ALLOWED_US = 250


def lines() -> Iterator[Line]:
    """About a minute."""
    with tempfile.TemporaryDirectory() as name, running_site(Path(name)) as site:
        for part in PARTS.values():
            yield from part(site)


def cost(site: Site) -> Iterator[Line]:
    """One client, a request after the other, direct and through the gateway by turns: both see the same load."""
    _in_both_pools(site)
    site.edge.gateway.set_split(MODEL, Split({"blue": 100}))
    ports = site.edge.pools["blue"]
    for protocol, direct, ask in (("HTTP", ports[0], _http), ("gRPC", ports[1], _grpc)):
        paths = {"direct": ask(direct), "gateway": ask(site.edge.client)}
        seconds: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(ROUNDS):
            for name, once in paths.items():
                for _ in range(EACH):
                    began = time.perf_counter()
                    once()
                    seconds[name].append(time.perf_counter() - began)
        median = {name: 1e6 * float(np.median(values[EACH:])) for name, values in seconds.items()}
        more, plain = median["gateway"] - median["direct"], median["direct"]
        name = f"{protocol}: p50 through the gateway, its log and its copies, beyond direct"
        reference = f"direct, {plain:.0f} µs"
        met = more <= ALLOWED_US
        yield Line("canary", name, more, "µs", f"≤ {ALLOWED_US} µs", met, median["gateway"] / plain, reference)


def _http(port: int) -> Callable[[], None]:
    connection, body = http.client.HTTPConnection("127.0.0.1", port, timeout=10), json.dumps(question(ROWS[:1]))
    connection.connect()

    def once() -> None:
        connection.request("POST", f"/v2/models/{MODEL}/infer", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
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
