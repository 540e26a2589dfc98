"""The door of the profile room: what is kept, what is learned from, what lies in the package."""

import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pandas as pd
import pytest

from assets.model import Model
from assets.profile.asset import serving_profile
from assets.profile.cache import Profile, device_key, to_json
from assets.profile.points import Point
from assets.profile.settings import ProfileSettings
from resources.features import Column, FeatureSet
from resources.model_analyzer import Infeasible, Measurement, Outcome
from resources.releases import published
from resources.signing import create_keys
from tests.fakes import MemoryStore
from tests.fakes_lineage import MemoryLineage
from tests.serving_stack import FEATURES, ROWS, tiny_onnx

SETTINGS = ProfileSettings(queue_delays_us=(0,))
PLACE = {"device": "a CPU", "config_name": "a-cpu", "driver": "none", "threads": "2", "triton": "2.51"}
DAY = "2013-03-01"


class Interrupted(BaseException):
    """As Dagster interrupts a run."""


@dataclass
class PaperProfiler:
    """Says what it is told to, and remembers how it was asked."""

    rates: Mapping[str, float] = field(default_factory=lambda: {"i1-d0-t1-b64": 1000.0, "i2-d0-t1-b64": 1600.0})
    drift: float = 1.01
    interrupted_at: int | None = None
    tried: list[str] = field(default_factory=list)
    probe: Mapping[str, Any] = field(default_factory=dict)

    def place(self, kind: str) -> dict[str, str]:
        return PLACE

    def sweep(
        self,
        model: str,
        onnx: bytes,
        configs: Mapping[str, Mapping[str, Any]],
        plan: Callable[[Sequence[Outcome]], Sequence[str]],
        probe: Mapping[str, Any],
        concurrency: int,
        progress: Callable[[str], None],
        finish: Callable[[Any, list[Outcome]], None],
    ) -> list[Outcome]:
        self.probe = probe
        outcomes: list[Outcome] = []
        while names := plan(outcomes):
            if len(outcomes) == self.interrupted_at:
                raise Interrupted
            again = self.drift if names[0] in self.tried else 1.0
            self.tried.append(names[0])
            rate = self.rates.get(names[0])
            outcomes.append(
                Infeasible(names[0], "it died")
                if rate is None
                else Measurement(names[0], concurrency, rate * again, 1.5, 2.5, names[0])
            )
        outputs = [{"name": name, **tensor} for name, tensor in probe["outputs"].items()]
        answer = {"model_version": "1", "outputs": outputs}
        finish(SimpleNamespace(load=lambda *_: None, infer=lambda *_: answer), outcomes)
        return outcomes


@dataclass
class Stage:
    store: MemoryStore
    lineage: MemoryLineage
    keys: Path

    def profile(self, profiler: PaperProfiler, day: str = DAY) -> dict[str, Any]:
        """Materialize; the decision's record."""
        columns = tuple(Column(name, kind) for name, kind in FEATURES.items())  # type: ignore[arg-type]
        fixed: dict[str, Any] = {
            name: name for name in ("name", "entity", "event_time", "known_at", "label", "label_known_at")
        }
        features = FeatureSet(
            **fixed, version="1", valid_from=datetime(2013, 1, 1, tzinfo=UTC), columns=columns, sources=("s",), sql="x"
        )
        registry: Any = SimpleNamespace(resolve=lambda name, at: features)
        model = Model("flight", "", (), "features", registry, Path("recipe.py"))
        asset = serving_profile(model, dg.DailyPartitionsDefinition("2013-01-01"), SETTINGS)
        traffic = SimpleNamespace(answers=lambda *_: ROWS)
        resources = {"store": self.store, "lineage": self.lineage, "traffic": traffic, "profiler": profiler}
        resources["signing_key"] = self.keys
        before = set(self.store.keys("decisions/"))
        assert dg.materialize([asset], partition_key=day, resources=resources).success
        (new,) = set(self.store.keys("decisions/")) - before
        record: dict[str, Any] = json.loads(self.store.get(new))
        return record

    def package(self, version: int = 1) -> dict[str, bytes]:
        assignment, _ = published(self.store, "flight", version)
        with tarfile.open(fileobj=BytesIO(self.store.get(assignment.package))) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]

    def remember(self, device: str, rates: Sequence[float]) -> None:
        """A profile of another model on some device."""
        points = [Point(1 + i, 0, 4, rate, 2.5, "x", p95_latency_ms=1.5) for i, rate in enumerate(rates)]
        place = PLACE | {"device": device, "config_name": device.lower()}
        found = Profile("other", device, place, "KIND_CPU", "2013-02-01T00:00:00+00:00", (*points, points[0]), (), 0.0)
        self.store.put(device_key(found, device), to_json(found))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    private, _ = create_keys(tmp_path)
    stage = Stage(MemoryStore(), MemoryLineage(), private)
    stage.lineage.register("flight", tiny_onnx(), dagster_run_id="r", snapshot_digest="s", snapshot_uri="")
    stage.lineage.set_alias("flight", "challenger", 1)
    return stage


