import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from assets.canary.driver import Driver, load, rollout_key
from assets.canary.lease import claim, close
from assets.canary.rollout import Phase, Rollout, begin
from assets.canary.settings import CanarySettings
from pipelines.rollback import Operator
from resources.errors import GatewayError, NotFound, ServingError
from resources.gateway import Fallback, Split
from resources.pools import LITE, Assignment, ReplicaState
from resources.releases import release_key
from tests.fakes import MemoryGateway, MemoryStore
from tests.fakes_lineage import MemoryLineage

MODEL = "churn"
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


class Pair:
    """Two pools, each with one replica that says what it holds."""

    def __init__(self) -> None:
        self.held = {"blue": (1, "READY"), "green": (2, "READY")}
        self.assigned: list[tuple[str, Assignment]] = []

    def states(self, pool: str, model: str) -> list[ReplicaState]:
        return [ReplicaState(f"{pool}-0", *self.held[pool], "", "d", EPOCH)]

    def assign(self, pool: str, model: str, assignment: Assignment) -> None:
        self.assigned.append((pool, assignment))

    def wait_ready(self, pool: str, model: str, assignment: Assignment) -> float:
        assert (pool, assignment) == self.assigned[-1]
        return 0.0


class Scene:
    """Version 2 was promoted over version 1 a minute ago."""

    def __init__(self) -> None:
        self.store, self.gateway, self.lineage = MemoryStore(), MemoryGateway(), MemoryLineage()
        self.pools, self.now = Pair(), EPOCH + timedelta(minutes=1)
        for number in (1, 2):
            self.lineage.register(
                MODEL, bytes([number]), dagster_run_id=f"r{number}", snapshot_digest="s", snapshot_uri="u"
            )
        self.lineage.set_alias(MODEL, "champion", 2)
        self.gateway.set_split(MODEL, Split({"green": 100}))
        self.put(close(rollout(phase=Phase.PROMOTED)))

    def put(self, state: Rollout) -> None:
        self.store.objects[rollout_key(MODEL)] = json.dumps(state.to_dict()).encode()

    def clock(self) -> datetime:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def operator(self) -> Operator:
        return Operator(
            **self.ports(),
            say=lambda _: None,
            now=self.clock,
            pause=self.pause,
            clock=lambda: self.now.timestamp(),
        )

    def ports(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "pools": self.pools,
            "gateway": self.gateway,
            "traffic": None,
            "lineage": self.lineage,
        }


def rollout(**changes: Any) -> Rollout:
    champion = changes.pop("champion", (1, "blue"))
    return replace(begin(MODEL, 2, "green", "x.tar", "d", CanarySettings(), EPOCH, champion=champion), **changes)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_promoted_version_goes_back_by_one_change_of_weights(scene: Scene) -> None:
    before = len(scene.gateway.history)
    done = scene.operator().roll_back(MODEL, "too many complaints")
    assert (done.version, done.back_to) == (2, 1)
    assert [split.weights for _, split in scene.gateway.history[before:]] == [{"blue": 100}]
    assert scene.lineage.aliases[MODEL, "champion"] == 1
    assert "too many complaints" in scene.lineage.tags(MODEL, 2)["rolled_back"]
    assert done.record is not None
    record = json.loads(scene.store.get(done.record))
    assert (record["gate"], record["verdict"]) == ("rollback", "PASS")
    assert "too many complaints" in record["why"]
    assert [run.kind for run in scene.lineage.runs.values()][-1] == "rollback"


def test_the_fallback_copy_goes_back_with_its_champion(scene: Scene) -> None:
    scene.gateway.set_fallback(MODEL, Fallback(50))
    kept = {"version": 1, "package": "packages/churn/1/abc.tar", "digest": "abc"}
    body = json.dumps(kept | {"published_at": EPOCH.isoformat()}).encode()
    scene.store.objects[release_key(MODEL, 1, LITE)] = body
    scene.operator().roll_back(MODEL, "bad")
    assert scene.pools.assigned == [(LITE, Assignment(**kept))]  # type: ignore[arg-type]
    assert scene.gateway.fallbacks() == {MODEL: Fallback(50)}


def test_a_copy_of_what_was_taken_back_answers_nobody(scene: Scene) -> None:
    scene.gateway.set_fallback(MODEL, Fallback())
    scene.operator().roll_back(MODEL, "bad")
    assert scene.pools.assigned == []
    assert scene.gateway.fallbacks() == {}


def test_a_model_without_fallback_touches_no_lite_tier(scene: Scene) -> None:
    scene.operator().roll_back(MODEL, "bad")
    assert scene.pools.assigned == []


