from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.observer.rows import Access, Answer
from pipelines.observer.tables import access_tables, answers_tables
from resources.errors import DataError, TrafficError
from resources.inference_protocol import Values
from resources.segments import microseconds, segment
from resources.traffic import Traffic
from tests.fakes import MemoryStore

NOON = datetime(2013, 2, 1, 12, tzinfo=UTC)
SEEN = datetime(2026, 1, 1, tzinfo=UTC)


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def access(request: str, hours: float, seen_s: float = 0.0, pool: str = "blue") -> Access:
    seen = microseconds(SEEN + timedelta(seconds=seen_s))
    return Access(request, "m", microseconds(at(hours)), seen, "grpc", pool, 200, 0, True, 1.5, 1, "")


def answer(request: str, hours: float, key: str, value: float = 0.25, seen_s: float = 0.0) -> Answer:
    inputs: dict[str, Values] = {
        "carrier": ["UA"],
        "temp": np.array([1.5], np.float32),
        "hour": np.array([7], np.int64),
    }
    event, seen = microseconds(at(hours)), microseconds(SEEN + timedelta(seconds=seen_s))
    return Answer("m", request, event, seen, "3", (key,), np.array([value]), inputs)


def written(*batches: list[Access] | list[Answer]) -> MemoryStore:
    store = MemoryStore()
    for batch in batches:
        kind = "access" if isinstance(batch[0], Access) else "answers"
        tables = access_tables(batch) if kind == "access" else answers_tables(batch)  # type: ignore[arg-type]
        for model, table in tables:
            store.put(*segment(model, kind, table))
    return store


def labels(*rows: tuple[str, float, datetime]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["key", "label", "known_at"])


def test_a_window_holds_its_start_and_not_its_end() -> None:
    traffic = Traffic(written([access(f"r{h}", h) for h in range(5)]))
    assert list(traffic.access("m", at(1), at(3))["request_id"]) == ["r1", "r2"]


def test_segments_outside_the_window_are_not_fetched() -> None:
    store = written([access("r0", 0)], [access("r10", 10)], [access("r20", 20)])
    Traffic(store).access("m", at(9), at(11))
    assert len(store.gets) == 1


def test_a_segment_is_fetched_once_in_a_process() -> None:
    store = written([access("r0", 0)])
    for _ in range(3):
        assert len(Traffic(store).access("m", at(-1), at(1))) == 1
    assert len(store.gets) == 1


def test_a_request_that_was_written_twice_counts_once() -> None:
    store = written([access("r0", 0), access("r1", 0)], [access("r0", 0)], [answer("r0", 0, "k")])
    store.put(*segment("m", "answers", answers_tables([answer("r0", 0, "k"), answer("r1", 0, "l")])[0][1]))
    traffic = Traffic(store)
    assert sorted(traffic.access("m", at(-1), at(1))["request_id"]) == ["r0", "r1"]
    assert sorted(traffic.answers("m", at(-1), at(1))["key"]) == ["k", "l"]


def test_what_was_seen_since_is_by_the_wall_clock_whatever_the_event_time() -> None:
    store = written([access("old", 0, 0)], [access("a", 5, 9.5), access("b", -500, 10)], [access("c", 0, 20)])
    frame = Traffic(store).access_seen("m", SEEN + timedelta(seconds=10))
    assert sorted(frame["request_id"]) == ["b", "c"]
    assert len(store.gets) == 2


def test_answers_seen_since_are_by_the_wall_clock_too() -> None:
    store = written([answer("a", 0, "old")], [answer("b", -500, "new", seen_s=10), answer("c", 0, "newer", seen_s=11)])
    assert sorted(Traffic(store).answers_seen("m", SEEN + timedelta(seconds=10))["key"]) == ["new", "newer"]
    assert len(store.gets) == 1


