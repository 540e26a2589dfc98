"""Clients that come whether or not those before them were answered: an open loop, in a process of its own.

`python -m tests.bench.arrivals ADDRESS MODEL RATE` asks until its input is closed, then prints what it saw.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np

from tests.serving_stack import ROWS, question

# Enough that a stall of a quarter of a second holds nobody back who comes at 100/s and more.
CLIENTS = 32


@dataclass
class Seen:
    """What came of the requests. latencies count from the instant at which a request was due; p99_ms: of the good."""

    asked: int = 0
    failed: int = 0
    per_s: float = 0.0
    p99_ms: float = float("nan")
    failures: list[str] = field(default_factory=list)


@contextmanager
def arriving(address: str, model: str, rate_per_s: float) -> Iterator[Seen]:
    """Requests of one row at this rate for as long as the block lasts; what came of them is known after it."""
    seen, command = Seen(), [sys.executable, "-m", "tests.bench.arrivals", address, model, str(rate_per_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # the first request was answered
        yield seen
    finally:
        told, _ = process.communicate(timeout=60)
        for name, value in json.loads(told).items():
            setattr(seen, name, value)


class _Crowd:
    """All clients of the process. A request that is due while all of them wait is asked as soon as one is free."""

    def __init__(self, address: str, model: str, rate_per_s: float) -> None:
        self.address, self.path, self.rate_per_s = address, f"/v2/models/{model}/infer", rate_per_s
        self.body = json.dumps(question(ROWS.head(1)))
        self.over, self.lock = threading.Event(), threading.Lock()
        self.taken, self.latencies_ms, self.failures = 0, list[float](), list[str]()
        self.started = time.monotonic()

    def run(self) -> Seen:
        """Until `over` is set."""
        threads = [threading.Thread(target=self._client) for _ in range(CLIENTS)]
        self.started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent, asked = time.monotonic() - self.started, len(self.latencies_ms) + len(self.failures)
        p99 = float(np.quantile(self.latencies_ms, 0.99)) if self.latencies_ms else float("nan")
        return Seen(asked, len(self.failures), asked / spent, p99, self.failures[:10])

    def _client(self) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=10)
        while not self.over.is_set():
            with self.lock:
                due = self.started + self.taken / self.rate_per_s
                self.taken += 1
            time.sleep(max(0.0, due - time.monotonic()))
            failure = self._ask(connection)
            if failure:
                self.failures.append(failure)
            else:
                self.latencies_ms.append(1e3 * (time.monotonic() - due))
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> str:
        try:
            connection.request("POST", self.path, self.body)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return repr(error)
        return "" if answer.status == 200 else f"{answer.status} {said[:200]!r}"


def main(address: str, model: str, rate_per_s: float) -> None:
    """Ask until the input is closed."""
    crowd = _Crowd(address, model, rate_per_s)

    def listen() -> None:
        sys.stdin.read()
        crowd.over.set()

    assert not crowd._ask(http.client.HTTPConnection(address, timeout=10)), "the model is not served"
    print("asking", flush=True)
    threading.Thread(target=listen, daemon=True).start()
    print(json.dumps(asdict(crowd.run())))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
