"""A snapshot's bytes, its manifest and its profile."""

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.snapshot import manifest as format_of_snapshots
from assets.snapshot.manifest import Contents, manifest, write_snapshot
from assets.snapshot.profile import MOST_ROWS, merged, profile, profile_file

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


SCHEMA = pa.schema(
    [
        ("entity", pa.string()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("carrier", pa.string()),
        ("temp", pa.float64()),
        ("hour", pa.int64()),
        ("late", pa.float64()),
        ("label_known_at", pa.timestamp("us", "UTC")),
    ]
)


def written(file: Path, frame: pd.DataFrame, cuts: Sequence[int] = ()) -> Contents:
    """The frame as a snapshot, handed over in batches that end at `cuts`."""
    frame = frame.astype({"label_known_at": "datetime64[us, UTC]"})
    table = pa.Table.from_pandas(frame, SCHEMA, preserve_index=False)
    ends = [0, *sorted(cuts), table.num_rows]
    batches = [b for at, to in pairwise(ends) for b in table.slice(at, to - at).to_batches()]
    return write_snapshot(batches, SCHEMA, "late", file)


def about(contents: Contents) -> dict[str, object]:
    return manifest(contents, "flights", "1", START, END, END, "late")


def test_other_rows_are_other_bytes(tmp_path: Path) -> None:
    assert written(tmp_path / "a", rows()).digest != written(tmp_path / "b", rows().assign(hour=7)).digest


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 25), max_size=6), group=st.integers(1, 30))
def test_the_same_rows_are_the_same_bytes_however_they_arrive(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], group: int
) -> None:
    folder = tmp_path_factory.mktemp("snapshot")
    frame = pd.concat([rows(4)] * 6 + [rows(1)], ignore_index=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format_of_snapshots, "ROW_GROUP_ROWS", group)
        whole, cut = written(folder / "whole", frame), written(folder / "cut", frame, cuts)
    assert (folder / "whole").read_bytes() == (folder / "cut").read_bytes()
    assert whole == cut
    assert pq.ParquetFile(folder / "cut").num_row_groups == -(-25 // group)


def test_the_file_gives_the_rows_back(tmp_path: Path) -> None:
    written(tmp_path / "a", rows())
    micro = rows().astype({"label_known_at": "datetime64[us, UTC]"})
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a"), micro)


def test_no_rows_and_columns_without_a_value_are_a_snapshot_too(tmp_path: Path) -> None:
    assert written(tmp_path / "empty", rows(0)).rows == 0
    assert pq.read_schema(tmp_path / "empty").equals(SCHEMA)
    nothing = written(tmp_path / "nothing", rows().assign(carrier=None, temp=np.nan))
    assert (nothing.nulls["carrier"], nothing.nulls["temp"]) == (4, 4)
    assert pq.read_schema(tmp_path / "nothing").equals(SCHEMA)


def test_the_manifest_says_what_the_file_holds(tmp_path: Path) -> None:
    found = about(written(tmp_path / "a", rows(), cuts=[1, 3]))
    assert found["digest"] == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()
    assert found["bytes"] == (tmp_path / "a").stat().st_size
    assert found["rows"] == 4
    assert found["null_rates"] == {name: 0.25 if name in ("carrier", "temp", "late", "label_known_at") else 0.0
                                   for name in SCHEMA.names}  # fmt: skip
    assert found["labels"] == {"0": 1, "1": 2}
    assert found["unlabelled"] == 1
    assert (found["feature_set"], found["version"]) == ("flights", "1")
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_infinite_values_are_kept_and_counted(tmp_path: Path) -> None:
    found = about(written(tmp_path / "a", rows().assign(temp=[np.inf, -np.inf, 1.0, np.nan])))
    assert found["infinite"] == {"temp": 2}
    assert np.isinf(pd.read_parquet(tmp_path / "a")["temp"]).sum() == 2


def test_the_manifest_of_no_rows_is_plain_json(tmp_path: Path) -> None:
    found = about(written(tmp_path / "a", rows(0)))
    assert found["labels"] == {}
    json.dumps(found, allow_nan=False)


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


def test_a_file_is_profiled_as_its_rows_are(tmp_path: Path) -> None:
    written(tmp_path / "a", rows())
    names = ["carrier", "temp", "hour"]
    assert columns(profile_file(tmp_path / "a", names)) == columns(profile(rows()[names]))


def test_of_a_long_snapshot_every_nth_row_is_profiled(tmp_path: Path) -> None:
    count = 3 * MOST_ROWS - 1
    pq.write_table(pa.table({"x": np.arange(count)}), tmp_path / "a")
    from whylogs.core.view.dataset_profile_view import DatasetProfileView

    seen = DatasetProfileView.deserialize(profile_file(tmp_path / "a", ["x"])).to_pandas().loc["x"]
    assert seen["counts/n"] == MOST_ROWS
    assert (seen["types/integral"], seen["distribution/min"], seen["distribution/max"]) == (MOST_ROWS, 0, count - 2)


VALUES = st.lists(st.one_of(st.none(), st.integers(-50, 50).map(float)), max_size=40)


@settings(max_examples=25, deadline=None)
@given(parts=st.lists(VALUES, min_size=1, max_size=4))
def test_the_merged_profiles_of_partitions_are_the_profile_of_their_union(parts: list[list[float | None]]) -> None:
    frames = [pd.DataFrame({"x": pd.Series(part, dtype=float), "w": pd.Series(part, dtype=object)}) for part in parts]
    words = [frame.assign(w=frame["w"].map(lambda value: None if value is None else f"w{value}")) for frame in frames]
    union = pd.concat(words, ignore_index=True)
    found, wanted = (_summary(body) for body in (merged([profile(frame) for frame in words]), profile(union)))
    exact = ["counts/n", "counts/null", "distribution/min", "distribution/max", "distribution/n"]
    if union.empty:
        assert found.empty
        assert wanted.empty
        return
    pd.testing.assert_frame_equal(found[exact], wanted[exact], check_dtype=False)
    known = np.sort(union["x"].dropna())
    for name, share in (("distribution/q_25", 0.25), ("distribution/median", 0.5), ("distribution/q_75", 0.75)):
        if len(known):  # below 128 values a sketch holds them all
            value = float(str(found.loc["x", name]))
            assert (known < value).sum() - 1 <= share * len(known) <= (known <= value).sum() + 1
    assert found.loc["w", "cardinality/est"] == pytest.approx(union["w"].nunique(), abs=0.5)


def _summary(body: bytes) -> pd.DataFrame:
    from whylogs.core.view.dataset_profile_view import DatasetProfileView

    summary: pd.DataFrame = DatasetProfileView.deserialize(body).to_pandas()
    return summary.sort_index()


def test_the_quantiles_of_many_merged_profiles_lie_within_the_sketch_error() -> None:
    rng = np.random.default_rng(2)
    parts = [pd.DataFrame({"x": rng.normal(number / 4, 1, 5_000)}) for number in range(8)]
    known = np.sort(pd.concat(parts)["x"])
    found = _summary(merged([profile(part) for part in parts])).loc["x"]
    for name, share in (("q_05", 0.05), ("q_25", 0.25), ("median", 0.5), ("q_95", 0.95)):
        rank = np.searchsorted(known, found[f"distribution/{name}"]) / len(known)
        assert rank == pytest.approx(share, abs=2 * 0.01329)  # KLL, k = 200: its rank error, and once more for merging
