"""The agent beside each Triton: makes what is loaded what is desired. `python -m pipelines.agent --help`

Whatever fails, what served before goes on serving: a dead store, a refused package, a restarted Triton.
"""

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pipelines.desired import Desired, Traffic, unused
from pipelines.heartbeat import Heartbeat
from pipelines.reconcile import Action, Confirm, Install, Loaded, Reload, Remove, pause_s, plan
from pipelines.replica import Installed, Replica
from resources.errors import NotFound, PackageRefused, ServingError, StoreError, TrimtabError
from resources.pools import Assignment, ReplicaState
from resources.store import S3Store, Store
from resources.triton import TritonServer

log = logging.getLogger("trimtab.agent")
HEALTH_S = 5.0
VERIFY_S = 60.0
# An agent that had nothing to do for this long looks less often: most of them idle for days.
CALM_AFTER_S = 10.0
CALM_PAUSE_S = 1.0
# Triton's words for a model whose process died; its index goes on calling it READY.
DEAD = "is not healthy"


@dataclass(frozen=True, slots=True)
class Failure:
    """The last of `count` failed tries with this package, and when the next one is due."""

    digest: str
    count: int
    next_at: float


@dataclass
class Agent:
    """Reconciles one replica, a step at a time. `states` is what the heartbeat reports."""

    name: str
    replica: Replica
    store: Store
    desired: Desired
    clock: Callable[[], float] = time.monotonic
    use: Callable[[str], str] = unused
    states: dict[str, ReplicaState] = field(default_factory=dict)
    changed: threading.Event = field(default_factory=threading.Event)
    failures: dict[str, Failure] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    probed_at: float = 0.0
    moved_at: float = 0.0
    verified_at: dict[str, float] = field(default_factory=dict)
    changed_files: dict[str, str] = field(default_factory=dict)

    def step(self) -> None:
        """One pass: read what is desired, look at what is loaded, do what is missing."""
        desired = self.desired.read()
        try:
            loaded = self.replica.look()
        except ServingError as error:
            self._lost_triton(error)
            return
        self._find_dead([model for model, state in loaded.items() if state.ready])
        for model in self.dead & set(loaded):
            loaded[model] = replace(loaded[model], ready=False)
        for model in self._find_changed():
            loaded[model] = replace(loaded[model], digest="")
        reported = {model: state.digest for model, state in self.states.items() if state.state == "READY"}
        for action in plan(desired, loaded, reported, self._resting(desired or {})):
            if isinstance(action, Remove) and self._stays(action.model):
                continue
            self._do(action, loaded.get(action.model))
        for model in set(self.states) - set(desired or self.states) - set(loaded):
            self._forget(model)

    def pause_s(self, interval_s: float) -> float:
        """Seconds until the next step: interval_s while something moves, longer once all was calm for a while."""
        calm = self.clock() - self.moved_at > CALM_AFTER_S
        return max(interval_s, CALM_PAUSE_S) if calm else interval_s

    def _find_dead(self, models: list[str]) -> None:
        if self.clock() - self.probed_at < HEALTH_S:
            return
        self.probed_at = self.clock()
        for model in set(models) & set(self.replica.known):
            try:
                self.replica.confirm(model)
            except (TrimtabError, OSError) as error:
                log.warning("%s: %s", model, error)
                if DEAD in str(error):
                    self.dead.add(model)

    def _find_changed(self) -> list[str]:
        """At most one model a step, the one verified longest ago: files that changed on the disk since."""
        for model in self.replica.known:
            self.verified_at.setdefault(model, self.clock())
        due = min(self.replica.known, key=self.verified_at.__getitem__, default=None)
        if due is None or self.clock() - self.verified_at[due] < VERIFY_S:
            return []
        self.verified_at[due] = self.clock()
        version, digest = self.replica.known[due]
        try:
            self.replica.check(due)
        except PackageRefused as error:
            self.changed_files[due] = str(error)
            kept = f"{error}; what was verified goes on serving from memory"
            self._tell(due, version, "REFUSED", kept, digest)
            return [due]
        return []

    def _stays(self, model: str) -> bool:
        """Nobody desires it, but requests still come: the gateway's weights go first."""
        why = self.use(model)
        if why and model in self.states:
            state = self.states[model]
            told = f"not unloaded: {why}"
            if state.reason != told:
                self._tell(model, state.version, state.state, told, state.digest)
        return bool(why)

    def _lost_triton(self, error: ServingError) -> None:
        for model, state in self.states.items():
            if state.state == "READY":
                self._tell(model, state.version, "LOADING", str(error), state.digest)

    def _resting(self, desired: dict[str, Assignment]) -> set[str]:
        """Models whose last try failed a moment ago; another assignment is tried at once."""
        return {
            model
            for model, failure in self.failures.items()
            if self.clock() < failure.next_at and (model not in desired or desired[model].digest == failure.digest)
        }

    def _do(self, action: Action, before: Loaded | None) -> None:
        model = action.model
        version, digest = self._subject(action)
        if not isinstance(action, Confirm):
            self._tell(model, version, "LOADING", f"{type(action).__name__.lower()} goes on", digest)
        try:
            match action:
                case Install():
                    done = self.replica.install(model, action.assignment, self.store)
                case Reload():
                    done = self.replica.reload(model)
                case Confirm():
                    done = self.replica.confirm(model)
                case Remove():
                    self.replica.remove(model)
                    self._forget(model)
                    return
        except (TrimtabError, OSError) as error:
            kept = f"; version {before.version} goes on serving" if before and before.ready else ""
            self._failed(model, version, digest, error, kept)
            return
        self.failures.pop(model, None)
        self.dead.discard(model)
        self._ready(model, done)

    def _subject(self, action: Action) -> tuple[int, str]:
        if isinstance(action, Install):
            return action.assignment.version, action.assignment.digest
        return self.replica.known.get(action.model, (0, ""))

    def _ready(self, model: str, done: Installed) -> None:
        version, digest = self.replica.known[model]
        reason = f"{done.rows} rows probed, largest difference {done.difference:.2g}"
        if "verify" in done.seconds:
            self.verified_at[model] = self.clock()
            changed = self.changed_files.pop(model, "")
            reason += f"; fetched again: {changed}" * bool(changed)
        self._tell(model, version, "READY", reason, digest, done.seconds)

    def _failed(self, model: str, version: int, digest: str, error: Exception, kept: str) -> None:
        last = self.failures.get(model)
        count = last.count + 1 if last and last.digest == digest else 1
        pause = pause_s(count)
        self.failures[model] = Failure(digest, count, self.clock() + pause)
        self._tell(model, version, _state_of(error), f"{error}{kept}; next try in {pause:g} s", digest)

    def _tell(
        self, model: str, version: int, state: str, reason: str, digest: str, seconds: dict[str, float] | None = None
    ) -> None:
        log.info("%s:%s %s: %s %s", model, version, state, reason, seconds or "")
        self.states[model] = ReplicaState(
            self.name, version, state, reason, digest, datetime.now(UTC), dict(seconds or {})
        )
        self._moved()

    def _forget(self, model: str) -> None:
        log.info("%s: gone", model)
        self.states.pop(model, None)
        self.failures.pop(model, None)
        self.verified_at.pop(model, None)
        self.dead.discard(model)
        self._moved()

    def _moved(self) -> None:
        self.moved_at = self.clock()
        self.changed.set()