def test_an_empty_log_has_the_columns_and_types_of_a_full_one() -> None:
    full = Traffic(written([access("r0", 0)], [answer("r0", 0, "k")]))
    empty = Traffic(MemoryStore())
    for name in ("access", "answers"):
        nothing, something = (getattr(t, name)("m", at(-1), at(1)) for t in (empty, full))
        assert len(nothing) == 0
        common = list(nothing.columns)
        assert list(something.columns)[: len(common)] == common
        assert list(nothing.dtypes) == list(something[common].dtypes)
        assert str(nothing["event_time"].dtype) == "datetime64[us, UTC]"
    seen = empty.access_seen("m", SEEN)
    assert list(seen.columns) == list(full.access("m", at(-1), at(1)).columns)
    assert list(empty.labels("m", SEEN).columns) == ["key", "label", "known_at"]
    assert len(empty.labelled("m", at(-1), at(1), SEEN)) == 0


def test_features_keep_their_types() -> None:
    frame = Traffic(written([answer("r0", 0, "k")])).answers("m", at(-1), at(1))
    (row,) = frame[["carrier", "temp", "hour", "answer", "version", "row"]].to_numpy().tolist()
    assert row == ["UA", 1.5, 7, 0.25, "3", 0]
    assert [str(frame[name].dtype) for name in ("temp", "hour")] == ["float32", "int64"]


def test_segments_with_other_inputs_are_read_together() -> None:
    other = Answer("m", "r1", microseconds(at(0)), microseconds(SEEN), "4", ("l",), np.array([1.0]), {"wind": ["N"]})
    frame = Traffic(written([answer("r0", 0, "k"), other])).answers("m", at(-1), at(1))
    assert frame.set_index("key")["wind"].to_dict() == {"k": None, "l": "N"}


def test_an_input_that_changed_its_type_is_named() -> None:
    other = Answer("m", "r1", microseconds(at(0)), microseconds(SEEN), "4", ("l",), np.array([1.0]), {"temp": ["warm"]})
    with pytest.raises(TrafficError, match="temp"):
        Traffic(written([answer("r0", 0, "k")], [other])).answers("m", at(-1), at(1))


def test_the_last_correction_known_at_an_instant_wins() -> None:
    traffic = Traffic(MemoryStore())
    traffic.put_labels("m", labels(("k", 0.0, at(1)), ("l", 1.0, at(2))))
    traffic.put_labels("m", labels(("k", 1.0, at(48))))
    traffic.put_labels("m", labels(("k", 0.0, at(1))))
    assert traffic.labels("m", at(0)).empty
    assert dict(traffic.labels("m", at(47))[["key", "label"]].to_numpy()) == {"k": 0.0, "l": 1.0}
    assert dict(traffic.labels("m", at(48))[["key", "label"]].to_numpy()) == {"k": 1.0, "l": 1.0}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from((0.0, 1.0)), st.integers(0, 100)), max_size=12),
    st.integers(0, 100),
)
@settings(deadline=None)
def test_no_label_is_from_the_future_and_none_that_was_known_is_missing(
    rows: list[tuple[str, float, int]], hours: int
) -> None:
    traffic = Traffic(MemoryStore())
    for key, label, known in rows:
        traffic.put_labels("m", labels((key, label, at(known))))
    frame = traffic.labels("m", at(hours))
    assert (frame["known_at"] <= at(hours)).all()
    assert sorted(frame["key"]) == sorted({key for key, _, known in rows if known <= hours})


def test_labels_far_in_the_future_are_not_fetched() -> None:
    store = MemoryStore()
    Traffic(store).put_labels("m", labels(("k", 0.0, at(1)), ("l", 0.0, at(500))))
    Traffic(store).labels("m", at(2))
    assert len(store.gets) == 1


def test_answers_join_the_labels_known_at_an_instant() -> None:
    traffic = Traffic(written([answer("r0", 0, "k", 0.9), answer("r1", 0, "l", 0.1), answer("r2", 0, "m", 0.5)]))
    traffic.put_labels("m", labels(("k", 1.0, at(2)), ("l", 0.0, at(9)), ("elsewhere", 1.0, at(1))))
    frame = traffic.labelled("m", at(-1), at(1), at(3))
    assert frame[["key", "answer", "label"]].to_numpy().tolist() == [["k", 0.9, 1.0]]
    assert frame["known_at"].tolist() == [at(2)]


