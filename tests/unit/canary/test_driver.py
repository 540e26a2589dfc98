import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.canary.driver import Driver, load
from assets.canary.judge import judge
from assets.canary.replay import same
from assets.canary.rollout import Phase, Rollout, begin
from assets.canary.settings import CanarySettings
from assets.scoring import score
from assets.verdict import Verdict
from pipelines.demo.damage import failing_above
from resources.errors import ModelNotReady, ServingError, TrafficError
from resources.gateway import Split
from resources.pools import Assignment, ReplicaState, ServedCounts
from tests.fakes import MemoryGateway, MemoryStore
from tests.fakes_lineage import MemoryLineage
from tests.serving_stack import FEATURES, ROWS, tiny_onnx

MODEL = "churn"
SETTINGS = CanarySettings(
    mirror_requests=20, mirror_answers=40, requests_per_rung=1000, hold_deadline_s=600, rung_deadline_s=600
)
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


class World:
    """Traffic, pools and time of a small world: 500 requests a second, split as the gateway says."""

    def __init__(self, *, challenger_errors: float = 0.0) -> None:
        self.now = EPOCH
        self.store, self.gateway, self.lineage = MemoryStore(), MemoryGateway(("blue", "green")), MemoryLineage()
        self.challenger_errors = challenger_errors
        self.state, self.reason = "READY", ""
        self.assigned: dict[str, Assignment] = {}
        self.mirrored = 0
        self.rows: list[dict[str, object]] = []
        self.onnx = {number: tiny_onnx(bias=number / 10) for number in (1, 2)}
        self.served = 2  # which model the pool of the challenger really answers with

    def clock(self) -> datetime:
        return self.now

    def pause(self, seconds: float) -> None:
        split = self.gateway.split(MODEL)
        for i in range(int(500 * seconds)):
            at = self.now + timedelta(seconds=i / 500)
            green = split is not None and (i * 37) % 100 < split.weights.get("green", 0)
            failed = green and i % 100 < 100 * self.challenger_errors
            pool = "green" if green else "blue"
            row = {"request_id": f"{at:%s.%f}", "seen_at": at, "pool": pool, "ok": not failed, "latency_ms": 1.0}
            row["attempts"] = 1
            self.rows.append(row)
        if split is not None and split.mirror:
            self.mirrored += int(500 * seconds)
        self.now += timedelta(seconds=seconds)

    # what the driver asks of pools
    def desired(self, pool: str) -> dict[str, Assignment]:
        return {MODEL: self.assigned[pool]} if pool in self.assigned else {}

    def assign(self, pool: str, model: str, assignment: Assignment) -> None:
        self.assigned[pool] = assignment

    def states(self, pool: str, model: str) -> list[ReplicaState]:
        held = self.assigned.get(pool, Assignment(0, "", ""))
        return [ReplicaState(f"{pool}-0", held.version, self.state, self.reason, held.digest, self.now)]

    def statistics(self, pool: str, model: str, version: int) -> ServedCounts:
        return ServedCounts(self.mirrored, 0)

    def ask(self, pool: str, model: str, version: int, body: dict[str, Any]) -> list[dict[str, Any]]:
        asked = {item["name"]: np.array(item["data"]) for item in body["inputs"]}
        yes = score(self.onnx[self.served], pd.DataFrame(asked), FEATURES)
        pairs = np.stack([1 - yes, yes], axis=1)
        return [{"outputs": [{"name": "probabilities", "shape": list(pairs.shape), "data": pairs.ravel().tolist()}]}]

    # what the driver asks of traffic
    def answers_seen(self, model: str, since: datetime) -> pd.DataFrame:
        seen = sum(row["seen_at"] >= since for row in self.rows)  # type: ignore[operator]
        rows = pd.concat([ROWS] * 5)[: min(seen, 80)]
        rows.loc[rows.index[:3], "temp"] = np.nan
        return rows

    def flush(self) -> None: ...

    def access_seen(self, model: str, since: datetime) -> pd.DataFrame:
        columns = ["request_id", "seen_at", "pool", "ok", "latency_ms", "attempts"]
        return pd.DataFrame([row for row in self.rows if row["seen_at"] >= since], columns=columns)  # type: ignore[operator]


@pytest.fixture
def world() -> World:
    return World()


def driver(world: World, name: str = "first") -> Driver:
    found = load(world.store, MODEL)
    return Driver(
        name,
        world.store,
        world,  # type: ignore[arg-type]
        world.gateway,  # type: ignore[arg-type]
        world,  # type: ignore[arg-type]
        world.lineage,  # type: ignore[arg-type]
        lambda _text: None,
        found[1].etag if found else None,
        world.clock,
        world.pause,
    )


def rollout(champion: bool = True) -> Rollout:
    return begin(
        MODEL,
        2,
        "green",
        "packages/churn/2/x.tar",
        "d" * 64,
        SETTINGS,
        EPOCH,
        champion=(1, "blue") if champion else None,
    )


