"""Feature sets whose rows come from a Python function: the same schema, the same promises about time."""

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.errors import DataError, SpecError
from resources.features import Column, FeatureSet, callables, read
from tests.fakes import MemoryStore

ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
FORMS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "frame": lambda frame: frame,
    "table": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "reader": lambda frame: pa.Table.from_pandas(frame, preserve_index=False).to_reader(2),
    "batches": lambda frame: iter(pa.Table.from_pandas(frame, preserve_index=False).to_batches(2)),
}


def hour(number: int) -> datetime:
    return ORIGIN + timedelta(hours=number)


def visits(file: Path, python: str = "rows:visits", **changes: Any) -> FeatureSet:
    given_fields: dict[str, Any] = {
        **{"name": "visits", "version": "1", "valid_from": ORIGIN, "entity": "id", "event_time": "at"},
        **{"known_at": "known", "label": "bought", "label_known_at": "bought_known"},
        **{"columns": (Column("value", "float"),), "python": python, "file": str(file)},
    }
    return FeatureSet(**{**given_fields, **changes})


def rows(*of: tuple[str, int, int, float]) -> pd.DataFrame:
    """(id, hour, known, value): bought is known two hours after the row."""
    names = ["id", "at", "known", "value"]
    frame = pd.DataFrame(list(of), columns=names).astype({"id": object, "value": float})
    for name in ("at", "known"):
        frame[name] = pd.to_datetime([hour(int(number)) for number in frame[name]], utc=True)
    return frame.assign(bought=1.0, bought_known=frame["known"] + timedelta(hours=2))


def stored(frame: pd.DataFrame) -> MemoryStore:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink)
    store = MemoryStore()
    store.put("raw/visits.parquet", sink.getvalue())
    return store


def giving(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]) -> None:
    def visits(start: datetime, end: datetime, as_of: datetime) -> Any:
        return answer(start, end, as_of)

    monkeypatch.setattr(callables, "function_of", lambda _: visits)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_known_later_never_enters_even_if_the_function_gives_it(
    form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    everything = rows(("a", 1, 1, 5.0), ("b", 2, 9, 6.0), ("a", 1, 8, 7.0), ("c", 30, 2, 8.0))
    giving(monkeypatch, lambda *_: FORMS[form](everything))
    frame = read(visits(tmp_path / "features.yaml"), MemoryStore(), hour(0), hour(5), as_of=hour(4))
    assert list(zip(frame["entity"], frame["value"], frame["bought"], strict=True)) == [("a", 5.0, 1.0)]
    later = read(visits(tmp_path / "features.yaml"), MemoryStore(), hour(0), hour(5), as_of=hour(9))
    assert list(zip(later["entity"], later["value"], later["bought"].isna(), strict=True)) == [
        ("a", 7.0, True),
        ("b", 6.0, True),
    ]


@settings(max_examples=30, deadline=None)
@given(
    of=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 9), st.floats(-9, 9)),
        max_size=8,
        unique_by=lambda row: (row[0], row[2]),
    ),
    as_of=st.integers(0, 9),
)
def test_a_function_and_sql_over_the_same_rows_give_the_same(of: list[tuple[str, int, int, float]], as_of: int) -> None:
    frame = rows(*of)
    with pytest.MonkeyPatch.context() as patch:
        giving(patch, lambda *_: frame)
        ours = read(visits(Path("features.yaml")), MemoryStore(), hour(0), hour(9), hour(as_of))
    sql = visits(Path("features.yaml"), "", sql="SELECT * FROM visits", sources=("visits",))
    pd.testing.assert_frame_equal(ours, read(sql, stored(frame), hour(0), hour(9), hour(as_of)))


@pytest.mark.parametrize("form", ["frame", "table"])
def test_no_rows_are_an_answer_too(form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    giving(monkeypatch, lambda *_: FORMS[form](rows()))
    frame = read(visits(tmp_path / "features.yaml"), MemoryStore(), hour(0), hour(5), hour(4))
    assert frame.empty
    assert list(frame) == ["entity", "event_time", "value", "bought", "label_known_at"]


def test_the_function_is_asked_for_the_span_in_utc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def noting(*span: datetime) -> pd.DataFrame:
        asked.append(span)
        return rows(("a", 1, 1, 5.0))

    giving(monkeypatch, noting)
    berlin = timezone(timedelta(hours=1))
    read(visits(tmp_path / "f.yaml"), MemoryStore(), hour(0).astimezone(berlin), hour(5), hour(4))
    assert asked == [(hour(0), hour(5), hour(4))]
    assert all(instant.tzinfo is UTC for instant in asked[0])


FILE = """
import pandas as pd

def visits(start, end, as_of):
    return pd.DataFrame({"id": ["a"], "at": [start], "known": [start], "value": [2], "bought": [0],
                         "bought_known": [end]})

def short(start, end):
    return None

number = 7
"""


def test_a_module_beside_the_feature_set_is_used(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(FILE)
    frame = read(visits(tmp_path / "features.yaml"), MemoryStore(), hour(0), hour(5), as_of=hour(5))
    assert frame["value"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("python", "remedy"),
    [
        ("nowhere.at.all:visits", "does not import"),
        ("rows:absent", "has no function absent"),
        ("rows:number", "has no function number"),
        ("rows:short", "it is called as short"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_by_name(tmp_path: Path, python: str, remedy: str) -> None:
    (tmp_path / "rows.py").write_text(FILE)
    with pytest.raises(SpecError, match=remedy) as raised:
        read(visits(tmp_path / "features.yaml", python), MemoryStore(), hour(0), hour(5), hour(5))
    assert raised.value.field == "python"


def broken(*_: Any) -> Any:
    raise KeyError("warehouse")


def breaking_off(*_: Any) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_pandas(rows(("a", 1, 1, 5.0)), preserve_index=False).to_batches()
    raise ConnectionError("the warehouse went away")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (broken, DataError, "raised KeyError: 'warehouse'"),
        (breaking_off, DataError, "raised ConnectionError: the warehouse went away"),
        (lambda *_: [1, 2], SpecError, "gives no table"),
        (lambda *_: rows(("a", 1, 1, 5.0)).drop(columns="value"), SpecError, "the function does not give it"),
        (lambda *_: rows(("a", 1, 1, 5.0)).assign(value="many"), DataError, "Could not convert"),
        (lambda *_: rows(("a", 1, 1, 5.0), ("a", 2, 1, 6.0)), DataError, "entity a has 2 rows"),
        (lambda *_: rows(("a", 1, 1, 5.0)).assign(id=None), DataError, "is null: filter such rows in the function"),
        (lambda *_: iter(()), DataError, "yielded no batch"),
    ],
)
def test_what_a_function_gives_is_held_to_the_schema(
    answer: Callable[..., Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    giving(monkeypatch, answer)
    with pytest.raises(error, match=message):
        read(visits(tmp_path / "features.yaml"), MemoryStore(), hour(0), hour(5), hour(5))
