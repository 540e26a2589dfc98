"""What an agent is told to serve, and what it must not unload yet."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.reconcile import pause_s
from resources.errors import TrimtabError
from resources.gateway import read_splits
from resources.pools import Assignment, desired_key, read_desired
from resources.store import Store

log = logging.getLogger("trimtab.agent")


@dataclass
class Desired:
    """What the pool should serve, as last read; a store that is down is asked again after a growing pause."""

    pool: str
    store: Store
    clock: Callable[[], float]
    models: dict[str, Assignment] | None = None
    failures: int = 0
    next_at: float = 0.0

    def read(self) -> dict[str, Assignment] | None:
        """By model; None while the store never answered."""
        if self.clock() < self.next_at:
            return self.models
        try:
            pointer = self.store.pointer(desired_key(self.pool))
            self.models = {} if pointer is None else read_desired(pointer.body, self.pool)
        except TrimtabError as error:
            self.failures += 1
            wait_s = min(10.0, pause_s(self.failures) / 4)
            self.next_at = self.clock() + wait_s
            log.warning("the store is down: %s; serving goes on, next try in %g s", error, wait_s)
        else:
            if self.failures:
                log.info("the store answers again")
            self.failures = 0
        return self.models


def unused(model: str) -> str:
    """Without a gateway that can be asked, what is desired no more is in use no more."""
    return ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the gateway of this machine sends to the pool. folder: the gateway's own."""

    pool: str
    folder: Path

    def use(self, model: str) -> str:
        """Why the pool still needs the model, '' when nothing points there. Splits that can't be read are a reason."""
        try:
            split = read_splits(self.folder)[0].get(model)
        except (TrimtabError, OSError, KeyError, TypeError) as error:
            return f"the gateway's splits can't be read: {error!r}"
        if split is None:
            return ""
        percent = split.weights.get(self.pool, 0)
        return f"{percent} % of its traffic points here" if percent else "copies" * (split.mirror == self.pool)
