"""Snapshots as the store keeps them: immutable, the same again later, whatever clocks and late rows do."""

import io
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.model import Model
from assets.snapshot.asset import Kept, Snapshot, keeping, take
from resources.errors import Conflict, NotFound
from resources.features import Column, FeatureRegistry, FeatureSet, opened
from tests.fakes import MemoryStore

SPRING = datetime(2013, 3, 10, 5, tzinfo=UTC)  # midnight in New York; at 2 o'clock clocks jump to 3
AUTUMN = datetime(2013, 11, 3, 4, tzinfo=UTC)  # there 1 o'clock comes twice
NEW_YORK = "America/New_York"
Row = tuple[str, datetime, datetime, float | None]  # id, event time, known at, value


def feature_set(**changes: Any) -> FeatureSet:
    given: dict[str, Any] = {
        **{"name": "visits", "version": "1", "valid_from": datetime(2000, 1, 1, tzinfo=UTC), "entity": "id"},
        **{"event_time": "at", "known_at": "known", "label": "bought", "label_known_at": "bought_known"},
        **{"columns": (Column("value", "float"), Column("word", "string")), "sources": ("visits",)},
        "sql": "SELECT *, 1 AS bought, known + INTERVAL 1 HOUR AS bought_known FROM visits",
    }
    return FeatureSet(**{**given, **changes})


def parquet(rows: Sequence[Row], zone: str = "UTC") -> bytes:
    stamp = pa.timestamp("us", zone)
    ids, at, known, value = ([row[field] for row in rows] for field in range(4))
    columns = [pa.array(ids), pa.array(at, stamp), pa.array(known, stamp), pa.array(value, pa.float64())]
    table = pa.table([*columns, pa.nulls(len(rows), pa.string())], names=["id", "at", "known", "value", "word"])
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def stored(rows: Sequence[Row], zone: str = "UTC") -> MemoryStore:
    store = MemoryStore()
    store.put("raw/visits.parquet", parquet(rows, zone))
    return store


def model(features: FeatureSet | None = None) -> Model:
    registry = FeatureRegistry((features or feature_set(),))
    return Model("visits", "", ("team:a",), "visits", registry, Path("recipe.py"))


def hours(start: datetime, count: int) -> list[Row]:
    return [(f"{n:02}", at := start + timedelta(hours=n), at, float(n)) for n in range(count)]


def taken(store: MemoryStore, start: datetime, end: datetime, as_of: datetime | None = None) -> Snapshot:
    return take(model(), store, start, end, as_of or end)


def kept(store: MemoryStore, features: FeatureSet, start: datetime, end: datetime) -> Kept:
    with keeping(model(features), store, start, end, end) as found:
        return found


DAY = timedelta(days=1)


def test_a_backfill_after_late_rows_and_corrections_is_the_same_object() -> None:
    rows = hours(SPRING, 24)
    store = stored(rows)
    first = taken(store, SPRING, SPRING + DAY)
    late = SPRING + 3 * DAY
    rows += [("99", SPRING + timedelta(hours=2), late, 7.0), ("05", rows[5][1], late, -5.0)]
    store.objects["raw/visits.parquet"] = parquet(rows)
    before = dict(store.objects)
    again = taken(store, SPRING, SPRING + DAY)
    assert (again.key, again.digest, again.manifest) == (first.key, first.digest, first.manifest)
    pd.testing.assert_frame_equal(again.frame, first.frame)
    assert store.objects == before
    later = taken(store, SPRING, SPRING + DAY, as_of=late)
    assert later.digest != first.digest
    assert later.manifest["rows"] == 25
    assert later.frame.set_index("entity").loc["05", "value"] == -5.0


def test_history_that_is_rewritten_is_refused_and_nothing_is_lost() -> None:
    store = stored(hours(SPRING, 24))
    first = taken(store, SPRING, SPRING + DAY)
    store.objects["raw/visits.parquet"] = parquet([(i, at, known, -1.0) for i, at, known, _ in hours(SPRING, 24)])
    with pytest.raises(Conflict, match="manifests/"):
        taken(store, SPRING, SPRING + DAY)
    assert pq.read_table(io.BytesIO(store.get(first.key)))["value"].to_pylist() == [float(n) for n in range(24)]