def test_a_second_order_says_that_it_is_done_and_changes_nothing(scene: Scene) -> None:
    scene.operator().roll_back(MODEL, "bad")
    changes = len(scene.gateway.history)
    with pytest.raises(ServingError, match="was put back"):
        scene.operator().roll_back(MODEL, "bad")
    assert len(scene.gateway.history) == changes


def test_an_order_that_broke_off_is_completed_by_the_next(scene: Scene) -> None:
    scene.gateway.confirms = False
    with pytest.raises(GatewayError):
        scene.operator().roll_back(MODEL, "bad")
    scene.gateway.confirms = True
    assert scene.operator().roll_back(MODEL, "bad").back_to == 1
    assert scene.gateway.held[MODEL].weights == {"blue": 100}


@pytest.mark.parametrize("held", [(3, "READY"), (1, "LOST"), (0, "LOADING")])
def test_a_version_that_is_no_longer_warm_is_refused_with_the_replicas_words(
    scene: Scene, held: tuple[int, str]
) -> None:
    scene.pools.held["blue"] = held
    with pytest.raises(ServingError, match=f"no longer warm in blue .*blue-0 has version {held[0]} {held[1]}"):
        scene.operator().roll_back(MODEL, "bad")
    assert scene.gateway.held[MODEL].weights == {"green": 100}
    assert scene.lineage.aliases[MODEL, "champion"] == 2


def test_after_the_window_it_is_refused_with_its_end(scene: Scene) -> None:
    scene.now = EPOCH + timedelta(hours=25)
    with pytest.raises(ServingError, match="window of version 2 ended 2024-01-02 00:00"):
        scene.operator().roll_back(MODEL, "bad")


def test_a_first_release_and_an_unknown_model_have_nothing_to_go_back_to(scene: Scene) -> None:
    scene.put(close(rollout(phase=Phase.PROMOTED, champion=None)))
    with pytest.raises(ServingError, match="first release"):
        scene.operator().roll_back(MODEL, "bad")
    with pytest.raises(NotFound, match="nothing was rolled out"):
        scene.operator().roll_back("fraud", "bad")


def test_a_rollout_that_began_meanwhile_is_not_cut_off(scene: Scene) -> None:
    stale = load(scene.store, MODEL)
    assert stale is not None
    scene.put(close(rollout(phase=Phase.PROMOTED, slow_ms=7.0)))
    with pytest.raises(ServingError, match="begun just now"):
        scene.operator()._take_back(*stale, "bad", 0.0)
    assert scene.gateway.held[MODEL].weights == {"green": 100}


def test_a_rollout_on_its_way_up_is_ended_by_its_own_driver(scene: Scene) -> None:
    """The driver looks for orders at every step; here it takes its turn while the operator waits."""
    climbing = claim(rollout(phase=Phase.ADVANCING, rung=2, confirmed=True), "a run", scene.now)
    assert climbing is not None
    scene.put(climbing)

    def pause(seconds: float) -> None:
        scene.now += timedelta(seconds=seconds)
        found = load(scene.store, MODEL)
        assert found is not None
        if not found[0].closed:
            Driver("a run", **scene.ports(), say=lambda _: None, etag=found[1].etag, now=scene.clock).drive(found[0])

    scene.pause = pause  # type: ignore[method-assign]
    scene.lineage.set_alias(MODEL, "champion", 1)
    done = scene.operator().roll_back(MODEL, "changed my mind")
    assert "changed my mind" in done.reason
    assert scene.gateway.held[MODEL].weights == {"blue": 100}
    assert scene.lineage.aliases[MODEL, "champion"] == 1


def test_a_rollout_without_a_driver_is_ended_by_the_operator(scene: Scene) -> None:
    scene.put(rollout(phase=Phase.ADVANCING, rung=2, confirmed=True))
    assert scene.operator().roll_back(MODEL, "enough").back_to == 1
    found = load(scene.store, MODEL)
    assert found is not None
    assert (found[0].phase, found[0].closed) == (Phase.ROLLED_BACK, True)
    assert scene.gateway.held[MODEL].weights == {"blue": 100}


def test_an_order_to_an_earlier_rollout_does_not_end_a_later_one(scene: Scene) -> None:
    scene.put(rollout(phase=Phase.ADVANCING, rung=2, confirmed=True))
    scene.operator().roll_back(MODEL, "enough")
    later = begin(MODEL, 2, "green", "x.tar", "d", CanarySettings(), scene.now, champion=(1, "blue"))
    driver = Driver("a run", **scene.ports(), say=lambda _: None)
    assert driver._ordered_back(later) is None
    assert driver._ordered_back(rollout()) is not None
