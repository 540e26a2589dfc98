"""The flights of one January, read once."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipelines.models.flight_delay.source import raw_tables
from resources.features import FeatureRegistry, FeatureSet
from tests.fakes import MemoryStore

MODEL = Path(__file__).parents[3] / "pipelines/models/flight_delay"


@pytest.fixture(scope="session")
def flights_store() -> MemoryStore:
    store = MemoryStore()
    for name, table in raw_tables().items():
        sink = io.BytesIO()
        pq.write_table(table, sink)
        store.put(f"raw/{name}.parquet", sink.getvalue())
    return store


@pytest.fixture(scope="session")
def flights() -> FeatureSet:
    return FeatureRegistry.load(MODEL / "features.yaml").resolve("flights", datetime(2013, 1, 1, tzinfo=UTC))


@pytest.fixture(scope="session")
def flights_of_2013() -> pd.DataFrame:
    frame: pd.DataFrame = raw_tables()["flights"].to_pandas()
    return frame
