"""Whole rollouts on real servers under load: equal models are promoted, a crashed challenger costs no client anything.

`python -m tests.bench.rollouts aa 10` and `crash 3` print one part alone.
"""

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from assets.canary.rollout import Phase, Rollout
from assets.canary.settings import CanarySettings
from tests.bench.lines import Line, at_most
from tests.rollout_stack import Site, Told, clients, running_site

RATE_PER_S, ROLLOUTS, CRASHES = 300.0, 20, 4
# A ladder of seconds: each partial rung two seconds of traffic; every tolerance and every bound as shipped.
SETTINGS = CanarySettings(ladder=("mirror", 5, 25, 50, 100), mirror_requests=100, requests_per_rung=600)
# Where the challenger's Triton is killed, by turns: with a share of the traffic, and with all of it.
AT = ("25 % to", "100 % to")


def lines() -> Iterator[Line]:
    """About ten minutes."""
    with tempfile.TemporaryDirectory() as name, running_site(Path(name)) as site:
        yield from equals(site, ROLLOUTS)
        yield from crashes(site, CRASHES)


def equals(site: Site, count: int) -> Iterator[Line]:
    """The same model as its own challenger, again and again."""
    _first(site)
    ended = []
    with clients(site, RATE_PER_S) as told:
        time.sleep(3)
        for _ in range(count):
            ended.append(site.release(SETTINGS))
            print(f"        {_told(ended[-1])}", file=sys.stderr, flush=True)
    back = [rollout for rollout in ended if rollout.phase is not Phase.PROMOTED]
    seconds = sorted((rollout.phase_at - rollout.started_at).total_seconds() for rollout in ended)
    yield Line(
        "canary",
        f"{count} A/A rollouts on real servers at {RATE_PER_S:.0f}/s: rolled back ({_reasons(back)})",
        len(back),
        "",
        f"≤ {max(count // 20, 0)}",
        len(back) <= count // 20,
    )
    yield Line("canary", "of these, seconds a rollout, median", seconds[len(seconds) // 2], "s", "for comparison", True)
    yield _none_failed(f"the same {count} rollouts", told)


@dataclass
class Crash:
    """Kills the challenger's Triton a second after the driver says `at`."""

    site: Site
    at: str
    killed: datetime | None = None

    def say(self, text: str) -> None:
        if self.killed is None and text.startswith(self.at):
            pool = text.rpartition(" ")[2]
            threading.Timer(1.0, self._kill, (pool,)).start()

    def _kill(self, pool: str) -> None:
        self.killed = datetime.now(UTC)
        self.site.tritons[pool].stop(signal.SIGKILL)


def crashes(site: Site, count: int) -> Iterator[Line]:
    """The challenger's Triton is killed on the way up; then it is started again."""
    _first(site)
    seconds, kept = [], []
    with clients(site, RATE_PER_S) as told:
        time.sleep(3)
        for number in range(count):
            crash = Crash(site, AT[number % len(AT)])
            ended = site.release(SETTINGS, crash.say)
            print(f"        {crash.at}: {_told(ended)}", file=sys.stderr, flush=True)
            if crash.killed is not None:
                seconds.append((ended.phase_at - crash.killed).total_seconds())
                site.tritons[ended.challenger_pool].start()
            kept.append(ended.phase is Phase.ROLLED_BACK)
    slowest = max(seconds) if all(kept) and len(seconds) == count else None
    yield at_most("canary", f"challenger's Triton killed, {count} times: rolled back after, slowest", slowest, "s", 5)
    yield _none_failed(f"the same {count} crashes", told)


def _first(site: Site) -> None:
    if site.champion is None and site.release(SETTINGS).phase is not Phase.PROMOTED:
        raise RuntimeError("the first release was not promoted")


def _none_failed(what: str, told: Told) -> Line:
    met = told.failed == 0 and told.served > 1000
    for failure in told.failures[:3]:
        print(f"        {failure}", file=sys.stderr)
    return Line("canary", f"failed client requests of {told.served} in {what}", told.failed, "", "0", met)


def _told(rollout: Rollout) -> str:
    seconds = (rollout.phase_at - rollout.started_at).total_seconds()
    looks = rollout.guards.looks
    slow = sum(look.canary_slow for look in looks), sum(look.baseline_slow for look in looks)
    return f"{rollout.phase} after {seconds:.1f} s, slow {slow[0]} and {slow[1]}: {rollout.reason}"


def _reasons(back: list[Rollout]) -> str:
    return "; ".join(rollout.reason[:120] for rollout in back) or "none"


PARTS: dict[str, Callable[[Site, int], Iterator[Line]]] = {"aa": equals, "crash": crashes}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, running_site(Path(folder)) as running:
        for line in PARTS[sys.argv[1]](running, int(sys.argv[2])):
            print(line, flush=True)
