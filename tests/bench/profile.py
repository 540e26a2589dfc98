"""Profile: a sweep of the flights model. What the packages do once they are loaded is in `loads`."""

import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pyarrow.parquet import write_table

from assets.profile.asset import measure
from assets.profile.choice import choose
from assets.profile.package import build_probe
from assets.profile.serving_config import serving_config, starting_choice
from assets.profile.settings import ProfileSettings
from assets.recipe import load_recipe
from assets.retrain.export import to_onnx
from assets.scoring import score
from pipelines.environments import MODELS
from pipelines.models.flight_delay.source import raw_tables
from resources.features import FeatureRegistry, read
from resources.profiler import Profiler
from tests.bench import loads
from tests.bench.lines import Line, at_least, at_most
from tests.fakes import MemoryStore
from tests.serving_stack import SERVERS

ROOM = "profile"
SWEEP = ProfileSettings(instances=(1, 2, 3), queue_delays_us=(0, 200, 500), p99_latency_ms=2000)


def lines() -> Iterator[Line]:
    """Packages on the real stack; then a real sweep, alone on the machine."""
    yield from loads.lines()
    with tempfile.TemporaryDirectory() as name:
        yield from _sweep(Path(name))


def _sweep(folder: Path) -> Iterator[Line]:
    """The model of the demo, fitted on January; rows that were served in February are the load."""
    store = MemoryStore()
    for name, table in raw_tables().items():
        sink = io.BytesIO()
        write_table(table, sink)
        store.put(f"raw/{name}.parquet", sink.getvalue())
    january, february = datetime(2013, 1, 4, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)
    features = FeatureRegistry.load(MODELS / "flight_delay" / "features.yaml").resolve("flights", january)
    rows = read(features, store, january, february, february)
    known = rows[rows[features.label].notna()]
    frame = known[list(features.features)].assign(late=known[features.label].astype(int))
    onnx = to_onnx(load_recipe(MODELS / "flight_delay" / "recipe.py").fit(frame, "late", 0), features.features)
    head = rows[list(features.features)].dropna().tail(16).reset_index(drop=True)
    probe = build_probe(head, features.features, score(onnx, head, features.features))
    base = serving_config("flight_delay", features.features, starting_choice(SWEEP), version=1)
    started = time.monotonic()
    profiler = Profiler(SERVERS, folder / "profiler")
    points, difference = measure("flight_delay", onnx, base, probe, SWEEP, profiler, february, lambda _: None)
    spent = time.monotonic() - started
    decision = choose("flight_delay", points, SWEEP, february, {})
    band, choice = decision.details["band"], decision.details["choice"]
    default = statistics.fmean(p.throughput_per_s for p in points if p.config == (1, 0))
    gain = choice["throughput_per_s"] / default
    is_default = (choice["instances"], choice["max_queue_delay_us"]) == (1, 0)
    yield at_most(ROOM, f"profile of the flights model, answers checked; A/A band {band:.1%}", spent, "s", 60)
    yield at_least(ROOM, "measured points, the A/A control among them", float(len(points)), "", 10)
    yield Line(
        ROOM,
        f"throughput chosen: {decision.why}",
        choice["throughput_per_s"],
        "/s",
        "the default is chosen, or a gain outside the band",
        is_default or gain > 1 + band,
        gain,
        "default",
    )
    yield at_most(ROOM, "chosen configuration's answers from ONNX Runtime's", difference, "", SWEEP.probe_tolerance)