def test_outcomes_hold_every_answer_with_what_became_known_of_it() -> None:
    traffic = Traffic(written([answer(f"r{i}", 0, key) for i, key in enumerate("klmn")]))
    traffic.put_labels("m", labels(("k", 1.0, at(2)), ("l", 0.0, at(2)), ("elsewhere", 1.0, at(1))))
    traffic.put_labels("m", labels(("k", 0.0, at(3)), ("l", 0.0, at(4)), ("m", 1.0, at(9))))
    frame = traffic.outcomes("m", at(-1), at(1), at(5)).set_index("key")
    assert frame["label"].fillna(-1).to_dict() == {"k": 0.0, "l": 0.0, "m": -1, "n": -1}
    assert frame["reports"].to_dict() == {"k": 2, "l": 2, "m": 0, "n": 0}
    assert frame["corrected"].to_dict() == {"k": True, "l": False, "m": False, "n": False}
    assert frame["known_at"].isna().to_dict() == {"k": False, "l": False, "m": True, "n": True}


def test_outcomes_of_an_empty_log_have_their_columns() -> None:
    assert {"label", "known_at", "reports", "corrected"} <= set(
        Traffic(MemoryStore()).outcomes("m", at(0), at(1), at(2))
    )


def test_failures_are_the_requests_that_got_no_answer() -> None:
    store = written([access("r0", 0), access("r1", 0)._replace(code=503, ok=False), access("r2", 5)])
    assert list(Traffic(store).failures("m", at(-1), at(1))["request_id"]) == ["r1"]
    assert Traffic(MemoryStore()).failures("m", at(-1), at(1)).empty


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (pd.DataFrame({"key": ["k"], "label": [1.0]}), "'known_at' is missing"),
        (labels(("k", float("nan"), at(0))), "finite"),
        (labels(("k", 1.0, datetime(2013, 1, 1))), "time zone"),
        (pd.DataFrame({"key": [None], "label": [1.0], "known_at": [at(0)]}), "needs a key"),
    ],
)
def test_wrong_labels_are_refused_and_nothing_is_written(frame: pd.DataFrame, reason: str) -> None:
    store = MemoryStore()
    with pytest.raises(DataError, match=reason):
        Traffic(store).put_labels("m", frame)
    assert store.objects == {}


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(TrafficError, match="start"):
        Traffic(MemoryStore()).access("m", datetime(2013, 1, 1), at(1))


def test_an_observer_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(TrafficError, match="observer_url"):
        Traffic(MemoryStore()).flush()
    with pytest.raises(TrafficError, match="is it up"):
        Traffic(MemoryStore(), "http://127.0.0.1:9").completeness()


def test_first_labels_hold_what_was_said_first_of_each_key_since_an_instant() -> None:
    traffic = Traffic(MemoryStore())
    traffic.put_labels("m", labels(("a", 1.0, at(1)), ("old", 1.0, at(-30)), ("b", 0.0, at(2))))
    traffic.put_labels("m", labels(("a", 0.0, at(3)), ("old", 0.0, at(4)), ("late", 1.0, at(9))))
    found = traffic.first_labels("m", at(1), at(5)).set_index("key")["label"].to_dict()
    assert found == {"a": 1.0, "b": 0.0, "old": 0.0}
    assert traffic.first_labels("m", at(20), at(30)).empty


def test_labels_of_long_ago_are_not_fetched_for_the_first_since() -> None:
    store = MemoryStore()
    Traffic(store).put_labels("m", labels(("k", 1.0, at(-100))))
    Traffic(store).put_labels("m", labels(("j", 1.0, at(1))))
    assert list(Traffic(store).first_labels("m", at(0), at(2))["key"]) == ["j"]
    assert len(store.gets) == 1
