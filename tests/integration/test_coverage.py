"""Coverage and the page of a rollout on the real stack: the champion's own file as challenger, under live traffic."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from assets.canary.driver import load
from assets.canary.replay import same
from assets.canary.rollout import Phase
from assets.cells import Cells, cells_key
from pipelines.demo.clients import Clients, Pace
from pipelines.demo.loops import CANARY
from pipelines.demo.scene import Scene, publish_challenger, send_until_done
from pipelines.demo.story import MODEL, START
from tests.demo_scene import launched_rollout, running_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
OBSERVED = """
query Seen($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
  assetObservations(limit: 50) { metadataEntries { label ... on MarkdownMetadataEntry { mdStr }
                                                         ... on UrlMetadataEntry { url } } } } } }"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with running_scene(tmp_path_factory.mktemp("coverage")) as running:
        yield running


@pytest.fixture(scope="module")
def ended(scene: Scene) -> dict[str, Any]:
    """The record of an A/A rollout, and its run's id in Dagster."""
    version = publish_challenger("crash", scene)  # an undamaged one, which nobody kills here
    with Clients(scene.stage.gateway, MODEL, scene.features.features, Pace(CANARY)) as clients:
        run = launched_rollout(scene)
        send_until_done(clients, scene, run)
    assert scene.webserver.status(run) == "SUCCESS"
    found = load(scene.doors.store, MODEL)
    assert found is not None
    assert (found[0].version, found[0].phase) == (version, Phase.PROMOTED), found[0].reason
    keys = list(scene.doors.store.keys(f"decisions/{MODEL}/canary/"))
    records = [json.loads(scene.doors.store.get(key)) for key in keys]
    return next(record for record in records if record["details"]["rollout"]["version"] == version)


def test_the_challenger_saw_enough_of_the_feature_space_and_the_record_says_how_much(
    scene: Scene, ended: dict[str, Any]
) -> None:
    found = {item["name"]: item for item in ended["evidence"]}["coverage"]
    assert found["verdict"] == "PASS", found["why"]
    assert found["statistic"] >= found["threshold"] == 0.4
    stands = ended["details"]["coverage"]["standing"]
    mine = sum(rung["challenger"]["requests"] for rung in ended["details"]["rungs"] if rung["percent"] < 100)
    # Copies of bodies may lag behind the access record by some requests at the end of a look.
    assert 0.95 * mine <= stands["requests"] <= mine
    assert stands["covered"] >= stands["lowest"] - 1e-9  # often the same cells, summed in another order
    assert [point["percent"] for point in ended["details"]["coverage"]["curve"]] == [1, 5, 25, 50]


def test_the_cells_lie_beside_the_reference_of_the_version_they_were_made_with(scene: Scene) -> None:
    cells = Cells.from_bytes(scene.doors.store.get(cells_key(MODEL, 1)))
    assert 2 <= cells.outside <= 20
    assert cells.counts[:-1].min() >= 30
    january = scene.flights[scene.flights["event_time"] < START]
    assert not cells.assign(january).beyond.all()


def test_the_record_replays_to_its_verdicts(ended: dict[str, Any]) -> None:
    assert same(ended)


def test_the_rungs_are_on_the_assets_page_and_the_whole_rollout_on_mlflows(scene: Scene, ended: dict[str, Any]) -> None:
    key = {"path": [MODEL, "canary_rollout"]}
    seen = scene.webserver.query(OBSERVED, {"key": key})["assetOrError"]["assetObservations"]
    entries = [{entry["label"]: entry for entry in item["metadataEntries"]} for item in seen]
    assert len(entries) >= 6  # mirror, four rungs, all
    assert any("data:image/svg" in entry["picture"]["mdStr"] for entry in entries)
    pages = {entry["page"]["url"] for entry in entries if "page" in entry}
    assert len(pages) == 1
    run_id = pages.pop().rpartition("/")[2]
    uri = scene.doors.lineage.tracking_uri
    with urlopen(f"{uri}/get-artifact?path=rollout.html&run_id={run_id}", timeout=10) as answer:
        page = answer.read().decode()
    version = ended["details"]["rollout"]["version"]
    for part in (f"{MODEL} version {version}: promoted", "Coverage of the feature space", "p99 ms", "observed split"):
        assert part in page
    with urlopen(f"{uri}/api/2.0/mlflow/metrics/get-history?run_id={run_id}&metric_key=coverage.covered") as answer:
        assert len(json.loads(answer.read())["metrics"]) >= 3
