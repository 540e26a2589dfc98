"""The inference log as rooms read it: what clients asked, what serving answered, and labels once they are known."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from resources import segments
from resources.errors import DataError, TrafficError
from resources.segments import ACCESS, ANSWERS, SegmentKey
from resources.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_READERS = 8
_CACHE_BYTES = 256 * 1024 * 1024
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Completeness:
    """How much of the traffic is in the log, by Envoy's own count of inference requests.

    Rows are counted in requests, a batch once. share_access = access rows of requests; share_answers = answers of the
    requests that were answered well. Without any request both are 0: silence is not consent.
    """

    requests: int
    access_rows: int
    answers_rows: int
    share_access: float
    share_answers: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """store: where the segments are. observer_url: the observer's HTTP address, for flush and completeness."""

    store: Store
    observer_url: str | None = None

    def access(self, model: str, start: datetime, end: datetime) -> "pd.DataFrame":
        """One row a request with event_time in [start, end), ordered by it; columns as `segments.access_schema`."""
        return self._log(model, ACCESS, start, end)

    def access_seen(self, model: str, since: datetime) -> "pd.DataFrame":
        """One row a request that was seen at or after `since`, whatever its event time. Reads new segments only."""
        _check_zone(since=since)
        keys = self.store.keys(segments.prefix(model, ACCESS), after=segments.since_key(model, ACCESS, since))
        frame = self._rows(keys, segments.access_schema())
        return _ordered(_filled(frame[frame["seen_at"] >= since]), ["request_id"])

    def answers_seen(self, model: str, since: datetime) -> "pd.DataFrame":
        """As `answers`, by when they were seen: at or after `since`, whatever their event time."""
        _check_zone(since=since)
        keys = self.store.keys(segments.prefix(model, ANSWERS), after=segments.since_key(model, ANSWERS, since))
        frame = self._rows(keys, segments.answers_schema())
        return _ordered(frame[frame["seen_at"] >= since], ["request_id", "row"])

    def answers(self, model: str, start: datetime, end: datetime) -> "pd.DataFrame":
        """One row for each row that was asked, with event_time in [start, end): features, answer, version, key."""
        return self._log(model, ANSWERS, start, end)

    def labels(self, model: str, as_of: datetime) -> "pd.DataFrame":
        """Columns key, label, known_at: what was known at `as_of`, one row a key, the last correction wins."""
        return self._told(model, as_of).drop_duplicates("key", keep="last").reset_index(drop=True)

    def first_labels(self, model: str, since: datetime, as_of: datetime) -> "pd.DataFrame":
        """Of what became known in [since, as_of]: the first label of each key, which no correction changes."""
        _check_zone(since=since)
        # An object is named by the last second in which any of its labels became known.
        told = self._told(model, as_of, after=f"{segments.labels_prefix(model)}{int(since.timestamp()):012d}")
        told = told[told["known_at"] >= since]
        return told.drop_duplicates("key", keep="first").reset_index(drop=True)

    def _told(self, model: str, as_of: datetime, after: str = "") -> "pd.DataFrame":
        """Every label as it came, those known at `as_of`, in that order."""
        _check_zone(as_of=as_of)
        # put_labels never spans more than a UTC day in one object: later ones hold nothing known by then.
        latest = as_of.timestamp() + _DAY_S
        keys = [k for k in self.store.keys(segments.labels_prefix(model), after=after) if _known_max(k) <= latest]
        frame = self._rows(keys, segments.labels_schema())
        return frame[frame["known_at"] <= as_of].sort_values("known_at", kind="stable")

    def put_labels(self, model: str, frame: "pd.DataFrame") -> None:
        """Add labels: columns key, label (a finite number) and known_at (with a time zone). Repeating is harmless."""
        import pyarrow as pa

        frame = _checked_labels(model, frame)
        for _, part in frame.groupby(frame["known_at"].dt.floor("D"), sort=True):
            table = pa.Table.from_pandas(part, schema=segments.labels_schema(), preserve_index=False)
            table = table.replace_schema_metadata()
            body = segments.to_bytes(table)
            known_max_s = -(-segments.microseconds(part["known_at"].max().to_pydatetime()) // 1_000_000)
            self.store.put(segments.labels_key(model, known_max_s, body), body)

    def labelled(self, model: str, start: datetime, end: datetime, as_of: datetime) -> "pd.DataFrame":
        """Answers of [start, end) whose label was known at `as_of`, with columns label and known_at."""
        return self.answers(model, start, end).merge(self.labels(model, as_of), on="key", how="inner")

    def outcomes(self, model: str, start: datetime, end: datetime, as_of: datetime) -> "pd.DataFrame":
        """Every answer of [start, end), labelled or not: label is NaN and known_at NaT where none was known at `as_of`.

        Columns beside those of `answers` and `labels`: reports, how many labels came for the key by then; corrected,
        whether they disagreed.
        """
        answers, told = self.answers(model, start, end), self._told(model, as_of)
        told = told[told["key"].isin(answers["key"])]
        reports = told["key"].value_counts()
        kinds = told.drop_duplicates(["key", "label"])["key"].value_counts()
        frame = answers.merge(told.drop_duplicates("key", keep="last"), on="key", how="left")
        found = frame["key"].map(reports).fillna(0).astype("int64")
        return frame.assign(reports=found, corrected=frame["key"].map(kinds).fillna(0) > 1)

    def failures(self, model: str, start: datetime, end: datetime) -> "pd.DataFrame":
        """Requests of [start, end) that got no answer: rows as `access` gives them."""
        access = self.access(model, start, end)
        return access[~access["ok"].astype(bool)].reset_index(drop=True)

    def flush(self) -> None:
        """Return when the observer has written all it saw. `TrafficError` when it does not answer or cannot write."""
        self._observer("/flush", post=True)

    def completeness(self, since: datetime | None = None) -> Completeness:
        """Of all traffic since the observer's first start, or since an instant, at most two days ago."""
        query = "" if since is None else f"?since={since.timestamp():.3f}"
        answer = self._observer(f"/completeness{query}")
        return Completeness(**answer)

    def _log(self, model: str, kind: str, start: datetime, end: datetime) -> "pd.DataFrame":
        _check_zone(start=start, end=end)
        keys = self.store.keys(segments.prefix(model, kind))
        keys = [key for key in keys if SegmentKey.parse(key).overlaps(start, end)]
        schema = segments.access_schema() if kind == ACCESS else segments.answers_schema()
        frame = self._rows(keys, schema)
        frame = frame[(frame["event_time"] >= start) & (frame["event_time"] < end)]
        return _ordered(_filled(frame), ["request_id"]) if kind == ACCESS else _ordered(frame, ["request_id", "row"])

    def _rows(self, keys: Sequence[str], schema: "pa.Schema") -> "pd.DataFrame":
        import pyarrow as pa

        with ThreadPoolExecutor(_READERS) as readers:
            tables = list(readers.map(lambda key: _table(self.store, key), keys))
        try:
            table = pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
        except pa.ArrowException as error:
            raise TrafficError(f"{keys[0]}...{keys[-1]}: a column changed its type: {error}") from error
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def _observer(self, path: str, post: bool = False) -> Any:
        if self.observer_url is None:
            raise TrafficError(f"no observer_url: {path} needs the observer's address")
        request = Request(self.observer_url.rstrip("/") + path, method="POST" if post else "GET")
        try:
            with urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            raise TrafficError(f"observer {self.observer_url}{path}: {error.read().decode()[:500]}") from error
        except (URLError, OSError, ValueError) as error:
            raise TrafficError(f"observer {self.observer_url}{path}: {error}: is it up?") from error


class _Cache:
    """Immutable segments by store and key, the least recently used dropped first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.held_bytes = limit_bytes, 0
        self.tables: OrderedDict[tuple[Store, str], pa.Table] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, at: tuple[Store, str]) -> "pa.Table | None":
        with self.lock:
            if at in self.tables:
                self.tables.move_to_end(at)
            return self.tables.get(at)

    def put(self, at: tuple[Store, str], table: "pa.Table") -> None:
        with self.lock:
            if at in self.tables:
                return
            self.tables[at] = table
            self.held_bytes += table.nbytes
            while self.held_bytes > self.limit_bytes:
                self.held_bytes -= self.tables.popitem(last=False)[1].nbytes


_cache = _Cache(_CACHE_BYTES)


def _table(store: Store, key: str) -> "pa.Table":
    table = _cache.get((store, key))
    if table is None:
        table = segments.from_bytes(store.get(key), key)
        _cache.put((store, key), table)
    return table


def _filled(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Segments of before say nothing of second tries, of users, of cells and of cheaper copies."""
    frame = frame.assign(degraded=frame["degraded"].eq(True))
    frame = frame.assign(unit=frame["unit"].fillna(""), cell=frame["cell"].fillna(""))
    return frame.assign(attempts=frame["attempts"].fillna(1).astype("int32"))


def _ordered(frame: "pd.DataFrame", identity: list[str]) -> "pd.DataFrame":
    # A segment that was written but not acknowledged may have been written twice.
    frame = frame.drop_duplicates(identity)
    return frame.sort_values(["event_time", *identity], kind="stable").reset_index(drop=True)


def _known_max(key: str) -> float:
    try:
        return int(key.rpartition("/")[2].partition("-")[0])
    except ValueError as error:
        raise DataError(f"{key}: not a labels object") from error


def _checked_labels(model: str, frame: "pd.DataFrame") -> "pd.DataFrame":
    import numpy as np
    import pandas as pd

    missing = [column for column in segments.LABEL_COLUMNS if column not in frame.columns]
    if missing:
        raise DataError(
            f"labels of {model}: column {missing[0]!r} is missing: give {', '.join(segments.LABEL_COLUMNS)}"
        )
    frame = frame.loc[:, list(segments.LABEL_COLUMNS)]
    known = frame["known_at"]
    if len(frame) and (not isinstance(known.dtype, pd.DatetimeTZDtype) or known.isna().any()):
        raise DataError(f"labels of {model}: known_at must be instants with a time zone, none missing")
    labels = pd.to_numeric(frame["label"], errors="coerce").astype("float64")
    if not np.isfinite(labels).all() or frame["key"].isna().any():
        raise DataError(f"labels of {model}: every row needs a key and a finite number as its label")
    known = pd.to_datetime(known, utc=True).dt.as_unit("us")
    return frame.assign(key=frame["key"].astype(str), label=labels, known_at=known)


def _check_zone(**instants: datetime) -> None:
    for name, instant in instants.items():
        if instant.tzinfo is None or instant.utcoffset() is None:
            raise TrafficError(f"{name} = {instant.isoformat()} has no time zone: give an instant in UTC")