@pytest.fixture(params=["UTC", NEW_YORK])
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("source_zone", ["UTC", NEW_YORK])
@pytest.mark.parametrize(("start", "local_day"), [(SPRING, 23), (AUTUMN, 25)], ids=["spring", "autumn"])
def test_a_day_of_changing_clocks_keeps_every_hour_once(
    start: datetime, local_day: int, source_zone: str, machine_zone: str
) -> None:
    store = stored(hours(start, 30), source_zone)
    found = taken(store, start, start + timedelta(hours=local_day), as_of=start + 2 * DAY)
    assert found.frame["event_time"].tolist() == [start + timedelta(hours=n) for n in range(local_day)]
    assert (found.frame["label_known_at"] - found.frame["event_time"] == timedelta(hours=1)).all()
    assert found.digest == taken(stored(hours(start, 30)), start, start + timedelta(hours=local_day),
                                 as_of=start + 2 * DAY).digest  # fmt: skip


def test_hours_without_a_row_are_absent_and_a_span_without_one_is_an_empty_snapshot() -> None:
    store = stored([row for row in hours(SPRING, 24) if not 3 <= row[1].hour < 12])
    assert taken(store, SPRING, SPRING + DAY).manifest["rows"] == 15
    nothing = taken(store, SPRING + 9 * DAY, SPRING + 10 * DAY)
    assert nothing.manifest["rows"] == 0
    assert nothing.manifest["null_rates"] == dict.fromkeys(nothing.frame, 0.0)
    assert list(nothing.frame.dtypes) == list(taken(store, SPRING, SPRING + DAY).frame.dtypes)


def test_infinite_missing_and_nan_values_are_told_apart_as_far_as_they_differ() -> None:
    values = [float("inf"), float("-inf"), float("nan"), None, 1.0]
    rows = [(i, at, known, value) for (i, at, known, _), value in zip(hours(SPRING, 5), values, strict=True)]
    found = taken(stored(rows), SPRING, SPRING + DAY)
    assert found.manifest["infinite"] == {"value": 2}
    assert found.manifest["null_rates"] | {"value": 0.4, "word": 1.0} == found.manifest["null_rates"]


def test_only_rows_of_the_instant_stream_and_never_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resources.features.reader.BATCH_ROWS", 2048)
    store = stored(hours(SPRING, 10_000))
    end = SPRING + 365 * 2 * DAY
    with opened(feature_set(), store, SPRING, end, end) as rows:
        sizes = [batch.num_rows for batch in rows.batches]
    assert sum(sizes) == 10_000
    assert max(sizes) <= 2048


@pytest.mark.parametrize("kind", ["csv", "parts of parquet", "parts of csv"])
def test_a_source_may_be_csv_or_lie_in_parts(kind: str) -> None:
    rows = hours(SPRING, 24)
    whole = kept(stored(rows), feature_set(), SPRING, SPRING + DAY)
    store, word = MemoryStore(), feature_set(sql=feature_set().sql.replace("*,", "* REPLACE (NULL AS word),"))
    for number in range(2) if kind.startswith("parts") else (None,):
        part = rows if number is None else rows[12 * number : 12 * (number + 1)]
        body, suffix = parquet(part), "parquet"
        if kind.endswith("csv"):
            body, suffix = pd.read_parquet(io.BytesIO(body)).to_csv(index=False).encode(), "csv"
        store.put(f"raw/visits.{suffix}" if number is None else f"raw/visits/{number}.{suffix}", body)
    assert kept(store, word, SPRING, SPRING + DAY).manifest["rows"] == 24
    if not kind.endswith("csv"):
        assert kept(store, word, SPRING, SPRING + DAY).digest == whole.digest


def test_without_a_source_every_place_it_may_lie_is_named() -> None:
    with pytest.raises(NotFound, match=r"raw/visits\.parquet: no such object, nor raw/visits\.csv, nor parts"):
        taken(MemoryStore(), SPRING, SPRING + DAY)
