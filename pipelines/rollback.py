"""Taking a version back by hand: a promoted one by one change of weights, one on its way up through its driver."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from assets.canary.driver import ROLLED_BACK, Driver, load, order_back, rollout_key
from assets.canary.lease import orphaned
from assets.canary.revert import decision, refusal, reverted
from assets.canary.rollout import Phase, Rollout
from assets.decision import Decision
from assets.door import decision_key
from resources.errors import Conflict, NotFound, ServingError
from resources.gateway import Gateway, Split
from resources.lineage import Lineage
from resources.pools import LITE, Pools
from resources.releases import published
from resources.store import Pointer, Store
from resources.traffic import Traffic

BY_HAND = "command line"
# A driver sees an order within a look; its pool and gateway may take their time.
PATIENCE_S = 60.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What came of it. seconds: from the order to the gateway's confirmation."""

    model: str
    version: int
    back_to: int | None
    seconds: float
    reason: str
    record: str | None


@dataclass(frozen=True)
class Operator:
    """A person's hand on the rollouts."""

    store: Store
    pools: Pools
    gateway: Gateway
    traffic: Traffic
    lineage: Lineage
    say: Callable[[str], None]
    now: Callable[[], datetime] = _utc_now
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def roll_back(self, model: str, reason: str) -> RolledBack:
        """End a rollout that runs, or take back what was promoted last. `ServingError` says why it can't be done."""
        found = load(self.store, model)
        if found is None:
            raise NotFound(f"{model}: nothing was rolled out yet: see `trimtab rollout {model}`")
        began = self.clock()
        rollout, pointer = found
        if not rollout.closed:
            ended = self._end(rollout, reason)
            if ended.phase == Phase.ROLLED_BACK:
                return RolledBack(
                    model, ended.version, ended.champion_version, self.clock() - began, ended.reason, None
                )
            self.say(f"version {ended.version} was promoted meanwhile: it is taken back")
            rollout, pointer = load(self.store, model) or found
        return self._take_back(rollout, pointer, reason, began)

    def _end(self, rollout: Rollout, reason: str) -> Rollout:
        """Order it back, wait for its driver; where there is none, drive it to the end."""
        order_back(self.store, rollout, f"by hand: {reason}")
        deadline = self.clock() + PATIENCE_S
        while True:
            found = load(self.store, rollout.model)
            if found is None or found[0].started_at != rollout.started_at or found[0].closed:
                return found[0] if found else rollout
            if orphaned(found[0], self.now()):
                return self._driver(found[1]).drive(found[0])
            if self.clock() > deadline:
                raise ServingError(
                    f"{rollout.model}: driver {found[0].driver} has not rolled back within {PATIENCE_S:.0f} s: "
                    f"the order stands; see `trimtab rollout {rollout.model}`"
                )
            self.pause(0.2)

    def _driver(self, pointer: Pointer) -> Driver:
        name = f"{BY_HAND} {socket.gethostname()} {os.getpid()}"
        return Driver(
            name,
            self.store,
            self.pools,
            self.gateway,
            self.traffic,
            self.lineage,
            self.say,
            pointer.etag,
            self.now,
            self.pause,
        )

    def _take_back(self, rollout: Rollout, pointer: Pointer, reason: str, began: float) -> RolledBack:
        pool, version = rollout.champion_pool, rollout.champion_version
        states = self.pools.states(pool, rollout.model) if pool else []
        refused = refusal(rollout, self.now(), [(s.replica, s.version, s.state) for s in states])
        if refused or pool is None or version is None:
            raise ServingError(f"{rollout.model}: {refused}")
        served = self.gateway.split(rollout.model)
        if rollout.reverted_at and served and served.weights == {pool: 100} and self._champion(rollout) == version:
            raise ServingError(f"{rollout.model}: version {version} was put back at {rollout.reverted_at:%H:%M:%S} UTC")
        after = reverted(rollout, self.now(), reason)
        try:
            self.store.swap(rollout_key(rollout.model), json.dumps(after.to_dict()).encode(), pointer.etag)
        except Conflict as error:
            raise ServingError(f"{rollout.model}: a rollout has begun just now: look, and order again") from error
        self.gateway.set_split(rollout.model, Split({pool: 100}))
        seconds = self.clock() - began
        self.lineage.set_alias(rollout.model, "champion", version)
        self.lineage.tag(rollout.model, rollout.version, ROLLED_BACK, f"{self.now():%Y-%m-%d %H:%M} by hand: {reason}")
        made = decision(after, self.now(), reason, seconds)
        kept = keep(made, self.store, self.lineage, {"seconds": seconds})
        self._renew_copy(rollout.model, version)
        return RolledBack(rollout.model, rollout.version, version, seconds, reason, kept)

    def _renew_copy(self, model: str, version: int) -> None:
        """In overload a copy of what was taken back must not answer: the one of this version does, or none."""
        fallback = self.gateway.fallbacks().get(model)
        if fallback is None:
            return
        self.gateway.set_fallback(model, None)
        try:
            copy, _ = published(self.store, model, version, LITE)
        except NotFound:
            self.say(f"version {version} has no fallback copy: until there is one, overload is answered 503")
            return
        self.pools.assign(LITE, model, copy)
        self.pools.wait_ready(LITE, model, copy)
        self.gateway.set_fallback(model, fallback)

    def _champion(self, rollout: Rollout) -> int | None:
        found = self.lineage.version_of(rollout.model, "champion")
        return found.version if found else None


def keep(made: Decision, store: Store, lineage: Lineage, metrics: Mapping[str, float]) -> str:
    """Write a decision that no Dagster run made where those of runs are: store and MLflow. Its key in the store."""
    key = decision_key(made)
    store.put(key, made.to_json())
    lineage.run(
        made.model,
        made.gate,
        dagster_run_id=BY_HAND,
        tags={"verdict": made.verdict.name, "as_of": made.as_of.isoformat(), "why": made.why[:500]},
        metrics=metrics,
        artifacts={"decision.json": made.to_json()},
    )
    return key
