"""The fallback room in a model's walk, and what its door publishes."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import dagster as dg
import numpy as np
import pytest

from assets.fallback.asset import package
from assets.fallback.settings import FallbackSettings
from assets.scoring import score
from pipelines.environments import MODELS, environment, ports
from pipelines.factory import IMPROVE, RELEASE, WATCH, build_model_defs, rooms_of
from pipelines.jobs import build_jobs
from pipelines.sensors import Alarm, request
from pipelines.spec import ModelSpec, load_spec
from resources import packages, signing
from resources.features import FeatureSet
from resources.package_check import check_content
from resources.pools import LITE
from resources.releases import published
from tests.fakes import MemoryStore
from tests.serving_stack import FEATURES, ROWS, Publisher, tiny_onnx


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return load_spec(MODELS / "flight_delay" / "model.yaml")


def keeping(spec: ModelSpec) -> ModelSpec:
    return spec.model_copy(update={"fallback": FallbackSettings(enabled=True)})


def rooms(definitions: dg.Definitions) -> list[str]:
    return [key.path[-1] for asset in definitions.assets or () for key in cast(dg.AssetsDefinition, asset).keys]


def test_a_model_keeps_no_copy_unless_its_spec_asks_for_one(spec: ModelSpec) -> None:
    assert "fallback_copy" not in rooms(build_model_defs(spec))
    assert rooms(build_model_defs(keeping(spec)))[-2:] == ["canary_rollout", "fallback_copy"]


def test_the_copy_is_renewed_after_every_rollout_and_by_nothing_else(spec: ModelSpec) -> None:
    assert rooms_of(keeping(spec), IMPROVE)[-1] == "fallback_copy"
    assert rooms_of(keeping(spec), RELEASE)[-1] == "fallback_copy"
    assert rooms_of(keeping(spec), WATCH) == WATCH
    assert rooms_of(spec, IMPROVE) == IMPROVE
    alarm = Alarm(1, "inputs", "2013-02-01")
    selected = request(keeping(spec), alarm).asset_selection
    assert dg.AssetKey(["flight_delay", "fallback_copy"]) in list(selected or ())


def test_its_jobs_resolve(spec: ModelSpec) -> None:
    kept = keeping(spec)
    definitions = dg.Definitions.merge(
        build_model_defs(kept), dg.Definitions(jobs=build_jobs([kept]), resources=ports(environment({})).as_resources())
    )
    graph = definitions.resolve_asset_graph()
    assert (
        dg.AssetKey(["flight_delay", "canary_rollout"])
        in graph.get(dg.AssetKey(["flight_delay", "fallback_copy"])).parent_keys
    )


def test_the_copy_is_signed_published_beside_its_original_and_holds_what_it_says(tmp_path: Path) -> None:
    store = MemoryStore()
    publisher = Publisher(tmp_path, store)
    original = publisher.publish("flight", 7)
    features = cast(FeatureSet, _Features())
    made = package(store, "flight", original, tiny_onnx(0.3), features, 30, publisher.private)
    assert made.version == original.version
    assert made.digest != original.digest
    packages.unpack(store.get(made.package), tmp_path / "there")
    signing.verify(tmp_path / "there", [publisher.public])
    check_content(tmp_path / "there", "flight", 7)
    assert published(store, "flight", 7, LITE)[0] == made
    again = package(store, "flight", original, tiny_onnx(0.3), features, 30, publisher.private)
    assert replace(again, package="", digest="") == replace(made, package="", digest="")
    np.testing.assert_array_less(score(tiny_onnx(), ROWS, FEATURES), score(tiny_onnx(0.3), ROWS, FEATURES))


class _Features:
    features: Any = FEATURES
