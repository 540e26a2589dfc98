"""The flights of 2013 as the rooms see them, for the benches."""

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pandas as pd

from assets.recipe import Recipe, load_recipe
from pipelines.models.flight_delay.source import raw_tables
from resources.features import FeatureRegistry, FeatureSet, read
from tests.fakes import MemoryStore

MODEL = Path(__file__).parents[2] / "pipelines/models/flight_delay"
START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2014, 1, 1, tzinfo=UTC)
LABEL = "late"


@cache
def feature_set() -> FeatureSet:
    return FeatureRegistry.load(MODEL / "features.yaml").resolve("flights", START)


def features() -> Mapping[str, str]:
    return feature_set().features


@cache
def rows() -> pd.DataFrame:
    """All flights by scheduled departure, each with its label: entity, event_time, inputs, late, label_known_at."""
    import pyarrow.parquet as pq

    store = MemoryStore()
    for name, table in raw_tables().items():
        sink = io.BytesIO()
        pq.write_table(table, sink)
        store.put(f"raw/{name}.parquet", sink.getvalue())
    return read(feature_set(), store, START, END, datetime(2014, 2, 1, tzinfo=UTC))


def between(start: datetime, end: datetime) -> pd.DataFrame:
    """Flights of [start, end)."""
    found = rows()
    return found[(found["event_time"] >= start) & (found["event_time"] < end)]


def recipe() -> Recipe:
    return load_recipe(MODEL / "recipe.py")


def inputs(frame: pd.DataFrame) -> pd.DataFrame:
    """What a recipe is fitted on: the inputs and the label."""
    return frame[[*features(), LABEL]]
