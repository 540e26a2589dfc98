"""Reading as of an instant: nothing that became known later ever enters."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.errors import DataError, NotFound, SpecError
from resources.features import Column, FeatureSet, read
from tests.fakes import MemoryStore

ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
HOURS = st.integers(0, 20)
ROWS = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from("abcd"), "at": HOURS, "known": HOURS, "value": HOURS, "late": HOURS}),
    max_size=12,
    unique_by=lambda row: (row["id"], row["known"]),
)


def hour(number: int) -> datetime:
    return ORIGIN + timedelta(hours=number)


def visits(**changes: Any) -> FeatureSet:
    given_fields: dict[str, Any] = {
        "name": "visits",
        "version": "1",
        "valid_from": ORIGIN,
        "entity": "id",
        "event_time": "at",
        "known_at": "known",
        "label": "bought",
        "label_known_at": "bought_known",
        "columns": (Column("value", "float"),),
        "sources": ("visits",),
        "sql": "SELECT *, 1 AS bought FROM visits",
        "file": "features.yaml",
    }
    return FeatureSet(**{**given_fields, **changes})


def stored(rows: list[dict[str, Any]]) -> MemoryStore:
    """A store with the source `visits`; hours become instants, the label is known `late` hours after the row."""
    stamp = pa.timestamp("us", "UTC")
    table = pa.table(
        {
            "id": pa.array([row["id"] for row in rows], pa.string()),
            "at": pa.array([hour(row["at"]) for row in rows], stamp),
            "known": pa.array([hour(row["known"]) for row in rows], stamp),
            "bought_known": pa.array([hour(row["known"] + row["late"]) for row in rows], stamp),
            "value": pa.array([row["value"] for row in rows], pa.float64()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    store = MemoryStore()
    store.put("raw/visits.parquet", sink.getvalue())
    return store


def as_known(rows: list[dict[str, Any]], start: int, end: int, as_of: int) -> list[tuple[Any, ...]]:
    """The same by plain Python: the last version of each entity that was known, its label only if known too."""
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda item: item["known"]):
        if row["known"] <= as_of:
            last[row["id"]] = row
    chosen = [row for row in last.values() if start <= row["at"] < end]
    return [
        (row["id"], row["at"], row["value"], 1.0 if row["known"] + row["late"] <= as_of else None)
        for row in sorted(chosen, key=lambda item: (item["at"], item["id"]))
    ]


def plain(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    hours = (frame["event_time"] - pd.Timestamp(ORIGIN)) // pd.Timedelta(hours=1)
    labels = frame["bought"].astype(object).where(frame["bought"].notna(), None)
    return list(zip(frame["entity"], hours, frame["value"], labels, strict=True))


@settings(max_examples=60, deadline=None)
@given(ROWS, HOURS, HOURS, HOURS)
def test_rows_corrections_and_labels_are_those_known_then(
    rows: list[dict[str, Any]], start: int, end: int, as_of: int
) -> None:
    frame = read(visits(), stored(rows), hour(start), hour(end), hour(as_of))
    assert plain(frame) == as_known(rows, start, end, as_of)


@settings(max_examples=40, deadline=None)
@given(ROWS, ROWS, HOURS)
def test_what_becomes_known_later_changes_nothing(
    rows: list[dict[str, Any]], later: list[dict[str, Any]], as_of: int
) -> None:
    future = [{**row, "known": as_of + 1 + row["known"]} for row in later]
    before = read(visits(), stored(rows), hour(0), hour(21), hour(as_of))
    after = read(visits(), stored(rows + future), hour(0), hour(21), hour(as_of))
    pd.testing.assert_frame_equal(before, after)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.randoms(use_true_random=False), HOURS)
def test_the_order_of_the_source_changes_nothing(rows: list[dict[str, Any]], random: Any, as_of: int) -> None:
    shuffled = random.sample(rows, len(rows))
    first = read(visits(), stored(rows), hour(0), hour(21), hour(as_of))
    pd.testing.assert_frame_equal(first, read(visits(), stored(shuffled), hour(0), hour(21), hour(as_of)))


def test_a_label_that_is_out_hides_its_instant_too() -> None:
    store = stored([{"id": "a", "at": 1, "known": 1, "value": 5, "late": 10}])
    frame = read(visits(), store, hour(0), hour(5), hour(5))
    assert len(frame) == 1
    assert frame["bought"].isna().all()
    assert frame["label_known_at"].isna().all()


def test_columns_and_dtypes_do_not_depend_on_the_rows() -> None:
    one = stored([{"id": "a", "at": 1, "known": 1, "value": 5, "late": 1}])
    empty = read(visits(), one, hour(10), hour(11), hour(11))
    full = read(visits(), one, hour(0), hour(11), hour(11))
    assert list(full) == ["entity", "event_time", "value", "bought", "label_known_at"]
    assert full.dtypes.to_dict() == empty.dtypes.to_dict()
    assert str(full["event_time"].dtype) == "datetime64[us, UTC]"


ROW = {"id": "a", "at": 1, "known": 1, "value": 5, "late": 1}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"columns": (Column("weight", "float"),)}, "columns.0.name"),
        ({"label": "sold"}, "label"),
        ({"sql": "SELECT * FROM orders"}, "sql"),
        ({"sql": "SELEKT 1"}, "sql"),
        ({"sql": "SELECT *, 1 AS bought FROM read_csv('/etc/passwd')"}, "sql"),
        ({"columns": (Column("id", "float"),)}, "sql"),
    ],
)
def test_sql_that_does_not_give_the_set_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as raised:
        read(visits(**changes), stored([ROW]), hour(0), hour(5), hour(5))
    assert (raised.value.file, raised.value.field) == ("features.yaml", field)


def test_two_rows_of_an_entity_known_at_one_instant_are_refused() -> None:
    with pytest.raises(DataError, match="entity a has 2 rows"):
        read(visits(), stored([ROW, {**ROW, "value": 6}]), hour(0), hour(5), hour(5))


def test_a_null_among_integers_is_refused() -> None:
    whole = visits(columns=(Column("value", "int"),), sql="SELECT * REPLACE (NULL AS value), 1 AS bought FROM visits")
    with pytest.raises(DataError, match=r"columns\.value is int"):
        read(whole, stored([ROW]), hour(0), hour(5), hour(5))


def test_a_missing_source_is_named_with_the_set_that_wants_it() -> None:
    with pytest.raises(NotFound, match=r"raw/visits\.parquet.*visits reads it"):
        read(visits(), MemoryStore(), hour(0), hour(5), hour(5))


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(DataError, match="as_of"):
        read(visits(), stored([ROW]), hour(0), hour(5), datetime(2020, 1, 1))
