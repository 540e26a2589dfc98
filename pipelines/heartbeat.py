"""What an agent reports, and when: at every change and at least every 2 s, whatever the agent is busy with."""

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from resources.errors import Conflict, NotFound, TrimtabError
from resources.pools import status_key, write_status

if TYPE_CHECKING:
    from pipelines.agent import Agent

log = logging.getLogger("trimtab.agent")
# Five of them fit into the time after which an agent counts as lost.
HEARTBEAT_S = 2.0


@dataclass
class Heartbeat:
    """Writes the status pointer in a thread of its own; a store that is down costs it a word in the log."""

    pool: str
    agent: "Agent"
    stop: threading.Event
    etag: str | None = None
    silent: bool = False

    def run(self) -> None:
        while not self.stop.is_set():
            self.agent.changed.wait(HEARTBEAT_S)
            self.agent.changed.clear()
            self.beat()

    def beat(self) -> None:
        try:
            self._write()
            self.silent = False
        except TrimtabError as error:
            if not self.silent:
                log.warning("status can't be reported: %s", error)
            self.silent = True
            self.stop.wait(HEARTBEAT_S)

    def _write(self) -> None:
        key = status_key(self.pool, self.agent.name)
        body = write_status(self.agent.name, datetime.now(UTC), dict(self.agent.states))
        try:
            self.etag = self.agent.store.swap(key, body, self.etag)
        except (Conflict, NotFound):
            # Written by the agent that ran here before; from now on this one is right.
            pointer = self.agent.store.pointer(key)
            self.etag = self.agent.store.swap(key, body, pointer.etag if pointer else None)