@pytest.fixture
def serving(world: World) -> World:
    world.gateway.set_split(MODEL, Split({"blue": 100}))
    for version in (1, 2):
        world.lineage.register(
            MODEL, world.onnx[version], dagster_run_id=f"r{version}", snapshot_digest="s", snapshot_uri="u"
        )
    world.lineage.set_alias(MODEL, "champion", 1)
    return world


def champion(world: World) -> int:
    found = world.lineage.version_of(MODEL, "champion")
    assert found is not None
    return found.version


def test_a_healthy_challenger_is_promoted_and_then_gets_all_traffic(serving: World) -> None:
    ended = driver(serving).drive(rollout())
    assert ended.phase is Phase.PROMOTED, ended.reason
    assert ended.closed
    split = serving.gateway.split(MODEL)
    assert split is not None
    assert (split.weights, split.mirror) == ({"green": 100, "blue": 0}, None)
    assert champion(serving) == 2


def test_a_failing_challenger_is_rolled_back_and_the_champion_stays(serving: World) -> None:
    serving.challenger_errors = 0.1
    ended = driver(serving).drive(rollout())
    assert ended.phase is Phase.ROLLED_BACK
    split = serving.gateway.split(MODEL)
    assert split is not None
    assert split.weights == {"blue": 100}
    assert champion(serving) == 1


def test_a_package_that_does_not_load_never_sees_a_client(serving: World) -> None:
    serving.state, serving.reason = "REFUSED", "1/model.onnx was changed after signing"
    ended = driver(serving).drive(rollout())
    assert ended.phase is Phase.ROLLED_BACK
    assert "1/model.onnx" in ended.reason
    assert all(row["pool"] == "blue" for row in serving.rows)


def test_a_challenger_that_crashes_on_the_way_up_is_rolled_back_at_once(serving: World) -> None:
    first = driver(serving)
    spoken: list[str] = []

    def say(text: str) -> None:
        spoken.append(text)
        if text.startswith("5 %"):
            serving.state, serving.reason = "FAILED", "Triton does not answer"

    first.say = say
    ended = first.drive(rollout())
    assert ended.phase is Phase.ROLLED_BACK
    assert "Triton does not answer" in ended.reason


def test_a_first_release_is_promoted_once_it_is_loaded(world: World) -> None:
    world.lineage.register(MODEL, b"1", dagster_run_id="r", snapshot_digest="s", snapshot_uri="u")
    world.lineage.register(MODEL, b"2", dagster_run_id="q", snapshot_digest="s", snapshot_uri="u")
    ended = driver(world).drive(rollout(champion=False))
    assert ended.phase is Phase.PROMOTED
    assert champion(world) == 2


def test_of_two_drivers_only_one_acts(serving: World) -> None:
    first, second = driver(serving, "first"), driver(serving, "second")
    first._save(rollout())
    with pytest.raises(ServingError, match="taken over"):
        second.drive(rollout())
    with pytest.raises(ServingError, match="driven by first"):
        driver(serving, "second").drive(load(serving.store, MODEL)[0])  # type: ignore[index]


@pytest.mark.parametrize("killed_after", range(1, 14))
def test_a_driver_killed_after_any_write_is_resumed_to_the_same_end(serving: World, killed_after: int) -> None:
    class Killed(BaseException):
        pass

    writes = 0
    swap = serving.store.swap

    def dying(key: str, body: bytes, etag: str | None) -> str:
        nonlocal writes
        writes += 1
        after = swap(key, body, etag)
        if writes == killed_after:
            raise Killed
        return after

    serving.store.swap = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        driver(serving, "first").drive(rollout())
    serving.now += timedelta(seconds=SETTINGS.lease_s + 1)
    found = load(serving.store, MODEL)
    assert found is not None
    ended = driver(serving, "second").drive(found[0])
    assert ended.phase is Phase.PROMOTED, ended.reason
    assert champion(serving) == 2
    split = serving.gateway.split(MODEL)
    assert split is not None
    assert split.weights == {"green": 100, "blue": 0}


def test_a_pool_that_answers_with_another_model_than_the_registered_one_never_sees_a_client(serving: World) -> None:
    serving.served = 1
    ended = driver(serving).drive(rollout())
    assert ended.phase is Phase.ROLLED_BACK
    assert "40 of 40 answers are missing or not those of the registered model" in ended.reason
    assert all(row["pool"] == "blue" for row in serving.rows)


def test_without_logged_requests_to_compare_there_is_no_climb(serving: World) -> None:
    serving.answers_seen = lambda model, since: pd.DataFrame()  # type: ignore[method-assign]
    ended = driver(serving).drive(rollout())
    assert ended.phase is Phase.ROLLED_BACK
    assert "0 of 40 answers compared" in ended.reason


def test_a_request_that_the_registered_model_answers_and_its_pool_does_not_is_a_difference(serving: World) -> None:
    def ask(pool: str, model: str, version: int, body: dict[str, Any]) -> list[dict[str, Any]]:
        raise ModelNotReady("indices element out of data bounds")

    serving.ask = ask  # type: ignore[method-assign]
    assert "40 of 40 answers" in driver(serving).drive(rollout()).reason


