"""Stock Triton clients, HTTP and gRPC by turns, at a pace that can change while they run."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd

from assets.scoring import tensors

DATATYPES = {"string": "BYTES", "float": "FP32", "int": "INT64", "bool": "BOOL"}
EVENT_TIME = "x-event-time"


@dataclass
class Pace:
    """At most `rate_per_s` requests a second over all clients; the rate may be changed at any time."""

    rate_per_s: float
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep) -> None:
        """Until it is this request's turn. A slow second is not made up for by a burst."""
        with self._lock:
            now = clock()
            turn = max(now, self._next)
            self._next = turn + 1 / self.rate_per_s
        if turn > now:
            pause(turn - now)


@dataclass
class Count:
    """What the clients themselves saw. `failures` keeps the first few messages."""

    served: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, failure: str | None) -> None:
        with self._lock:
            if failure is None:
                self.served += 1
            else:
                self.failed += 1
                if len(self.failures) < 20:
                    self.failures.append(failure)


class Clients:
    """A few threads, each with a client of its own. Use as a context manager."""

    def __init__(self, address: str, model: str, features: Mapping[str, str], pace: Pace, threads: int = 4) -> None:
        self.model, self.features, self.pace, self.count = model, features, pace, Count()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="client")
        self._local = threading.local()
        self._protocols = cycle(["grpc", "http"])
        self._address, self._lock = address, threading.Lock()
        self._stopped = threading.Event()

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def send(self, rows: pd.DataFrame) -> None:
        """One request a row, in order; returns when all were answered. rows: entity, event_time and the features."""
        columns = tensors(rows, self.features)
        keys = rows["entity"].astype(str).tolist()
        times = [at.isoformat().replace("+00:00", "Z") for at in rows["event_time"]]
        futures = [
            self._pool.submit(
                self._one, keys[i], times[i], {name: values[i : i + 1] for name, values in columns.items()}
            )
            for i in range(len(rows))
        ]
        for future in futures:
            future.result()

    def _one(self, key: str, event_time: str, inputs: Mapping[str, np.ndarray]) -> None:
        if self._stopped.is_set():
            return
        self.pace.wait()
        try:
            self._infer(key, event_time, inputs)
        except Exception as error:  # whatever a client sees is a failed request: it is counted, never raised
            self.count.add(f"{type(error).__name__}: {error}"[:300])
        else:
            self.count.add(None)

    def _infer(self, key: str, event_time: str, inputs: Mapping[str, np.ndarray]) -> None:
        client, module = self._client()
        tensors = []
        for name, values in inputs.items():
            tensor = module.InferInput(name, list(values.shape), DATATYPES[self.features[name]])
            tensor.set_data_from_numpy(values)
            tensors.append(tensor)
        client.infer(self.model, tensors, request_id=key, headers={EVENT_TIME: event_time})

    def _client(self) -> tuple[Any, Any]:
        if not hasattr(self._local, "client"):
            with self._lock:
                protocol = next(self._protocols)
            if protocol == "grpc":
                import tritonclient.grpc as module
            else:
                import tritonclient.http as module
            self._local.client, self._local.module = module.InferenceServerClient(self._address), module
        return self._local.client, self._local.module


def by_day(rows: pd.DataFrame) -> Iterator[tuple[datetime, pd.DataFrame]]:
    """Rows of each UTC day, in order. rows: sorted by event_time."""
    for day, group in rows.groupby(rows["event_time"].dt.floor("D"), sort=True):
        yield pd.Timestamp(day).to_pydatetime(), group
