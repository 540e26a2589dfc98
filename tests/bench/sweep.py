"""A sweep of the flights model by the real Model Analyzer: how long, how many points, and is it the same twice."""

import io
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyarrow.parquet import write_table

from assets.profile.cache import Profile
from assets.profile.choice import choose
from assets.profile.objective import value
from assets.profile.package import build_probe
from assets.profile.points import merged
from assets.profile.search import measure
from assets.profile.serving_config import serving_config, starting_choice
from assets.profile.settings import ProfileSettings, Setting
from assets.recipe import load_recipe
from assets.retrain.export import to_onnx
from assets.scoring import score
from pipelines.environments import MODELS
from pipelines.models.flight_delay.source import raw_tables
from resources.features import FeatureRegistry, read
from resources.profiler import Profiler
from tests.bench.lines import Line, at_least, at_most
from tests.fakes import MemoryStore
from tests.serving_stack import SERVERS

ROOM = "profile"
SWEEP = ProfileSettings(instances=(1, 2, 3), queue_delays_us=(0, 200, 500), p99_latency_ms=2000)
REPEATS = 10
JANUARY, FEBRUARY = datetime(2013, 1, 4, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Flights:
    """The model of the demo, fitted on January; rows that were served in February are the load."""

    onnx: bytes
    probe: dict[str, Any]
    features: dict[str, str]

    def profile(self, settings: ProfileSettings, workdir: Path) -> Profile:
        base = serving_config("flight_delay", self.features, starting_choice(settings), version=1)
        profiler = Profiler(SERVERS, workdir)
        return measure("flight_delay", self.onnx, base, self.probe, settings, profiler, FEBRUARY, lambda _: None)


def lines() -> Iterator[Line]:
    """Ten sweeps of ten points, ten minutes; alone on the machine, or the noise band says so."""
    flights, profiles, seconds = _flights(), [], []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(REPEATS):
            started = time.monotonic()
            profiles.append(flights.profile(SWEEP, Path(name)))
            seconds.append(time.monotonic() - started)
    yield from _whole(profiles[0], seconds)
    yield _repeated(profiles)


def _flights() -> Flights:
    store = MemoryStore()
    for name, table in raw_tables().items():
        sink = io.BytesIO()
        write_table(table, sink)
        store.put(f"raw/{name}.parquet", sink.getvalue())
    features = FeatureRegistry.load(MODELS / "flight_delay" / "features.yaml").resolve("flights", JANUARY)
    rows = read(features, store, JANUARY, FEBRUARY, FEBRUARY)
    known = rows[rows[features.label].notna()]
    frame = known[list(features.features)].assign(late=known[features.label].astype(int))
    onnx = to_onnx(load_recipe(MODELS / "flight_delay" / "recipe.py").fit(frame, "late", 0), features.features)
    head = rows[list(features.features)].dropna().tail(16).reset_index(drop=True)
    probe = build_probe(head, features.features, score(onnx, head, features.features))
    return Flights(onnx, probe, dict(features.features))


def _whole(found: Profile, seconds: list[float]) -> Iterator[Line]:
    decision = choose("flight_delay", found.points, SWEEP, FEBRUARY, {}, found.failed)
    band, choice = decision.details.get("band", 1.0), decision.details.get("choice")
    spent = f"median of {REPEATS}, slowest {max(seconds):.1f} s"
    name = f"profile of the flights model, answers checked, {spent}; A/A band {band:.1%}"
    yield at_most(ROOM, name, statistics.median(seconds), "s", 60)
    yield at_least(ROOM, "measured points, the A/A control among them", float(len(found.points)), "", 10)
    target = "the default is chosen, or a gain outside the band"
    if choice is None:
        yield Line(ROOM, f"throughput chosen: {decision.why}", None, "/s", target, False)
        return
    rates = {point.config: point.throughput_per_s for point in merged(found.points)}
    config, default = _config(choice), SWEEP.candidates[0]
    gain = rates[config] / rates[default]
    met = config == default or gain > 1 + band
    yield Line(ROOM, f"throughput chosen: {decision.why}", rates[config], "/s", target, met, gain, "default")
    yield at_most(
        ROOM, "chosen configuration's answers from ONNX Runtime's", found.difference, "", SWEEP.probe_tolerance
    )


def _repeated(profiles: list[Profile]) -> Line:
    """A repeat agrees when it chose what most did, or measured that as no worse than its own choice beyond the band."""
    decisions = [choose("flight_delay", found.points, SWEEP, FEBRUARY, {}, found.failed) for found in profiles]
    chosen = [_config(d.details["choice"]) for d in decisions if "choice" in d.details]
    usual = Counter(chosen).most_common(1)[0][0] if chosen else None
    agreed = sum(
        usual is not None and _ties(found, usual, d.details) for found, d in zip(profiles, decisions, strict=True)
    )
    bands = ", ".join(f"{d.details.get('band', 1):.0%}" for d in decisions)
    named = f"same choice ({usual}) or a tie, share of {len(profiles)} repeats; bands {bands}"
    return at_least(ROOM, named, agreed / len(profiles), "", 0.9)


def _ties(found: Profile, usual: Setting, details: Mapping[str, Any]) -> bool:
    worth = {point.config: value(point, SWEEP) for point in merged(found.points)}
    if "choice" not in details or usual not in worth:
        return False
    least = max(details["band"], SWEEP.min_gain)
    return bool(worth[usual] * (1 + least) >= worth[_config(details["choice"])])


def _config(choice: Mapping[str, Any]) -> Setting:
    return Setting(*(choice[name] for name in Setting._fields))
