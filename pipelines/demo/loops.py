"""What the demo sees of Dagster while traffic goes on: checks, loops, and the pace that suits them."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipelines.demo.clients import Pace
from pipelines.launch import DONE, Webserver
from resources.errors import TrimtabError
from resources.store import Store

# Requests a second. Simulated time is made of traffic: while models are fitted and profiled it should creep,
# while a canary waits for evidence it may run.
FULL, CANARY, CALM = 700.0, 350.0, 30.0
SENSOR_S = 15.0  # the sensor looks every few seconds; after this long an alarm was held back (cooldown)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last seen: is a loop running, does a canary take traffic, when did a check last alarm."""

    loop: bool = False
    canary: bool = False
    alarmed_s: float | None = None


def rate(seen: Seen, now_s: float) -> float:
    """The pace that suits what is going on."""
    if seen.canary:
        return CANARY
    if seen.loop:
        return CALM
    if seen.alarmed_s is not None and now_s - seen.alarmed_s < SENSOR_S:
        return CALM
    return FULL


@dataclass
class LoopWatch:
    """A thread that follows the improve runs of one model and keeps the pace."""

    webserver: Webserver
    store: Store
    model: str
    job: str
    pace: Pace
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    seen: Seen = Seen()
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "LoopWatch":
        self._thread = threading.Thread(target=self._follow, name="loop-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=10)

    def alarm(self) -> None:
        """A drift check has just failed: the sensor will see it within seconds."""
        self.seen = Seen(self.seen.loop, self.seen.canary, self.clock())
        self.pace.rate_per_s = rate(self.seen, self.clock())

    @property
    def settled(self) -> bool:
        """No loop runs, and none can still come from the last alarm."""
        recent = self.seen.alarmed_s is not None and self.clock() - self.seen.alarmed_s < SENSOR_S
        return not self.seen.loop and not recent

    def _follow(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self._look()
            except TrimtabError as error:
                self.say(f"cannot see Dagster: {error}")

    def _look(self) -> None:
        for run in self.webserver.runs(self.job, self.model):
            before = self.runs.get(run["runId"])
            self.runs[run["runId"]] = run
            if before is None:
                trigger = next((tag["value"] for tag in run["tags"] if tag["key"] == "trigger"), "")
                self.say(f"loop started by {trigger}: {self.webserver.page(run['runId'])}")
            elif before["status"] not in DONE and run["status"] in DONE:
                self.say(f"loop ended: {run['status'].lower()}")
        loop = any(run["status"] not in DONE for run in self.runs.values())
        # Once its loop has started, an alarm no longer says that one is still to come.
        alarmed = None if loop else self.seen.alarmed_s
        self.seen = Seen(loop, loop and self._canary(), alarmed)
        self.pace.rate_per_s = rate(self.seen, self.clock())

    def _canary(self) -> bool:
        pointer = self.store.pointer(f"rollouts/{self.model}.json")
        if pointer is None:
            return False
        return json.loads(pointer.body).get("phase") in ("MIRRORING", "ADVANCING", "HOLDING", "PROMOTING")
