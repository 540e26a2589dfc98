"""The observer's working parts put together: decode, write, count. Each runs in a thread of its own."""

import json
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from pipelines.observer.envoy_messages import message_class
from pipelines.observer.inbox import Inbox
from pipelines.observer.ledger import SETTLED_AFTER_S, Ledger
from pipelines.observer.live import Live
from pipelines.observer.metrics import Metrics
from pipelines.observer.rows import Access, Answer, access, answer, entries
from pipelines.observer.writer import Writer
from resources.envoy_config import REQUEST_COUNTER
from resources.errors import Conflict, DataError, GatewayError, StoreError, TrafficError
from resources.segments import ACCESS, ANSWERS
from resources.store import Store

LEDGER_KEY = "log/completeness.json"
INBOX_BYTES = 256 * 1024 * 1024

_DECODE_EVERY_S, _SAMPLE_EVERY_S, _SAVE_EVERY_S = 0.1, 1.0, 5.0


class Observer:
    """envoy_admin: where Envoy's own counter is read. event_time_header: honoured only when it is given."""

    def __init__(
        self,
        store: Store,
        envoy_admin: str,
        event_time_header: str | None = None,
        flush_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.envoy_admin, self.clock = store, envoy_admin.rstrip("/"), clock
        self.event_time_header = event_time_header
        self.inbox, self.metrics, self.writer = Inbox(INBOX_BYTES), Metrics(), Writer(store, flush_s)
        self.ledger, self.live = Ledger(), Live(store)
        self.undecoded = {ACCESS: 0, ANSWERS: 0}
        self.last_undecoded, self.last_error = "", ""
        self._decoding, self._stopping = threading.Lock(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._resumed, self._saved_at = False, 0.0
        self._ledger_etag: str | None = None

    def prepare(self) -> None:
        """Before Envoy is listened to: what is imported while copies come in costs copies, and counts need a start."""
        message_class("StreamAccessLogsMessage")
        import_module("tritonclient.grpc.service_pb2")
        self.writer.prepare()
        self.live.prepare()
        try:
            self._read_count()
        except (GatewayError, StoreError) as error:
            self.last_error = str(error)

    def start(self) -> None:
        for work, every_s in ((self.decode, _DECODE_EVERY_S), (self._tick, 0.2), (self._sample, _SAMPLE_EVERY_S)):
            thread = threading.Thread(target=self._repeat, args=(work, every_s), name=work.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout_s: float = 10) -> None:
        """Write what is held, trying for timeout_s; rows that the store does not take by then are lost."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.decode()
                self.writer.write(time.monotonic(), force=True)
                self.ledger.settle(self.clock(), force=True)
                self.live.look(time.monotonic(), force=True)
                self.live.save()
                return self._save()
            except StoreError as error:
                self.last_error = str(error)
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.5)

    def decode(self) -> None:
        """Bytes that came in become rows to be written."""
        with self._decoding:
            for message in self.inbox.take():
                found = self._entries(message)
                rows = [row for _, row in found]
                read = [(row, kept) for entry, row in found if (kept := self._answer(entry, row))]
                self.writer.add_access(rows)
                self.metrics.saw(rows)
                self.ledger.saw_access((_ended(row), row.ok) for row in rows)
                self.writer.add_answers([kept for _, kept in read])
                self.live.add([kept for _, kept in read])
                self.metrics.rows.labels(ANSWERS).inc(sum(len(kept.keys) for _, kept in read))
                self.ledger.saw_answers(_ended(row) for row, _ in read)

    def flush(self) -> dict[str, Any]:
        """Wait for what Envoy still holds, write everything. `StoreError` when the store does not take it."""
        self._catch_up()
        self.writer.write(time.monotonic(), force=True)
        return {"written": dict(self.writer.written)}

    def completeness(self, since: float | None = None) -> dict[str, Any]:
        """The fields of `resources.traffic.Completeness`. `GatewayError` when Envoy's count cannot be read."""
        self._catch_up()
        bounds = self.ledger.between(since)
        if bounds is None:
            raise TrafficError("no count of requests yet: ask again in a few seconds")
        first, last = bounds
        requests, access = last.requests - first.requests, last.access - first.access
        ok, answers = last.ok - first.ok, last.answers - first.answers
        return {
            "requests": requests,
            "access_rows": access,
            "answers_rows": answers,
            "share_access": _share(access, requests),
            "share_answers": _share(answers, ok) if ok else _share(access, requests),
        }

    def status(self) -> dict[str, Any]:
        return {
            "held_bytes": self.inbox.held_bytes,
            "held_rows": self.writer.held_rows,
            "pending_segments": len(self.writer.pending),
            "written_rows": dict(self.writer.written),
            "dropped": {**self.writer.dropped, "inbox": self.inbox.dropped, "live": self.live.dropped},
            "undecoded": dict(self.undecoded),
            "last_undecoded": self.last_undecoded,
            "store_failures": self.writer.failures,
            "last_error": self.writer.last_error or self.last_error or self.live.last_error,
        }

    def metrics_text(self) -> bytes:
        for kind in (ACCESS, ANSWERS):
            self.metrics.dropped.labels(kind).set(self.writer.dropped[kind])
            self.metrics.held.labels(kind).set(self.writer.held_rows[kind])
        self.metrics.dropped.labels("inbox").set(self.inbox.dropped)
        self.metrics.store_failures.set(self.writer.failures)
        self.metrics.drift(self.live.status())
        bounds = self.ledger.between(self.clock() - 300)
        if bounds is not None:
            first, last = bounds
            self.metrics.completeness.labels(ACCESS).set(
                _share(last.access - first.access, last.requests - first.requests)
            )
            self.metrics.completeness.labels(ANSWERS).set(_share(last.answers - first.answers, last.ok - first.ok))
        return self.metrics.text()

    def _entries(self, message: bytes) -> list[tuple[Any, Access]]:
        try:
            return [(entry, access(entry, self.event_time_header)) for entry in entries(message)]
        except DataError as error:
            self._could_not_read(ACCESS, error)
            return []

    def _answer(self, entry: Any, row: Access) -> Answer | None:
        try:
            return answer(entry, row)
        except Exception as error:  # whatever a client sends must not stop the log
            self._could_not_read(ANSWERS, error)
            return None

    def _could_not_read(self, kind: str, error: Exception) -> None:
        self.undecoded[kind] += 1
        self.metrics.undecoded.labels(kind).inc()
        self.last_undecoded = f"{kind}: {error}"

    def _catch_up(self) -> None:
        """Read Envoy's count, and return when all of it is here, or would have to be."""
        self._read_count()
        deadline = time.monotonic() + SETTLED_AFTER_S
        while not self.ledger.is_caught_up() and time.monotonic() < deadline:
            time.sleep(0.05)
            self.decode()
        self.decode()
        self.ledger.settle(self.clock(), force=True)

    def _read_count(self) -> None:
        before = self.clock()
        count = read_requests(self.envoy_admin)
        self.ledger.read(before, self.clock(), count)
        self._resume()

    def _sample(self) -> None:
        self._read_count()
        self.ledger.settle(self.clock())

    def _tick(self) -> None:
        now = time.monotonic()
        self.writer.write(now)
        self.live.look(now)
        if now - self._saved_at >= _SAVE_EVERY_S and self._resumed:
            self._saved_at = now
            self._save()

    def _resume(self) -> None:
        if not self._resumed:
            pointer = self.store.pointer(LEDGER_KEY)
            if pointer is not None:
                self.ledger.resume(json.loads(pointer.body))
                self._ledger_etag = pointer.etag
            self._resumed = True

    def _save(self) -> None:
        saved = self.ledger.saved()
        if saved is None:
            return
        try:
            self._ledger_etag = self.store.swap(LEDGER_KEY, json.dumps(saved).encode(), self._ledger_etag)
        except Conflict:
            # A swap whose answer got lost: take up the etag that it left.
            pointer = self.store.pointer(LEDGER_KEY)
            self._ledger_etag = pointer.etag if pointer else None

    def _repeat(self, work: Callable[[], None], every_s: float) -> None:
        while not self._stopping.wait(every_s):
            try:
                work()
            except Exception as error:  # a thread that died would be silence
                self.last_error = f"{work.__name__}: {error!r}"


def _ended(row: Access) -> float:
    """Unix seconds."""
    return row.seen_us / 1e6 + row.latency_ms / 1e3


def read_requests(envoy_admin: str) -> int:
    """Envoy's own count of finished inference requests of all models."""
    url = f"{envoy_admin}/stats?filter=^{REQUEST_COUNTER}"
    try:
        with urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except (URLError, OSError) as error:
        raise GatewayError(f"{url}: {error}: is Envoy up?") from error
    return sum(int(line.rpartition(":")[2]) for line in lines if ":" in line)


def _share(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0
