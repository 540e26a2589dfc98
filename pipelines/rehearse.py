"""A/A before A/B: the champion as its own challenger, up the whole ladder, never promoted. What it finds is noise."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from assets.canary.asset import cells_now, champion_now
from assets.canary.driver import Driver, load
from assets.canary.forecast import plan, sentence
from assets.canary.judge import judge
from assets.canary.rollout import Rollout, begin, noted
from assets.canary.settings import CanarySettings
from assets.decision import Decision
from pipelines.rollback import keep
from resources.errors import ServingError
from resources.gateway import Gateway
from resources.lineage import Lineage
from resources.pools import Pools
from resources.releases import published
from resources.store import Store
from resources.traffic import Traffic


@dataclass(frozen=True)
class Rehearsal:
    """Everything that a rollout moves, moved by hand instead of by a run of Dagster."""

    store: Store
    pools: Pools
    gateway: Gateway
    traffic: Traffic
    lineage: Lineage
    say: Callable[[str], None]

    def rehearse(self, model: str, settings: CanarySettings) -> tuple[Rollout, Decision]:
        """To its end. It takes the free pool: what was kept warm there for a rollback is gone.

        `ServingError` when nothing serves yet, or another rollout of the model goes on.
        """
        found = load(self.store, model)
        if found is not None and not found[0].closed:
            raise ServingError(f"{model}: the rollout of version {found[0].version} goes on: rehearse after its end")
        rollout = self._begin(model, settings)
        name = f"rehearsal {socket.gethostname()} {os.getpid()}"
        etag = found[1].etag if found else None
        ports = (self.store, self.pools, self.gateway, self.traffic, self.lineage)
        ended = Driver(name, *ports, self.say, etag).drive(rollout)
        decision = judge(ended, datetime.now(UTC), {"package": ended.digest})
        keep(decision, self.store, self.lineage, {"seconds": float(decision.details["seconds"])})
        return ended, decision

    def _begin(self, model: str, settings: CanarySettings) -> Rollout:
        champion, slow_ms, lately = champion_now(model, self.lineage, self.gateway, self.traffic, settings)
        if champion is None:
            raise ServingError(f"{model}: nothing serves yet, so nothing can be rehearsed: release a version first")
        version, pool = champion
        assignment, _ = published(self.store, model, version)
        free = next(name for name in self.pools.replicas if name != pool)
        package = assignment.package, assignment.digest
        now = datetime.now(UTC)
        cells = cells_now(model, version, champion, self.store, settings)
        rollout = begin(
            model,
            version,
            free,
            *package,
            settings,
            now,
            champion=champion,
            slow_ms=slow_ms,
            rehearsal=True,
            coverage=cells,
        )
        said = sentence(plan(settings, lately, cells[1].reference if cells else None))
        self.say(said)
        return noted(rollout, now, said)