def test_a_profile_is_kept_for_the_same_question_and_as_experience_of_its_device(stage: Stage) -> None:
    profiler = PaperProfiler()
    first = stage.profile(profiler)
    assert first["verdict"] == "PASS"
    assert profiler.tried == ["i1-d0-t1-b64", "i2-d0-t1-b64"] * 3
    assert len(stage.store.keys("profiles/flight/")) == len(stage.store.keys("devices/a-cpu/")) == 1
    again = PaperProfiler()
    assert stage.profile(again, "2013-03-02")["details"]["choice"] == first["details"]["choice"]
    assert again.tried == []


def test_nothing_of_an_unquiet_machine_is_kept(stage: Stage) -> None:
    record = stage.profile(PaperProfiler(drift=2.0))
    assert record["details"]["quiet"] is False
    assert stage.store.keys("profiles/") == stage.store.keys("devices/") == []


def test_figures_of_another_model_are_never_taken_for_measurements(stage: Stage) -> None:
    for name in ("A", "B", "C"):
        stage.remember(name, [1.0, 2.0])
    stage.profile(PaperProfiler())
    stage.lineage.register("flight", tiny_onnx(1.0), dagster_run_id="r2", snapshot_digest="s", snapshot_uri="")
    stage.lineage.set_alias("flight", "challenger", 2)
    other = PaperProfiler({"i1-d0-t1-b64": 10.0, "i2-d0-t1-b64": 5.0})
    record = stage.profile(other, "2013-03-02")
    assert len(other.tried) == 3
    assert {point["throughput_per_s"] for point in record["details"]["points"]} == {10.0, 10.1, 5.0}
    assert record["details"]["choice"]["instances"] == 1


def test_one_package_carries_a_configuration_for_every_known_device_and_says_which_are_guesses(stage: Stage) -> None:
    stage.remember("XEON", [1000.0, 900.0])
    assert stage.profile(PaperProfiler())["details"]["choice"]["instances"] == 2
    files = stage.package()
    assert {"configs/a-cpu.pbtxt", "configs/xeon.pbtxt"} <= set(files)
    assert b"count: 1" in files["configs/xeon.pbtxt"]
    assert files["configs/a-cpu.pbtxt"] == files["config.pbtxt"]
    devices = json.loads(files["manifest.json"])["profile"]["devices"]
    assert {name: item["source"] for name, item in devices.items()} == {"a-cpu": "measured", "xeon": "guess"}


def test_what_dies_is_told_in_the_record_and_the_rest_is_published(stage: Stage) -> None:
    record = stage.profile(PaperProfiler({"i1-d0-t1-b64": 1000.0}))
    assert record["verdict"] == "PASS"
    assert [item["reason"] for item in record["details"]["infeasible"]] == ["it died"]
    assert stage.package()


def test_nothing_that_can_be_served_fails_without_a_package(stage: Stage) -> None:
    record = stage.profile(PaperProfiler({}))
    assert record["verdict"] == "FAIL"
    assert "no configuration can be served here" in record["why"]
    assert stage.store.keys("packages/") == []


def test_the_load_is_the_rows_of_the_inference_log(stage: Stage) -> None:
    profiler = PaperProfiler()
    stage.profile(profiler)
    inputs = profiler.probe["inputs"]
    assert inputs["carrier"]["data"] == list(ROWS["carrier"])
    assert inputs["hour"]["data"] == list(ROWS["hour"])
    assert pd.Series(inputs["temp"]["data"]).nunique() > 1
