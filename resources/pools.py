"""Pools of Triton replicas: what each should serve, what its agents say it serves, and how much it served."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from resources.errors import Conflict, DataError, ModelNotReady, PackageRefused, ServingError
from resources.store import Store
from resources.triton import TritonServer

# The pool of cheaper copies, for times of overload. It is no pool of a rollout.
LITE = "lite"
STALE_AFTER_S = 10.0
SWAP_TRIES = 20


@dataclass(frozen=True, slots=True)
class Assignment:
    """One version to serve: the package's key in the store and the SHA-256 of its bytes."""

    version: int
    package: str
    digest: str


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What one replica's agent says of one model.

    state: READY, LOADING, FAILED (Triton could not load it or it answered wrongly), REFUSED (signature, digest or
    layout), or LOST when the agent was not heard of for 10 s. seconds: of the phases fetch, verify, load, probe.
    """

    replica: str
    version: int
    state: str
    reason: str
    digest: str
    seen_at: datetime
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServedCounts:
    """What Triton counted since it loaded the version, warm-up and the agents' own probes among it.

    An error that a Python backend answers within a batch counts as success there: guards judge by the gateway's record.
    """

    success: int
    fail: int


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Pools:
    """The desired state is one pointer a pool, moved by compare-and-swap; the actual state is what agents report."""

    store: Store
    replicas: Mapping[str, tuple[str, ...]]
    triton_urls: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], datetime] = _utc_now

    def desired(self, pool: str) -> dict[str, Assignment]:
        """What the pool should serve, by model."""
        self._known(pool)
        pointer = self.store.pointer(desired_key(pool))
        return {} if pointer is None else read_desired(pointer.body, pool)

    def assign(self, pool: str, model: str, assignment: Assignment) -> None:
        """Let the pool serve this version of the model in place of what it served before."""
        self._change(pool, lambda models: models | {model: assignment})

    def clear(self, pool: str, model: str) -> None:
        """Let the pool serve the model no longer."""
        self._change(pool, lambda models: {name: kept for name, kept in models.items() if name != model})

    def states(self, pool: str, model: str) -> list[ReplicaState]:
        """One state a replica, in the order of the configuration."""
        return [self._state(pool, replica, model) for replica in self._known(pool)]

    def wait_ready(self, pool: str, model: str, assignment: Assignment, timeout_s: float = 60) -> float:
        """Seconds until every replica was READY with exactly this package.

        `PackageRefused` or `ModelNotReady` with the replica's own reason as soon as one says it can't.
        """
        started = time.monotonic()
        while True:
            states = self.states(pool, model)
            for state in states:
                _raise_if_hopeless(pool, model, assignment, state)
            waiting = [s for s in states if s.state != "READY" or s.digest != assignment.digest]
            elapsed = time.monotonic() - started
            if not waiting:
                return elapsed
            if elapsed > timeout_s:
                told = "; ".join(f"{s.replica} is {s.state} with version {s.version} {s.reason}" for s in waiting)
                raise ModelNotReady(f"{model}:{assignment.version} in {pool} after {timeout_s:g} s: {told}")
            time.sleep(0.1)

    def statistics(self, pool: str, model: str, version: int) -> ServedCounts:
        """Answered and failed requests of the version, summed over the replicas, since it was loaded."""
        success = fail = 0
        for replica in self._known(pool):
            stats = self._triton(replica).statistics(model, version)
            success += int(stats["success"]["count"])
            fail += int(stats["fail"]["count"])
        return ServedCounts(success, fail)

    def ask(self, pool: str, model: str, version: int, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The answer of every replica to one request of the Open Inference Protocol, past the gateway."""
        return [self._triton(replica).infer(model, body, version) for replica in self._known(pool)]

    def _triton(self, replica: str) -> TritonServer:
        if replica not in self.triton_urls:
            raise ServingError(f"replica {replica} has no Triton URL: known are {sorted(self.triton_urls)}")
        return TritonServer(self.triton_urls[replica], timeout_s=10)

    def _known(self, pool: str) -> tuple[str, ...]:
        if pool not in self.replicas:
            raise ServingError(f"pool {pool!r} does not exist: known are {sorted(self.replicas)}")
        return self.replicas[pool]

    def _change(self, pool: str, change: Callable[[dict[str, Assignment]], dict[str, Assignment]]) -> None:
        self._known(pool)
        key = desired_key(pool)
        for _ in range(SWAP_TRIES):
            pointer = self.store.pointer(key)
            before = {} if pointer is None else read_desired(pointer.body, pool)
            after = change(before)
            if pointer is not None and after == before:
                return
            try:
                self.store.swap(key, write_desired(after), None if pointer is None else pointer.etag)
            except Conflict:
                continue
            return
        raise Conflict(f"{key}: {SWAP_TRIES} tries, another writer was always first")

    def _state(self, pool: str, replica: str, model: str) -> ReplicaState:
        pointer = self.store.pointer(status_key(pool, replica))
        if pointer is None:
            return ReplicaState(replica, 0, "LOST", "its agent never reported", "", datetime.fromtimestamp(0, UTC))
        status = _parsed(pointer.body, status_key(pool, replica))
        seen_at = datetime.fromisoformat(status["seen_at"])
        told = status["models"].get(model)
        if told is None:
            told = {"version": 0, "state": "LOADING", "reason": "not taken up yet", "digest": "", "seconds": {}}
        age_s = (self.now() - seen_at).total_seconds()
        if age_s > STALE_AFTER_S:
            told = told | {"state": "LOST", "reason": f"its agent was last heard of {age_s:.0f} s ago"}
        return ReplicaState(
            replica, told["version"], told["state"], told["reason"], told["digest"], seen_at, told["seconds"]
        )


def desired_key(pool: str) -> str:
    return f"serving/{pool}.json"


def status_key(pool: str, replica: str) -> str:
    return f"serving/status/{pool}/{replica}.json"


def read_desired(body: bytes, pool: str) -> dict[str, Assignment]:
    """The desired state of a pool; `DataError` when the pointer holds something else."""
    models = _parsed(body, desired_key(pool))
    try:
        return {
            model: Assignment(int(a["version"]), a["package"], a["digest"]) for model, a in models["models"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{desired_key(pool)} is not a desired state: {error!r}") from error


def write_desired(models: Mapping[str, Assignment]) -> bytes:
    return json.dumps({"models": {name: asdict(a) for name, a in sorted(models.items())}}, indent=1).encode()


def write_status(replica: str, seen_at: datetime, states: Mapping[str, ReplicaState]) -> bytes:
    """What an agent reports: one entry a model."""
    models = {
        model: {
            "version": state.version,
            "state": state.state,
            "reason": state.reason,
            "digest": state.digest,
            "seconds": dict(state.seconds),
        }
        for model, state in sorted(states.items())
    }
    return json.dumps({"replica": replica, "seen_at": seen_at.isoformat(), "models": models}, indent=1).encode()


def _parsed(body: bytes, key: str) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise DataError(f"{key} is not JSON: {error}") from error
    if not isinstance(parsed, dict) or not isinstance(parsed.get("models"), dict):
        raise DataError(f"{key} holds no 'models': {parsed!r:.200}")
    return parsed


def _raise_if_hopeless(pool: str, model: str, assignment: Assignment, state: ReplicaState) -> None:
    if state.digest != assignment.digest:
        return
    told = f"{model}:{assignment.version} in {pool}: {state.replica} says {state.state}: {state.reason}"
    if state.state == "REFUSED":
        raise PackageRefused(told)
    if state.state == "FAILED":
        raise ModelNotReady(told)
