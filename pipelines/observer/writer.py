"""Rows held until their segments are in the store. A dead store costs memory up to a bound, then counted rows."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.observer.rows import Access, Answer
from pipelines.observer.tables import access_tables, answers_tables
from resources import segments
from resources.errors import StoreError
from resources.segments import ACCESS, ANSWERS
from resources.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_PUTS_AT_ONCE = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


@dataclass
class _Held:
    """Rows of one kind not yet in a segment."""

    tables: Callable[[Any], list[tuple[str, "pa.Table"]]]
    size: Callable[[Any], int]
    items: list[Any] = field(default_factory=list)
    rows: int = 0
    due_at: float = 0.0


class _Pending(NamedTuple):
    """A segment that is not yet in the store."""

    key: str
    body: bytes
    kind: str
    rows: int


class Writer:
    """flush_s: how long access rows are held; answers twice as long, or until `answer_rows` of them are there."""

    def __init__(self, store: Store, flush_s: float = 1.0, answer_rows: int = 5_000, limit_rows: int = 200_000) -> None:
        self.store, self.flush_s, self.answer_rows, self.limit_rows = store, flush_s, answer_rows, limit_rows
        self.held = {ACCESS: _Held(access_tables, lambda row: 1), ANSWERS: _Held(answers_tables, lambda a: len(a.keys))}
        self.pending: list[_Pending] = []
        self.written = {ACCESS: 0, ANSWERS: 0}
        self.dropped = {ACCESS: 0, ANSWERS: 0}
        self.failures, self.last_error = 0, ""
        self._pause_s, self._again_at = 0.0, 0.0
        self._rows, self._writing = threading.Lock(), threading.Lock()

    def prepare(self) -> None:
        """Import what tables need, before rows come."""
        segments.to_bytes(segments.access_schema().empty_table())

    def add_access(self, rows: Sequence[Access]) -> None:
        self._add(ACCESS, rows)

    def add_answers(self, answers: Sequence[Answer]) -> None:
        self._add(ANSWERS, answers)

    def _add(self, kind: str, items: Sequence[Any]) -> None:
        held = self.held[kind]
        with self._rows:
            for item in items:
                size = held.size(item)
                if held.rows + size > self.limit_rows:
                    self.dropped[kind] += size
                    continue
                held.items.append(item)
                held.rows += size

    @property
    def held_rows(self) -> dict[str, int]:
        return {kind: held.rows for kind, held in self.held.items()}

    def write(self, now: float, force: bool = False) -> None:
        """Write what is due by `now` (monotonic seconds), with force all of it and at once.

        A store that fails is left alone for a growing while; its rows stay held, and no error leaves here but
        with force: `StoreError`.
        """
        with self._writing:
            if not force and now < self._again_at:
                return
            try:
                self._put_pending()
                for kind in self.held:
                    if force or self._is_due(kind, now):
                        self._build(kind, now)
                        self._put_pending()
            except StoreError as error:
                self.failures, self.last_error = self.failures + 1, str(error)
                self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                self._again_at = now + self._pause_s
                if force:
                    raise
            else:
                self._pause_s = 0.0

    def _is_due(self, kind: str, now: float) -> bool:
        held = self.held[kind]
        return now >= held.due_at or (kind == ANSWERS and held.rows >= self.answer_rows)

    def _build(self, kind: str, now: float) -> None:
        held = self.held[kind]
        with self._rows:
            items, held.items, held.rows = held.items, [], 0
        held.due_at = now + (self.flush_s if kind == ACCESS else 2 * self.flush_s)
        for model, table in held.tables(items):
            self.pending.append(_Pending(*segments.segment(model, kind, table), kind, table.num_rows))

    def _put_pending(self) -> None:
        if not self.pending:
            return
        failed: list[_Pending] = []
        errors: list[StoreError] = []

        def put(segment: _Pending) -> None:
            try:
                self.store.put(segment.key, segment.body)
            except StoreError as error:
                failed.append(segment)
                errors.append(error)

        with ThreadPoolExecutor(min(_PUTS_AT_ONCE, len(self.pending))) as puts:
            list(puts.map(put, self.pending))
        for segment in self.pending:
            if segment not in failed:
                self.written[segment.kind] += segment.rows
        self.pending = failed
        if errors:
            raise errors[0]
