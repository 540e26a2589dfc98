"""A small model of made-up rows: feature set, recipe, data. `python -m tests.made_model HOME` profiles it there."""

import io
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd

from assets.model import Model
from assets.profile.asset import serving_profile
from assets.profile.settings import ProfileSettings
from assets.retrain.export import to_onnx
from pipelines import local
from pipelines.environments import enter, ports
from resources.features import FeatureRegistry
from resources.store import Store

MODEL, DAY, START = "made", "2013-01-30", datetime(2013, 1, 1, tzinfo=UTC)
PARTITIONS = dg.DailyPartitionsDefinition("2013-01-01")
FEATURES = {"carrier": "string", "temp": "float", "hour": "int"}
# Five trials of one configuration each, the A/A control among them.
SEARCH = ProfileSettings(instances=(1, 2), queue_delays_us=(0, 200), p99_latency_ms=2000, quiet_band=0.9)
FEATURE_SET = """\
name: made
version: 1
valid_from: 2013-01-01T00:00:00Z
entity: row_key
event_time: event_time
known_at: event_time
label: late
label_known_at: label_known_at
sources: [made]
columns: [{name: carrier, type: string}, {name: temp, type: float}, {name: hour, type: int}]
sql: SELECT CAST(row_number() OVER (ORDER BY event_time) AS VARCHAR) AS row_key, * FROM made
"""
RECIPE = """\
def fit(frame, target, seed):
    from lightgbm import LGBMClassifier
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("codes", codes, ["carrier"]), ("numbers", "passthrough", ["temp", "hour"])])
    trees = LGBMClassifier(n_estimators=400, learning_rate=0.02, random_state=seed, n_jobs=1, verbose=-1)
    return Pipeline([("columns", columns), ("trees", trees)]).fit(frame.drop(columns=target), frame[target])
"""


def model(folder: Path) -> Model:
    """The model as its rooms see it, its files written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.yaml").write_text(FEATURE_SET)
    (folder / "recipe.py").write_text(RECIPE)
    registry = FeatureRegistry.load(folder / "features.yaml")
    return Model(MODEL, "Made up.", ("team:ml",), "made", registry, folder / "recipe.py")


def made_up(rows: int = 6000) -> pd.DataFrame:
    """A row every seven minutes from 1 January 2013 on, its label known three hours later."""
    rng = np.random.default_rng(1)
    at = [START + timedelta(minutes=7 * i) for i in range(rows)]
    frame = pd.DataFrame({"event_time": at, "label_known_at": [t + timedelta(hours=3) for t in at]})
    frame["carrier"] = rng.choice(["UA", "AA", "B6"], rows)
    frame["temp"], frame["hour"] = rng.normal(size=rows), [t.hour for t in at]
    logit = frame.temp + (frame.carrier == "UA") - (frame.hour > 12)
    return frame.assign(late=(rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(float))


def put_source(store: Store, frame: pd.DataFrame) -> None:
    sink = io.BytesIO()
    frame.to_parquet(sink, index=False)
    store.put("raw/made.parquet", sink.getvalue())


def fitted(of: Model, frame: pd.DataFrame, seed: int) -> bytes:
    """ONNX of a fit on the first twenty days."""
    rows = frame[frame["event_time"] < START + timedelta(days=20)]
    return to_onnx(of.fit(rows, of.registry.resolve("made", START), seed), FEATURES)


def profiled(home: Path) -> dg.ExecuteInProcessResult:
    """One run of the profile room in this process, on the stack of this home."""
    where = enter(local.stack_environment(local.read_addresses(home), home))
    asset = serving_profile(model(home / "made"), PARTITIONS, SEARCH)
    return dg.materialize([asset], partition_key=DAY, resources=ports(where).as_resources())


if __name__ == "__main__":
    profiled(Path(sys.argv[1]))
