"""Fakes of ports, each held to the contract that the real one passes (tests/contracts)."""

import hashlib
import threading
from pathlib import Path

from resources.errors import Conflict, GatewayError, NotFound, StoreError
from resources.gateway import Fallback, Split, validate
from resources.store import Pointer


class MemoryStore:
    """`resources.store.Store` in memory. `down = True` makes every call raise `StoreError`, as a dead server does."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.down = False
        self.gets: list[str] = []
        self.lock = threading.Lock()

    def put(self, key: str, body: bytes) -> None:
        with self.lock:
            self._reach(key)
            if self.objects.setdefault(key, body) != body:
                raise Conflict(f"{key} is immutable and holds other bytes: write under another key")

    def get(self, key: str) -> bytes:
        with self.lock:
            self._reach(key)
            self.gets.append(key)
            if key not in self.objects:
                raise NotFound(f"{key}: no such object")
            return self.objects[key]

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def fetch(self, key: str, path: Path) -> None:
        path.write_bytes(self.get(key))

    def keys(self, prefix: str, after: str = "") -> list[str]:
        with self.lock:
            self._reach(prefix)
            return sorted(key for key in self.objects if key.startswith(prefix) and key > after)

    def pointer(self, key: str) -> Pointer | None:
        with self.lock:
            self._reach(key)
            body = self.objects.get(key)
            return None if body is None else Pointer(body, _etag(body))

    def swap(self, key: str, body: bytes, etag: str | None) -> str:
        with self.lock:
            self._reach(key)
            held = self.objects.get(key)
            if (None if held is None else _etag(held)) != etag:
                raise Conflict(f"{key}: another writer was first")
            self.objects[key] = body
            return _etag(body)

    def _reach(self, key: str) -> None:
        if self.down:
            raise StoreError(f"{key}: the store is down")


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


class MemoryGateway:
    """`resources.gateway.Gateway` in memory. `confirms = False` makes every change fail, as a dead Envoy does."""

    def __init__(self, pools: tuple[str, ...] = ("blue", "green")) -> None:
        self.pools = pools
        self.confirms = True
        self.held: dict[str, Split] = {}
        self.history: list[tuple[str, Split]] = []
        self.in_need: dict[str, Fallback] = {}

    def splits(self) -> dict[str, Split]:
        return dict(self.held)

    def split(self, model: str) -> Split | None:
        return self.held.get(model)

    def set_split(self, model: str, split: Split, timeout_s: float = 10) -> float:
        validate(model, split, self.pools)
        self._confirm()
        self.held[model] = split
        self.history.append((model, split))
        return 0.0

    def remove(self, model: str) -> None:
        self._confirm()
        self.held.pop(model, None)

    def fallbacks(self) -> dict[str, Fallback]:
        return dict(self.in_need)

    def set_fallback(self, model: str, fallback: Fallback | None, timeout_s: float = 10) -> float:
        self._confirm()
        self.in_need = {name: one for name, one in self.in_need.items() if name != model}
        self.in_need |= {model: fallback} if fallback else {}
        return 0.0

    def _confirm(self) -> None:
        if not self.confirms:
            raise GatewayError("Envoy does not confirm")
