"""A release on the whole stack: its run is killed on the way, people watch it, and in the end it is taken back."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pandas as pd
import pytest

from assets.canary.asset import RESUMES
from assets.canary.driver import load
from assets.canary.rollout import Phase, Rollout
from pipelines.demo.scene import Scene, publish_challenger
from pipelines.demo.story import MODEL
from pipelines.jobs import job_name
from pipelines.launch import DONE
from tests.demo_scene import launched_rollout, running_scene, sending
from tests.gateway_stack import wait_until
from tests.killing import kill

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PROCESS = """
query Process($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events { ... on EngineEvent {
  metadataEntries { label ... on TextMetadataEntry { text } ... on IntMetadataEntry { intValue } } } } } } }"""


@dataclass
class Story:
    """What was seen of a rollout whose first run is killed at the second rung."""

    version: int
    first: str
    killed_at: float = 0.0
    taken_over_s: float = 0.0
    drivers: list[str] = field(default_factory=list)
    watched: str = ""
    watch_code: int | None = None
    failed: int = -1


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with running_scene(tmp_path_factory.mktemp("release")) as running:
        yield running


def now(scene: Scene) -> Rollout:
    found = load(scene.doors.store, MODEL)
    assert found is not None
    return found[0]


def process_of(scene: Scene, run: str) -> int:
    """The run's own process, as Dagster's event log names it."""
    events = scene.webserver.query(PROCESS, {"id": run})["logsForRun"]["events"]
    entries = [entry for event in events for entry in event.get("metadataEntries", []) if entry["label"] == "pid"]
    return int(entries[-1].get("text") or entries[-1]["intValue"])


@contextmanager
def watching(scene: Scene, story: Story) -> Iterator[None]:
    """`trimtab rollout MODEL --watch`, as people start it; it ends by itself."""
    command = [sys.executable, "-m", "pipelines.cli", "rollout", MODEL, "--watch"]
    process = subprocess.Popen(
        [*command, "--home", str(scene.stage.where.home)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield
        story.watched, _ = process.communicate(timeout=30)
        story.watch_code = process.returncode
    finally:
        process.kill()


@pytest.fixture(scope="module")
def story(scene: Scene) -> Story:
    version = publish_challenger("crash", scene)  # an undamaged one: what is killed here is its driver
    with sending(scene) as clients:
        told = Story(version, launched_rollout(scene))
        wait_until(lambda: now(scene).version == version, 60, "the rollout begins")
        with watching(scene, told):
            wait_until(lambda: now(scene).phase is Phase.ADVANCING and now(scene).rung >= 2, 120, "5 %")
            kill(process_of(scene, told.first))
            told.killed_at = time.monotonic()
            deadline = told.killed_at + 240
            while not (seen := now(scene)).closed:
                assert time.monotonic() < deadline, f"{seen.phase} by {seen.driver}: {seen.diary[-1]}"
                if seen.driver and seen.driver not in told.drivers:
                    told.drivers.append(seen.driver)
                    told.taken_over_s = time.monotonic() - told.killed_at
                time.sleep(0.1)
        told.failed = clients.count.failed
    return told


def test_a_rollout_whose_run_was_killed_is_driven_on_within_a_minute_by_one_other_run(
    scene: Scene, story: Story
) -> None:
    assert story.drivers[0] == story.first
    assert len(story.drivers) == 2
    assert story.taken_over_s <= 60
    print(f"killed to resumed: {story.taken_over_s:.1f} s")
    ended = now(scene)
    assert (ended.version, ended.phase) == (story.version, Phase.PROMOTED), ended.reason
    shares = [look.share for look in ended.guards.looks]
    assert shares == sorted(shares)
    assert story.failed == 0


def test_one_run_resumed_it_and_the_killed_one_has_failed(scene: Scene, story: Story) -> None:
    job = job_name("improve", scene.spec.cadence)
    wait_until(lambda: all(run["status"] in DONE for run in scene.webserver.runs(job, MODEL)), 60, "all runs are done")
    runs = {run["runId"]: run for run in scene.webserver.runs(job, MODEL)}
    resumed = [run_id for run_id, run in runs.items() if RESUMES in {tag["key"]: tag["value"] for tag in run["tags"]}]
    assert resumed == [story.drivers[1]]
    assert runs[resumed[0]]["status"] == "SUCCESS"
    assert runs[story.first]["status"] == "FAILURE"


def test_whoever_watches_sees_rungs_what_could_be_noticed_and_how_long_it_takes(story: Story) -> None:
    assert story.watch_code == 0, story.watched
    for part in (
        "mirroring",
        "25 % to",
        "would have shown errors",
        "promoted in about",
        f"promoted version {story.version}",
    ):
        assert part in story.watched, story.watched


def test_a_promoted_version_is_taken_back_by_one_change_of_weights_and_its_alias_follows(
    scene: Scene, story: Story
) -> None:
    lineage, traffic, promoted = scene.doors.lineage, scene.doors.traffic, now(scene)
    before = promoted.champion_version
    found = lineage.version_of(MODEL, "champion")
    assert (found.version if found else None) == story.version
    command = [sys.executable, "-m", "pipelines.cli", "rollback", MODEL, "--reason", "complaints", "--json"]
    with sending(scene) as clients:
        time.sleep(3)
        done = subprocess.run(
            [*command, "--home", str(scene.stage.where.home)], capture_output=True, text=True, timeout=60, check=False
        )
        time.sleep(3)
        failed = clients.count.failed
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["version"], told["back_to"]) == (story.version, before)
    assert failed == 0
    time.sleep(1.5)
    traffic.flush()
    ordered = now(scene).reverted_at
    assert ordered is not None
    access = traffic.access_seen(MODEL, ordered)
    late = access[access["pool"] == promoted.challenger_pool]
    answered = late["seen_at"] + pd.to_timedelta(late["latency_ms"], unit="ms")
    last_s = max((answered - pd.Timestamp(ordered)).dt.total_seconds(), default=0.0)
    print(f"order to confirmed: {told['seconds']:.3f} s; to the challenger's last answer: {last_s:.3f} s")
    assert told["seconds"] <= 1
    assert last_s <= 1
    assert (access["pool"] == promoted.champion_pool).sum() > 100
    served = lineage.version_of(MODEL, "champion")
    assert (served.version if served else None) == before
    assert "by hand: complaints" in lineage.tags(MODEL, story.version)["rolled_back"]
    assert scene.doors.gateway.split(MODEL).weights == {promoted.champion_pool: 100}  # type: ignore[union-attr]
