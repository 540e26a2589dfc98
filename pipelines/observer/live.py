"""Live drift: each version's answers against that version's own reference, a window each.

Rows wait until the writer's thread comes by, so decoding pays a list's append. It only asks: an alarm is an object
under `live/<model>/alarms/`, from which a sensor starts a check, and the check decides.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.observer.rows import Answer
from resources.errors import Conflict, NotFound, StoreError
from resources.store import Store

if TYPE_CHECKING:
    from assets.drift.live import LiveWindow, Reading, Watch

LIMIT_ROWS = 50_000
_LOOK_EVERY_S, _SAVE_EVERY_S, _ASK_AGAIN_S = 1.0, 30.0, 60.0

Version = tuple[str, str]


@dataclass(slots=True)
class _Watched:
    """One version of a model. etag: of the window saved last, None before the first."""

    window: "LiveWindow"
    watch: "Watch"
    etag: str | None
    reading: "Reading | None" = None
    changed: bool = False


@dataclass
class Live:
    """Models and versions are found in the traffic; one without a reference is asked for again after a minute."""

    store: Store
    dropped: int = 0
    watched: dict[Version, _Watched] = field(default_factory=dict)
    last_error: str = ""
    _held: list[Answer] = field(default_factory=list)
    _rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _again_at: dict[Version, float] = field(default_factory=dict)
    _looked_at: float = 0.0
    _saved_at: float = 0.0

    def prepare(self) -> None:
        """Import what references need before rows come: it takes half a second."""
        import assets.drift.live  # noqa: F401

    def add(self, answers: Sequence[Answer]) -> None:
        """Keep rows for the next look; beyond LIMIT_ROWS they are counted and left out."""
        with self._lock:
            for answer in answers:
                if self._rows >= LIMIT_ROWS:
                    self.dropped += len(answer.keys)
                    continue
                self._held.append(answer)
                self._rows += len(answer.keys)

    def look(self, now: float, force: bool = False) -> None:
        """Once a second, or by force: count what came, compare, ask. now: monotonic seconds."""
        if now - self._looked_at < _LOOK_EVERY_S and not force:
            return
        self._looked_at = now
        with self._lock:
            held, self._held, self._rows = self._held, [], 0
        groups: dict[Version, dict[Any, list[Answer]]] = defaultdict(lambda: defaultdict(list))
        for answer in held:
            groups[answer.model, answer.version][answer.signature].append(answer)
        for version, signatures in groups.items():
            try:
                self._look(version, list(signatures.values()), now)
            except (StoreError, ValueError) as error:
                self.last_error = f"live drift of {':'.join(version)}: {error}"
        if now - self._saved_at >= _SAVE_EVERY_S:
            self._saved_at = now
            self.save()

    def save(self) -> None:
        """Windows that changed go to the store, for the observer after this one."""
        for version, watched in self.watched.items():
            if not watched.changed:
                continue
            body = watched.window.to_bytes(watched.watch)
            try:
                watched.etag = self.store.swap(window_key(*version), body, watched.etag)
                watched.changed = False
            except Conflict:  # an answer that got lost, or another observer: the newer window stays
                pointer = self.store.pointer(window_key(*version))
                watched.etag = pointer.etag if pointer else None
            except StoreError as error:
                self.last_error = str(error)

    def status(self) -> list[dict[str, Any]]:
        """What a page shows of each version."""
        return [
            {"model": model, "version": version, **_plain(watched.reading), "alarm": watched.watch.asked}
            for (model, version), watched in self.watched.items()
            if watched.reading is not None
        ]

    def _look(self, version: Version, signatures: Sequence[Sequence[Answer]], now: float) -> None:
        watched = self.watched.get(version) or self._open(version, now)
        if watched is None:
            return
        features = watched.window.reference.features
        for answers in signatures:
            missing = [name for name in features if name not in answers[0].inputs]
            if missing:
                self.last_error = f"live drift of {':'.join(version)}: requests lack {', '.join(missing)}"
                continue
            _count(watched.window, features, answers)
        watched.changed, watched.reading = True, watched.window.read()
        if watched.reading is not None:
            after, alarm = watched.watch.after(watched.reading)
            if alarm:  # written before it is remembered: a store that fails is asked again at the next slot
                body = json.dumps({"model": version[0], "version": version[1], **_plain(watched.reading)}, indent=1)
                self.store.put(alarm_key(version[0], watched.reading.at_us, version[1]), body.encode())
            watched.watch = after

    def _open(self, version: Version, now: float) -> _Watched | None:
        from assets.champion import reference_key
        from assets.drift.live import LiveWindow, Watch
        from assets.drift.reference import Reference

        if now < self._again_at.get(version, now):
            return None
        self._again_at[version] = now + _ASK_AGAIN_S
        try:
            body = self.store.get(reference_key(*version))
        except NotFound:
            return None
        window = LiveWindow(Reference.from_bytes(body))
        saved = self.store.pointer(window_key(*version))
        watch = window.resume(saved.body) if saved else None
        self._forget_oldest(version[0])
        opened = _Watched(window, watch or Watch(), saved.etag if saved else None)
        self.watched[version] = opened
        return opened

    def _forget_oldest(self, model: str) -> None:
        """Two versions of a model serve at most, and the one before stays warm: three windows."""
        mine = [version for version in self.watched if version[0] == model]
        mine.sort(key=lambda version: self.watched[version].window.newest)
        for version in mine[:-2]:
            del self.watched[version]


def window_key(model: str, version: str) -> str:
    return f"live/{model}/windows/{version}.npz"


def alarm_key(model: str, at_us: int, version: str) -> str:
    return f"live/{model}/alarms/{at_us:016d}-{version}.json"


def _plain(reading: "Reading | None") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(reading) if reading else {}


def _count(window: "LiveWindow", features: Any, answers: Sequence[Answer]) -> None:
    import numpy as np
    import pandas as pd

    from assets.drift.aggregate import ANSWER, columns

    sizes = [len(answer.keys) for answer in answers]
    event_us = np.repeat(np.array([answer.event_us for answer in answers], dtype=np.int64), sizes)
    rows: dict[str, Any] = {}
    for name in features:
        parts = [answer.inputs[name] for answer in answers]
        rows[name] = (
            pd.Series([value for part in parts for value in part], dtype=object)
            if isinstance(parts[0], list)
            else np.concatenate(parts)
        )
    if ANSWER in window.reference.marginals:
        rows[ANSWER] = np.concatenate([answer.answers for answer in answers])
    window.add(event_us, columns(pd.DataFrame(rows), window.reference.columns))
