"""A snapshot's bytes, its manifest and its profile."""

import hashlib
import io
import json
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from assets.snapshot.manifest import manifest, snapshot_parquet
from assets.snapshot.profile import merged, profile

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)


def rows(count: int = 4) -> pd.DataFrame:
    times = pd.date_range(START, periods=count, freq="h").astype("datetime64[us, UTC]")
    return pd.DataFrame(
        {
            "entity": [f"e{number}" for number in range(count)],
            "event_time": times,
            "carrier": pd.Series(["AA", None, "UA", "UA"][:count], dtype=object),
            "temp": [1.5, np.nan, 2.0, 3.0][:count],
            "hour": np.arange(count),
            "late": [0.0, 1.0, 1.0, np.nan][:count],
            "label_known_at": [*times[:3], pd.NaT][:count],
        }
    )


def test_the_same_rows_are_the_same_bytes_whatever_their_index() -> None:
    body = snapshot_parquet(rows())
    moved = rows().set_index(pd.Index([9, 8, 7, 6]))
    assert snapshot_parquet(rows()) == body == snapshot_parquet(moved)
    assert snapshot_parquet(rows().assign(hour=7)) != body


def test_the_bytes_give_the_rows_back() -> None:
    back = pq.read_table(io.BytesIO(snapshot_parquet(rows()))).to_pandas()
    pd.testing.assert_frame_equal(back, rows())


def test_no_rows_and_columns_without_a_value_are_a_snapshot_too() -> None:
    empty = snapshot_parquet(rows(0))
    assert pq.read_table(io.BytesIO(empty)).num_rows == 0
    nothing = rows().assign(carrier=None)
    assert pq.read_table(io.BytesIO(snapshot_parquet(nothing)))["carrier"].null_count == 4


def test_the_manifest_says_what_the_bytes_hold() -> None:
    body = snapshot_parquet(rows())
    about = manifest(rows(), body, "flights", "1", START, END, END, "late")
    assert about["digest"] == hashlib.sha256(body).hexdigest()
    assert about["rows"] == 4
    assert about["null_rates"]["temp"] == about["null_rates"]["carrier"] == 0.25
    assert about["labels"] == {"0": 1, "1": 2}
    assert about["unlabelled"] == 1
    assert (about["feature_set"], about["version"]) == ("flights", "1")
    assert json.loads(json.dumps(about, allow_nan=False)) == about


def test_the_manifest_of_no_rows_is_plain_json() -> None:
    about = manifest(rows(0), snapshot_parquet(rows(0)), "flights", "1", START, END, END, "late")
    assert about["labels"] == {}
    json.dumps(about, allow_nan=False)


def columns(body: bytes) -> dict[str, tuple[int, int]]:
    """Rows and missing values whylogs counted, by column."""
    from whylogs.core.view.dataset_profile_view import DatasetProfileView

    counted = DatasetProfileView.deserialize(body).to_pandas()
    found = counted[["counts/n", "counts/null"]].astype(int).itertuples()
    return {str(row[0]): (int(row[1]), int(row[2])) for row in found}


def test_a_profile_counts_every_row_and_every_missing_value() -> None:
    assert columns(profile(rows()[["carrier", "temp", "hour"]])) == {"carrier": (4, 1), "temp": (4, 1), "hour": (4, 0)}


@pytest.mark.parametrize(
    "frame",
    [
        rows().iloc[:0],
        rows().iloc[:1],
        rows().assign(carrier=None, temp=np.nan),
        rows().assign(carrier="AA", temp=1.0, hour=3),
    ],
    ids=["no rows", "one row", "nothing but missing", "single values"],
)
def test_odd_profiles_merge_into_a_longer_span(frame: pd.DataFrame) -> None:
    names = ["carrier", "temp", "hour"]
    both = columns(merged([profile(frame[names]), profile(rows()[names])]))
    assert {name: count for name, (count, _) in both.items()} == dict.fromkeys(names, len(frame) + 4)
    assert both == columns(merged([profile(rows()[names]), profile(frame[names])]))


def test_no_profiles_do_not_merge() -> None:
    with pytest.raises(ValueError, match="at least one"):
        merged([])