def _state_of(error: Exception) -> str:
    match error:
        case PackageRefused():
            return "REFUSED"
        case NotFound():
            return "FAILED"
        case StoreError():
            return "LOADING"  # the store will be back
    # A Triton that says no has failed to load it; one that says nothing will be back.
    return "LOADING" if type(error) is ServingError else "FAILED"


def run(pool: str, agent: Agent, interval_s: float, stop: threading.Event) -> None:
    """Reconcile and report until told to stop."""
    agent.replica.open()
    heart = Heartbeat(pool, agent, stop)
    thread = threading.Thread(target=heart.run, name="heartbeat", daemon=True)
    heart.beat()
    thread.start()
    log.info("agent of %s in pool %s beside %s", agent.name, pool, agent.replica.server.url)
    while not stop.is_set():
        agent.step()
        stop.wait(agent.pause_s(interval_s))
    thread.join(timeout=10)
    log.info("agent of %s stopped", agent.name)


def main(arguments: list[str] | None = None) -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.agent", description=__doc__)
    parser.add_argument("--pool", required=True, help="the pool this replica belongs to")
    parser.add_argument("--replica", required=True, help="the name under which it reports")
    parser.add_argument("--triton", required=True, help="Triton's HTTP address, http://127.0.0.1:8000")
    parser.add_argument("--repository", required=True, type=Path, help="Triton's model repository; only we write there")
    parser.add_argument("--public-key", required=True, type=Path, action="append", help="twice while keys are rotated")
    parser.add_argument("--control-key", type=Path, help="file with the key of Triton's model control")
    parser.add_argument("--s3-endpoint", help="of any S3 but AWS")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--gateway-folder", type=Path, help="a model that still gets traffic there is not unloaded")
    parser.add_argument("--interval-s", type=float, default=0.5, help="between two looks while something moves, else 1")
    given = parser.parse_args(arguments)
    for key in given.public_key:
        if not key.is_file():
            parser.error(f"--public-key {key}: no such file")
    if given.control_key is not None and not given.control_key.is_file():
        parser.error(f"--control-key {given.control_key}: no such file")
    control = given.control_key.read_text().strip() if given.control_key else ""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = TritonServer(given.triton, control_key=control)
    replica = Replica(server, given.repository, tuple(given.public_key))
    store = S3Store(given.bucket, given.s3_endpoint)
    use = unused if given.gateway_folder is None else Traffic(given.pool, given.gateway_folder).use
    agent = Agent(given.replica, replica, store, Desired(given.pool, store, time.monotonic), use=use)
    run(given.pool, agent, given.interval_s, stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
