from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.errors import DataError
from resources.segments import SegmentKey, access_schema, from_bytes, segment, since_key, to_bytes

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANTS = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))


def table(times: list[tuple[datetime, datetime]]) -> pa.Table:
    rows = [("r", "m", event, seen, "http", "blue", 200, 0, True, 1.0, 1, "", "", False) for event, seen in times]
    columns = list(zip(*rows, strict=True))
    schema = access_schema()
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)


@given(st.lists(st.tuples(INSTANTS, INSTANTS), min_size=1, max_size=5), INSTANTS, INSTANTS)
def test_a_reader_never_skips_a_segment_that_holds_a_row_it_asked_for(
    times: list[tuple[datetime, datetime]], one: datetime, other: datetime
) -> None:
    key, body = segment("m", "access", table(times))
    start, end = sorted((one, other))
    if any(start <= event < end for event, _ in times):
        assert SegmentKey.parse(key).overlaps(start, end)
    if any(seen >= one for _, seen in times):
        assert key > since_key("m", "access", one)
    assert from_bytes(body, key).num_rows == len(times)


def test_a_segments_key_is_read_back() -> None:
    key = SegmentKey("flight_delay", "answers", 1_700_000_000_123_456, 1356998400, 1356998460, "0a1b2c3d")
    assert str(key) == "log/flight_delay/answers/1700000000123456-1356998400-1356998460-0a1b2c3d.parquet"
    assert SegmentKey.parse(str(key)) == key


@pytest.mark.parametrize("key", ["log/m/access/x.parquet", "log/m/1-2-3-a.parquet", "log/m/access/a-2-3-a.parquet"])
def test_another_key_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(DataError, match=key):
        SegmentKey.parse(key)


def test_the_same_table_is_the_same_object() -> None:
    rows = [(EPOCH + timedelta(days=1), EPOCH + timedelta(days=2))]
    assert segment("m", "access", table(rows)) == segment("m", "access", table(rows))
    assert to_bytes(table(rows)) == to_bytes(table(rows))


def test_what_is_not_parquet_is_refused_by_its_key() -> None:
    with pytest.raises(DataError, match="some/key"):
        from_bytes(b"no parquet", "some/key")
