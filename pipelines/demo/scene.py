"""What a rollout of the demo needs: a champion that serves, a challenger that is damaged, and clients until its end."""

import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle

import pandas as pd

from assets.profile.package import build_probe, package_files
from assets.profile.serving_config import serving_config, starting_choice
from assets.scoring import score
from pipelines.demo.clients import Clients, by_day
from pipelines.demo.damage import Damaged, damaged
from pipelines.demo.story import END_OF_DATA, HINDSIGHT, MODEL, START, Stage, first_release, put_sources
from pipelines.environments import Ports, ports
from pipelines.launch import DONE, Webserver
from pipelines.spec import ModelSpec, load_spec
from resources.errors import StackError
from resources.features import FeatureRegistry, FeatureSet, read
from resources.packages import render_config
from resources.releases import publish_signed

WEEK = timedelta(days=7)
# The challenger of 'errors' fails on the farthest flights, this share of them.
FAILING, FEATURE = 0.1, "distance"
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Scene:
    """A champion that serves, and a year of requests for it. flights: sorted by time, from a week before START."""

    stage: Stage
    doors: Ports
    spec: ModelSpec
    features: FeatureSet
    webserver: Webserver
    flights: pd.DataFrame


def set_scene(stage: Stage) -> Scene:
    """Source data and a first release, as in the whole demo."""
    doors = ports(stage.where)
    spec = load_spec(stage.where.models / MODEL / "model.yaml")
    features = FeatureRegistry.load(spec.features).resolve(spec.feature_set, START)
    webserver = Webserver(stage.dagster)
    put_sources(doors.store, stage.say)
    flights = read(features, doors.store, START - WEEK, END_OF_DATA, HINDSIGHT)
    first_release(webserver, spec, stage.say)
    return Scene(stage, doors, spec, features, webserver, flights)


def publish_challenger(kind: str, scene: Scene) -> int:
    """Register, package, sign and publish what is damaged in this way, as any other version; its number."""
    doors, spec, features = scene.doors, scene.spec, scene.features
    before = scene.flights[scene.flights["event_time"] < START]
    champion = doors.lineage.version_of(MODEL, "champion")
    assert champion is not None
    marks = doors.lineage.tags(MODEL, champion.version)
    limit = float(before[FEATURE].quantile(1 - FAILING))
    bad = damaged(kind, doors.lineage.onnx(MODEL, champion.version), FEATURE, limit)
    made = doors.lineage.register(
        MODEL,
        bad.registered,
        dagster_run_id=f"sabotage {kind}",
        snapshot_digest=marks.get("dataset.digest", ""),
        snapshot_uri="",
        tags={"sabotage": kind},
    )
    doors.lineage.set_alias(MODEL, "challenger", made.version)
    rows = before[before[FEATURE] <= limit].dropna(subset=list(features.features)).tail(spec.profile.probe_rows)
    files = _package(bad, made.version, made.run_id, spec, features, rows)
    publish_signed(doors.store, MODEL, made.version, files, doors.signing_key)
    return made.version


def _package(
    bad: Damaged, version: int, run_id: str, spec: ModelSpec, features: FeatureSet, rows: pd.DataFrame
) -> dict[str, bytes]:
    """Its probe was made from what it holds: nothing but live traffic shows what is wrong with it."""
    choice = {**starting_choice(spec.profile), **bad.choice}
    probe = build_probe(rows, features.features, score(bad.packaged, rows, features.features))
    config = render_config(serving_config(MODEL, features.features, choice, version=version))
    return package_files(
        MODEL,
        version,
        bad.packaged,
        config,
        probe,
        snapshot_digest="",
        mlflow_run_id=run_id,
        profile={"choice": choice},
    )


def send_until_done(clients: Clients, scene: Scene, launched: str) -> None:
    """Day after day of four weeks, again and again until the run has ended."""
    stage, webserver, flights = scene.stage, scene.webserver, scene.flights
    deadline = time.monotonic() + PATIENCE_S
    times = flights["event_time"]
    for day, rows in cycle(list(by_day(flights[(times >= START) & (times < START + 4 * WEEK)]))):
        clients.send(rows)
        stage.progress(day, len(rows))
        status = webserver.status(launched)
        if status in DONE:
            return
        if time.monotonic() > deadline:
            raise StackError(f"the rollout is {status} after {PATIENCE_S:.0f} s: see {webserver.page(launched)}")