def test_a_registered_file_that_fails_on_clients_requests_never_sees_a_client(serving: World) -> None:
    serving.lineage.register(
        MODEL, failing_above(serving.onnx[2], "temp", 1.0), dagster_run_id="r3", snapshot_digest="s", snapshot_uri="u"
    )
    ended = driver(serving).drive(replace(rollout(), version=3))
    assert ended.phase is Phase.ROLLED_BACK
    assert "answers are missing" in ended.reason
    assert all(row["pool"] == "blue" for row in serving.rows)


def test_an_observer_that_stays_dead_is_waited_for_until_the_deadline_and_then_rolls_back(serving: World) -> None:
    def flush() -> None:
        raise TrafficError("the observer does not answer")

    serving.flush = flush  # type: ignore[method-assign]
    ended = driver(serving).drive(rollout())
    assert (ended.phase, ended.verdict) == (Phase.ROLLED_BACK, Verdict.INCONCLUSIVE)
    split = serving.gateway.split(MODEL)
    assert split is not None
    assert split.weights == {"blue": 100}


@pytest.mark.parametrize("at", ["LOADING", "MIRRORING", "5 %", "50 %", "100 %"])
def test_a_defect_of_the_driver_gives_clients_back_to_the_champion_and_the_record_says_where_it_is(
    serving: World, at: str
) -> None:
    first, spoken, broken = driver(serving), list[str](), list[str]()

    def defect(*_: object) -> Any:
        raise KeyError("no such column")

    def show(now: Rollout) -> None:
        if not broken and (now.phase.value == at or now.diary[-1][1].startswith(f"{at} to")):
            broken.append(at)
            serving.states = serving.statistics = serving.access_seen = defect  # type: ignore[method-assign,assignment]

    first.show, first.say = show, spoken.append
    begun = rollout()
    show(begun)
    ended = first.drive(begun)
    assert broken
    assert (ended.phase, ended.verdict, ended.closed) == (Phase.ROLLED_BACK, Verdict.ERROR, True)
    assert "the driver failed: KeyError: 'no such column' (test_driver.py, line" in ended.reason
    assert any("Traceback" in text for text in spoken)
    split = serving.gateway.split(MODEL)
    assert split is not None
    assert split.weights == {"blue": 100}
    assert champion(serving) == 1
    assert same(json.loads(judge(ended, EPOCH, {}).to_json()))


def test_a_defect_that_strikes_while_rolling_back_does_not_end_the_rollback(serving: World) -> None:
    serving.challenger_errors, left = 0.1, 3
    set_split = serving.gateway.set_split

    def thrice(model: str, split: Split, timeout_s: float = 10) -> float:
        nonlocal left
        if split.weights == {"blue": 100} and left:
            left -= 1
            raise ZeroDivisionError
        return set_split(model, split, timeout_s)

    first = driver(serving)

    def say(text: str) -> None:
        if text.startswith("1 %"):
            serving.gateway.set_split = thrice  # type: ignore[method-assign]

    first.say = say
    ended = first.drive(rollout())
    assert (ended.phase, left) == (Phase.ROLLED_BACK, 0)
    assert serving.gateway.held[MODEL].weights == {"blue": 100}


def test_a_rehearsal_climbs_the_ladder_is_never_promoted_and_leaves_the_champion(serving: World) -> None:
    serving.served = 1
    ended = driver(serving).drive(replace(rollout(), version=1, rehearsal=True))
    assert (ended.phase, ended.verdict, ended.closed) == (Phase.ROLLED_BACK, Verdict.PASS, True)
    decision = judge(ended, EPOCH, {})
    assert (decision.gate, decision.verdict) == ("rehearsal", Verdict.PASS)
    assert {look.share for look in ended.guards.looks} == {0.01, 0.05, 0.25, 0.5}
    split = serving.gateway.split(MODEL)
    assert split is not None
    assert split.weights == {"blue": 100}
    assert champion(serving) == 1
    assert "rolled_back" not in serving.lineage.tags(MODEL, 1)


def test_a_rehearsal_in_which_a_guard_fires_says_so(serving: World) -> None:
    serving.served, serving.challenger_errors = 1, 0.1
    ended = driver(serving).drive(replace(rollout(), version=1, rehearsal=True))
    assert judge(ended, EPOCH, {}).verdict is Verdict.FAIL


def test_a_version_that_was_rolled_back_is_tagged_with_the_reason(serving: World) -> None:
    serving.challenger_errors = 0.1
    ended = driver(serving).drive(rollout())
    assert ended.reason in serving.lineage.tags(MODEL, 2)["rolled_back"]


def test_while_a_pool_changes_its_version_it_gets_no_second_tries(serving: World) -> None:
    serving.gateway.set_split(MODEL, Split({"blue": 100, "green": 0}))
    splits: list[Split | None] = []
    assign = serving.assign

    def seen(pool: str, model: str, assignment: Assignment) -> None:
        splits.append(serving.gateway.split(MODEL))
        assign(pool, model, assignment)

    serving.assign = seen  # type: ignore[method-assign]
    driver(serving).drive(rollout())
    assert splits == [Split({"blue": 100})]
