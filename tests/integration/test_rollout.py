"""Rollouts on real servers whose drivers and challengers are killed on the way."""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess

import numpy as np
import pandas as pd
import pytest

from assets.canary.driver import load
from assets.canary.judge import judge
from assets.canary.lease import orphaned
from assets.canary.replay import same
from assets.canary.rollout import Phase, Rollout
from assets.canary.settings import CanarySettings, OutcomeSettings
from resources.errors import ServingError
from resources.store import S3Store
from resources.traffic import Traffic
from tests.bench.rollouts import Crash
from tests.rollout_stack import MODEL, Site, clients, running_site

pytestmark = pytest.mark.integration

SETTINGS = CanarySettings(
    ladder=("mirror", 25, 50, 100), mirror_requests=50, requests_per_rung=300, lease_s=2.0, rung_deadline_s=300
)
REFUSED = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("rollout")) as running:
        assert running.release(SETTINGS).phase is Phase.PROMOTED
        yield running


def now(site: Site) -> Rollout:
    found = load(site.store, MODEL)
    assert found is not None
    return found[0]


def driving(site: Site, name: str, begun: Rollout | None = None) -> BaseProcess:
    """A driver in a process of its own: it begins `begun`, or goes on with what the store holds."""

    def drive() -> None:
        store = S3Store(site.store.bucket, site.store.endpoint)  # nothing of the parent's connections
        own = replace(
            site,
            store=store,
            traffic=Traffic(store, site.traffic.observer_url),
            pools=replace(site.pools, store=store),
        )
        try:
            own.drive(begun or now(own), name=name)
        except ServingError:
            os._exit(REFUSED)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=drive)
    process.start()
    return process


def kill_at_the_next_transition(site: Site, process: BaseProcess, before: Rollout) -> Rollout:
    """SIGKILL as soon as the store holds another phase, rung or confirmation; the state it died in."""
    deadline = time.monotonic() + 60
    while True:
        state = now(site)
        begun = state.started_at == before.started_at  # until then the store holds the rollout before this one
        if begun and (
            state.closed or (state.phase, state.rung, state.confirmed) != (before.phase, before.rung, before.confirmed)
        ):
            break
        assert process.is_alive(), f"the driver ended by itself in {state.phase}"
        assert time.monotonic() < deadline, f"stuck in {state.phase} {state.rung}"
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return now(site)


def test_a_driver_killed_at_every_transition_is_resumed_each_time_by_exactly_one_of_two(site: Site) -> None:
    begun = site.begin(site.publish(), SETTINGS)
    deaths: list[tuple[Phase, int, bool]] = []
    with clients(site, 200) as told:
        time.sleep(1)
        before = replace(begun, rung=-2)
        driver = driving(site, "first", begun)
        while True:
            before = kill_at_the_next_transition(site, driver, before)
            deaths.append((before.phase, before.rung, before.confirmed))
            if before.closed:
                break
            while not orphaned(now(site), datetime.now(UTC)):
                time.sleep(0.05)
            rivals = [driving(site, f"{name} after {len(deaths)} deaths") for name in ("one", "other")]
            deadline = time.monotonic() + 20
            while all(rival.exitcode is None for rival in rivals) and time.monotonic() < deadline:
                time.sleep(0.02)
            if now(site).closed:  # the winner had but the last write to do
                break
            assert sorted(rival.exitcode is None for rival in rivals) == [False, True]
            assert next(rival.exitcode for rival in rivals if rival.exitcode is not None) == REFUSED
            driver = next(rival for rival in rivals if rival.exitcode is None)
    ended = now(site)
    assert (ended.phase, ended.closed) == (Phase.PROMOTED, True), ended.reason
    site.champion = ended.version, ended.challenger_pool
    assert {phase for phase, _, _ in deaths} >= {Phase.LOADING, Phase.MIRRORING, Phase.ADVANCING, Phase.PROMOTING}
    assert len(deaths) >= 8
    assert told.failed == 0, told.failures
    shares = [look.share for look in ended.guards.looks]
    assert shares == sorted(shares)  # no rung was climbed twice


@pytest.mark.parametrize("at", ["50 % to", "100 % to"])
def test_clients_notice_nothing_of_a_challenger_that_crashes_and_it_is_rolled_back(site: Site, at: str) -> None:
    champion = site.champion
    with clients(site, 200) as told:
        time.sleep(2)
        crash = Crash(site, at)
        ended = site.release(long_rungs(), crash.say)
    assert crash.killed is not None
    site.tritons[ended.challenger_pool].start()
    assert ended.phase is Phase.ROLLED_BACK
    assert site.champion == champion
    assert told.served > 500
    assert told.failed == 0, told.failures


@contextmanager
def labels_coming(site: Site, chances: dict[str, float]) -> Iterator[None]:
    """A label for each answer within a second, 1 with the chance of the pool that gave it."""
    over, began, known, rng = threading.Event(), datetime.now(UTC), set[str](), np.random.default_rng(4)

    def label() -> None:
        while not over.wait(0.5):
            access, answers = (read(MODEL, began) for read in (site.traffic.access_seen, site.traffic.answers_seen))
            fresh = access[["request_id", "pool"]].merge(answers[["request_id", "key"]], on="request_id")
            fresh = fresh[~fresh["key"].isin(known)]
            if len(fresh):
                known.update(fresh["key"])
                bad = rng.random(len(fresh)) < fresh["pool"].map(chances).to_numpy(dtype=float)
                told = pd.DataFrame({"key": fresh["key"], "label": bad.astype(float), "known_at": datetime.now(UTC)})
                site.traffic.put_labels(MODEL, told)

    thread = threading.Thread(target=label, name="labels", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("times", "phase"), [(1.0, Phase.PROMOTED), (2.0, Phase.ROLLED_BACK)])
def test_outcomes_that_become_known_on_the_way_decide_a_rollout(site: Site, times: float, phase: Phase) -> None:
    assert site.champion is not None
    pools = {"blue": 0.3, "green": 0.3}
    pools[next(pool for pool in pools if site.champion and pool != site.champion[1])] *= times
    asked = OutcomeSettings(event="label_1", required=True, non_inferiority_tolerance=0.9)
    with clients(site, 200) as told, labels_coming(site, pools):
        time.sleep(2)
        ended = site.release(SETTINGS.model_copy(update={"outcome": asked, "lease_s": 30.0}))
    assert ended.phase is phase, ended.reason
    known = {arm: sum(getattr(part, arm) for part in ended.guards.outcomes) for arm in ("canary", "baseline")}
    assert min(known.values()) > 30
    assert sum(known.values()) <= sum(look.requests for look in ended.guards.looks)
    assert ("label_1" in ended.reason) is (phase is Phase.ROLLED_BACK)
    assert same(json.loads(judge(ended, datetime.now(UTC), {}).to_json()))
    assert told.failed == 0, told.failures


def long_rungs() -> CanarySettings:
    """Rungs long enough to be killed on."""
    return SETTINGS.model_copy(update={"requests_per_rung": 600, "lease_s": 30.0})
