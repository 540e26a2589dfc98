"""The other half of the door: drives a rollout, applying what its state asks for and telling it what came of it.

Every state is written by compare-and-swap before the next one is acted on, so a killed driver is resumed where it
was, and of two drivers only one can act.
"""

import json
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from assets.canary.answers import Agreement, agreement, last_column, question, together
from assets.canary.events import (
    Abort,
    Event,
    Loaded,
    LoadFailed,
    MirrorSeen,
    Tick,
    WeightsConfirmed,
    WeightsFailed,
)
from assets.canary.lease import claim, close
from assets.canary.rollout import Phase, Rollout, favoured, mirror, standby, weights
from assets.canary.step import mirror_budget, step
from assets.canary.watch import LOG_LAG, Watch
from assets.cells import Cells
from assets.scoring import Scorer
from assets.verdict import Verdict
from resources.errors import Conflict, GatewayError, ModelNotReady, ServingError, TrimtabError
from resources.gateway import Gateway, Needed, Split
from resources.lineage import Lineage
from resources.pools import Assignment, Pools, ServedCounts
from resources.store import Pointer, Store
from resources.traffic import Traffic

# Tag of a version that was taken back; its alias may go on naming it.
ROLLED_BACK = "rolled_back"
# Rows of one question past the gateway: no package's largest batch is smaller.
ASKED_AT_ONCE = 16


def rollout_key(model: str) -> str:
    """Where the state of a model's rollout lies."""
    return f"rollouts/{model}.json"


def order_key(model: str) -> str:
    """Where an order from outside to end a model's rollout lies."""
    return f"rollouts/orders/{model}.json"


def order_back(store: Store, rollout: Rollout, reason: str) -> None:
    """Tell whoever drives this rollout to roll back. It holds for this rollout alone, never for a later one."""
    pointer = store.pointer(order_key(rollout.model))
    body = json.dumps({"rollout": rollout.started_at.isoformat(), "reason": reason}).encode()
    store.swap(order_key(rollout.model), body, pointer.etag if pointer else None)


def load(store: Store, model: str) -> tuple[Rollout, Pointer] | None:
    """The latest rollout of a model, ended or not."""
    pointer = store.pointer(rollout_key(model))
    return None if pointer is None else (Rollout.from_dict(json.loads(pointer.body)), pointer)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _nobody(rollout: Rollout) -> None:
    """Nobody watches."""


