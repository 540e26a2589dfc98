"""A search that was interrupted goes on from what it measured; of nothing else."""

import json
from pathlib import Path

import pytest

from assets.profile.cache import trials_from_json, trials_to_json
from assets.profile.learned import plan
from assets.profile.points import Point
from assets.profile.settings import ProfileSettings, Setting
from resources.notes import NOTHING, Notes
from resources.signing import create_keys
from tests.fakes import MemoryStore
from tests.fakes_lineage import MemoryLineage
from tests.serving_stack import tiny_onnx
from tests.unit.profile.test_door import Interrupted, PaperProfiler, Stage

ONE, TWO = "i1-d0-t1-b64", "i2-d0-t1-b64"
SETTINGS = ProfileSettings(queue_delays_us=(0,))
DEFAULT, OTHER = Setting(1, 0), Setting(2, 0)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    private, _ = create_keys(tmp_path)
    stage = Stage(MemoryStore(), MemoryLineage(), private)
    release(stage, 1)
    return stage


def release(stage: Stage, version: int, bias: float = 0.0) -> None:
    run = f"r{version}"
    stage.lineage.register("flight", tiny_onnx(bias), dagster_run_id=run, snapshot_digest="s", snapshot_uri="")
    stage.lineage.set_alias("flight", "challenger", version)


def interrupted(stage: Stage) -> None:
    with pytest.raises(Interrupted):
        stage.profile(PaperProfiler(interrupted_at=2))
    assert len(stage.store.keys("trials/flight/")) == 1


def test_an_interrupted_search_goes_on_from_what_it_measured(stage: Stage) -> None:
    interrupted(stage)
    again = PaperProfiler(drift=1.0)
    record = stage.profile(again, "2013-03-02")
    assert again.tried == [ONE, TWO, ONE, TWO]  # the A/A control was left, then what leads again
    assert [point["throughput_per_s"] for point in record["details"]["points"]] == [1000.0, 1600.0] * 3
    assert record["details"]["choice"]["instances"] == 2


def test_figures_of_an_interrupted_search_are_no_other_model_s(stage: Stage) -> None:
    interrupted(stage)
    release(stage, 2, bias=1.0)
    other = PaperProfiler()
    stage.profile(other, "2013-03-02")
    assert other.tried == [ONE, TWO] * 3


def test_a_search_that_ended_leaves_nothing_to_go_on_from_quiet_or_not(stage: Stage) -> None:
    interrupted(stage)
    (key,) = stage.store.keys("trials/")
    assert stage.profile(PaperProfiler({ONE: 3000.0, TWO: 1600.0}), "2013-03-02")["details"]["quiet"] is False
    assert stage.store.objects[key] == NOTHING
    again = PaperProfiler()
    stage.profile(again, "2013-03-03")
    assert again.tried == [ONE, TWO] * 3


def test_a_control_from_before_the_interruption_is_measured_once_more_after_it() -> None:
    settings = ProfileSettings(queue_delays_us=(0,), instances=(1, 2, 3))
    before = [point(DEFAULT), point(OTHER), point(DEFAULT)]
    assert plan(settings, [], before, [], earlier=3) == [Setting(3, 0), DEFAULT]
    after = [*before, point(Setting(3, 0)), point(DEFAULT)]
    assert plan(settings, [], after, [], earlier=3) == []
    assert plan(settings, [], after[:4], []) == []


def point(config: Setting) -> Point:
    return Point(config.instances, config.max_queue_delay_us, 4, 1000.0, 2.5, "x", p95_latency_ms=1.5)


def test_trials_come_back_as_they_were() -> None:
    points = (point(DEFAULT), point(OTHER))
    assert trials_from_json(trials_to_json(points), SETTINGS) == points


@pytest.mark.parametrize(
    "body", [NOTHING, b"no JSON", b"[1]", b'[{"instances": 1}]', trials_to_json([point(Setting(3, 0))])]
)
def test_what_are_no_trials_of_this_search_is_measured_anew(body: bytes) -> None:
    assert trials_from_json(body, SETTINGS) == ()


def test_a_store_that_fails_costs_a_note_and_no_sweep() -> None:
    store, said = MemoryStore(), list[str]()
    notes = Notes(store, "trials/m/q.json", said.append)
    notes.write(b"[1]")
    store.down = True
    assert notes.read() == NOTHING
    notes.write(b"[1, 2]")
    notes.forget()
    store.down = False
    assert json.loads(notes.read()) == [1]
    assert all("the store is down" in line for line in said)
    assert len(said) == 3