@dataclass
class Driver:
    """Drives one rollout to its end. name: who drives, as the lease says it; etag: of the state it begins from."""

    name: str
    store: Store
    pools: Pools
    gateway: Gateway
    traffic: Traffic
    lineage: Lineage
    say: Callable[[str], None]
    etag: str | None = None
    now: Callable[[], datetime] = _utc_now
    pause: Callable[[float], None] = time.sleep
    loaded_at: datetime | None = None
    show: Callable[[Rollout], None] = _nobody
    watch: Watch = field(init=False)
    _served: dict[str, ServedCounts] = field(default_factory=dict)
    _agreement: Agreement | None = None

    def __post_init__(self) -> None:
        self.watch = Watch(self.traffic, self._cells)

    def drive(self, rollout: Rollout) -> Rollout:
        """Until the rollout has ended and what follows its end is done. `ServingError` when somebody else drives."""
        rollout = self._save(rollout)
        while not rollout.ended:
            before = rollout
            rollout = self._save(self._next(rollout))
            if (before.phase, before.rung) != (rollout.phase, rollout.rung):
                self.say(rollout.diary[-1][1])
            self.show(rollout)
        if rollout.phase is Phase.PROMOTED:
            self.lineage.set_alias(rollout.model, "champion", rollout.version)
        elif not rollout.rehearsal:
            self.lineage.tag(
                rollout.model, rollout.version, ROLLED_BACK, f"{self.now():%Y-%m-%d %H:%M} {rollout.reason}"
            )
        return self._save(close(rollout), leased=False)

    def _save(self, rollout: Rollout, *, leased: bool = True) -> Rollout:
        if leased:
            claimed = claim(rollout, self.name, self.now())
            if claimed is None:
                raise ServingError(
                    f"{rollout.model}: rollout of version {rollout.version} is driven by {rollout.driver} until "
                    f"{rollout.lease_until}: wait for it"
                )
            rollout = claimed
        try:
            self.etag = self.store.swap(rollout_key(rollout.model), json.dumps(rollout.to_dict()).encode(), self.etag)
        except Conflict as error:
            raise ServingError(f"{rollout.model}: another driver has taken over this rollout: {error}") from error
        return rollout

    def _next(self, rollout: Rollout) -> Rollout:
        """A defect of ours must not leave clients where they are: with nobody to look, the champion is the safe place.

        Left to the next driver it would happen again, and no deadline would ever be met.
        """
        try:
            return step(rollout, self._tried(rollout), self.now())
        except Exception as error:
            self.say(f"{rollout.phase}: {traceback.format_exc()}")
            self.pause(0.5)
            place = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
            return step(rollout, Abort(f"the driver failed: {told}", Verdict.ERROR), self.now())

    def _tried(self, rollout: Rollout) -> Event:
        """What can't be done now is tried again until the phase's deadline, which rolls back."""
        try:
            return self._act(rollout)
        except TrimtabError as error:
            self.say(f"{rollout.phase}: {error}")
            self.pause(0.5)
            return Tick()

    def _act(self, rollout: Rollout) -> Event:
        """Do what the state asks for, once; what came of it."""
        if rollout.phase is not Phase.ROLLING_BACK and (reason := self._ordered_back(rollout)):
            return Abort(reason)
        if rollout.phase is Phase.LOADING:
            return self._load(rollout)
        if not rollout.confirmed:
            return self._weigh(rollout)
        if (lost := self._lost(rollout)) is not None:
            return lost
        if rollout.phase is Phase.MIRRORING:
            return self._mirror(rollout)
        return self._look(rollout)

    def _load(self, rollout: Rollout) -> Event:
        wanted = Assignment(rollout.version, rollout.package, rollout.digest)
        if self.pools.desired(rollout.challenger_pool).get(rollout.model) != wanted:
            self._withdraw(rollout)
            self.pools.assign(rollout.challenger_pool, rollout.model, wanted)
        states = self.pools.states(rollout.challenger_pool, rollout.model)
        about_it = [state for state in states if state.digest == wanted.digest]
        for state in about_it:
            if state.state in ("FAILED", "REFUSED"):
                return LoadFailed(f"{state.replica} {state.state.lower()}: {state.reason}")
        if len(about_it) == len(states) and all(state.state == "READY" for state in states):
            self.loaded_at = self.now()
            return Loaded()
        self.pause(0.2)
        return Tick()

    def _withdraw(self, rollout: Rollout) -> None:
        """While the pool changes its version nobody is sent there for a second try either."""
        split = self.gateway.split(rollout.model)
        if split and rollout.challenger_pool in split.weights and rollout.champion_pool:
            self.gateway.set_split(rollout.model, Split({rollout.champion_pool: 100}))

    def _ordered_back(self, rollout: Rollout) -> str | None:
        pointer = self.store.pointer(order_key(rollout.model))
        order = json.loads(pointer.body) if pointer else {}
        return str(order["reason"]) if order.get("rollout") == rollout.started_at.isoformat() else None

    def _lost(self, rollout: Rollout) -> Event | None:
        """A challenger that crashed is no matter of statistics; an agent that fell silent proves nothing."""
        for state in self.pools.states(rollout.challenger_pool, rollout.model):
            if state.state in ("FAILED", "REFUSED"):
                return Abort(f"{state.replica} {state.state.lower()}: {state.reason}", Verdict.FAIL)
            if state.state == "LOST":
                return Abort(f"{state.replica}: {state.reason}")
        return None

    def _weigh(self, rollout: Rollout) -> Event:
        asked = weights(rollout)
        try:
            if asked:
                spare = standby(rollout)
                asked |= {spare: 0} if spare else {}
                settings, wanted = rollout.settings, favoured(rollout)
                needed = Needed(rollout.needed, wanted) if wanted else None
                split = Split(asked, mirror(rollout), settings.sticky_header, settings.mirror_percent, needed)
                self.gateway.set_split(rollout.model, split)
            else:
                self.gateway.remove(rollout.model)
        except GatewayError as error:
            self.pause(0.5)
            return WeightsFailed(str(error))
        self.watch.restart(self.now())
        self._served = {}
        return WeightsConfirmed()

    def _mirror(self, rollout: Rollout) -> Event:
        self.pause(0.5)
        success, fail = self._answered(rollout.challenger_pool, rollout.model, rollout.version)
        champion = (0, 0)
        if rollout.champion_pool is not None and rollout.champion_version is not None:
            champion = self._answered(rollout.champion_pool, rollout.model, rollout.champion_version)
        # Of the champion's requests so many have a copy.
        part = rollout.settings.mirror_percent / 100
        seen = MirrorSeen(success, fail, *(round(part * number) for number in champion))
        if fail > mirror_budget(seen, rollout.settings) or not rollout.settings.mirror_answers:
            return seen
        if self._agreement is None:
            self._agreement = self._compare(rollout)
        return seen if self._agreement is None else replace(seen, **asdict(self._agreement))

    def _compare(self, rollout: Rollout) -> Agreement | None:
        """Logged requests put to every replica of the challenger and to its registered file; None: too few logged yet.

        The gateway drops the answers to its copies, so these are asked for again, past it.
        """
        self.traffic.flush()
        logged = self.traffic.answers_seen(rollout.model, self.watch.since or self.now() - LOG_LAG)
        scorer = Scorer(self.lineage.onnx(rollout.model, rollout.version))
        missing = [name for name in scorer.features if name not in logged]
        rows = logged if missing else logged.dropna(subset=list(scorer.features))
        if missing or len(rows) < rollout.settings.mirror_answers:
            return None
        rows = rows.head(rollout.settings.mirror_answers)
        parts = [rows[start : start + ASKED_AT_ONCE] for start in range(0, len(rows), ASKED_AT_ONCE)]
        return together([self._ask(rollout, part, scorer) for part in parts])

    def _ask(self, rollout: Rollout, rows: pd.DataFrame, scorer: Scorer) -> Agreement:
        asked, expected = question(rows, scorer.features), np.full(len(rows), np.nan)
        # ONNX Runtime's refusals have no common base; a file that fails on requests of clients is no model for them.
        with suppress(Exception):
            expected = scorer(rows, scorer.features)
        try:
            answers = self.pools.ask(rollout.challenger_pool, rollout.model, rollout.version, asked)
            served = np.stack([last_column(answer, scorer.output) for answer in answers])
        except (ModelNotReady, ValueError):  # no answer where the file gives one is another answer
            served = np.full((1, len(rows)), np.nan)
        return agreement(served, expected, rollout.settings.mirror_answer_tolerance)

    def _answered(self, pool: str, model: str, version: int) -> tuple[int, int]:
        """Served since mirroring began: what was counted before, the agents' probes among it, is taken off."""
        counts = self.pools.statistics(pool, model, version)
        first = self._served.setdefault(pool, counts)
        return counts.success - first.success, counts.fail - first.fail

    def _look(self, rollout: Rollout) -> Event:
        self.pause(1.0)
        self.traffic.flush()
        return self.watch.look(rollout, self.now())

    def _cells(self, rollout: Rollout) -> Cells:
        return Cells.from_bytes(self.store.get(rollout.cells))
