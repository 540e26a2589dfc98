"""How much of the traffic was seen: Envoy's own count of inference requests against what arrived here.

The two run at different speeds: Envoy counts at once and sends its access log twice a second. So a count read at t is
compared with the requests that ENDED by t, once all of those must be here.
"""

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

SETTLED_AFTER_S = 2.5
# A request's end lies this close to when Envoy counts it.
_SLACK_S = 0.1
_KEEP_S = 2 * 86_400
_FINE_S, _COARSE_STEP_S = 3_600, 60


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals at an instant (Unix seconds), in requests: Envoy's count, rows seen, well answered, bodies read."""

    at: float
    requests: int
    access: int
    ok: int
    answers: int


@dataclass(frozen=True, slots=True)
class _Reading:
    before: float
    after: float
    requests: int


def _counted(before: int, after: int) -> int:
    """Requests between two readings of a counter that starts again from 0 when Envoy does."""
    return after - before if after >= before else after


def _plus(sample: Sample, last: Sample, gap: int) -> Sample:
    return Sample(
        sample.at,
        sample.requests + last.requests + gap,
        sample.access + last.access,
        sample.ok + last.ok,
        sample.answers + last.answers,
    )


class _Tally:
    """Ends of requests: the total, and how many ended by a recent instant."""

    def __init__(self) -> None:
        self.total = 0
        self.recent: list[float] = []

    def add(self, ends: Iterable[float]) -> None:
        self.recent += ends
        self.recent.sort()

    def by(self, instant: float) -> int:
        return self.total + bisect_right(self.recent, instant)

    def forget_before(self, instant: float) -> None:
        gone = bisect_right(self.recent, instant)
        self.total += gone
        del self.recent[:gone]

    @property
    def everything(self) -> int:
        return self.total + len(self.recent)


class Ledger:
    """Thread-safe. `saved()` goes to the store, so that what a dead observer missed still shows in the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._access, self._ok, self._answers = _Tally(), _Tally(), _Tally()
        self._first_raw: int | None = None
        self._raw = 0
        self._requests = 0
        self._readings: deque[_Reading] = deque()
        self.samples: list[Sample] = []

    def resume(self, saved: dict[str, Any]) -> None:
        """Go on from what an earlier observer saved. What Envoy counted since then and nobody saw becomes a gap."""
        last, raw = Sample(**saved["sample"]), int(saved["raw"])
        with self._lock:
            gap = 0 if self._first_raw is None else _counted(raw, self._first_raw)
            if self._first_raw is None:
                self._first_raw = self._raw = raw
            self._requests += last.requests + gap
            self._access.total += last.access
            self._ok.total += last.ok
            self._answers.total += last.answers
            self._readings = deque(replace(r, requests=r.requests + last.requests + gap) for r in self._readings)
            self.samples = [last, *(_plus(sample, last, gap) for sample in self.samples)]

    def saw_access(self, ends: Iterable[tuple[float, bool]]) -> None:
        """The end (Unix seconds) of each request in the access log, and whether it was answered well."""
        pairs = list(ends)
        with self._lock:
            self._access.add(end for end, _ in pairs)
            self._ok.add(end for end, ok in pairs if ok)

    def saw_answers(self, ends: Iterable[float]) -> None:
        """The end of each request whose bodies could be read."""
        with self._lock:
            self._answers.add(ends)

    def read(self, before: float, after: float, raw: int) -> None:
        """Envoy's counter, read between two instants. It starts again from 0 when Envoy does."""
        with self._lock:
            if self._first_raw is None:
                self._first_raw = raw
                self.samples.append(Sample(before, 0, 0, 0, 0))
            else:
                self._requests += _counted(self._raw, raw)
            self._raw = raw
            self._readings.append(_Reading(before, after, self._requests))

    def settle(self, now: float, force: bool = False) -> None:
        """Turn readings whose requests must have arrived into samples; with force every one."""
        with self._lock:
            while self._readings and (force or now - self._readings[0].after >= SETTLED_AFTER_S):
                self.samples.append(self._sample(self._readings.popleft()))
            oldest = self._readings[0].before if self._readings else now - SETTLED_AFTER_S
            for tally in (self._access, self._ok, self._answers):
                tally.forget_before(oldest - 1.0)
            self._thin(now)

    def is_caught_up(self) -> bool:
        """Whether all that Envoy had counted at the last reading is here, but for what is known to be lost."""
        with self._lock:
            last = self.samples[-1] if self.samples else Sample(0.0, 0, 0, 0, 0)
            lost_rows, lost_answers = last.requests - last.access, last.ok - last.answers
            here = self._access.everything + lost_rows >= self._requests
            return here and self._answers.everything + lost_answers >= self._ok.everything

    def between(self, since: float | None) -> tuple[Sample, Sample] | None:
        """The samples that bound [since, now), without `since` all that was ever seen; None before the first."""
        with self._lock:
            if len(self.samples) < 2:
                return None
            if since is None:
                return Sample(0.0, 0, 0, 0, 0), self.samples[-1]
            at = max(bisect_right(self.samples, since, key=lambda sample: sample.at) - 1, 0)
            return self.samples[min(at, len(self.samples) - 2)], self.samples[-1]

    def saved(self) -> dict[str, Any] | None:
        with self._lock:
            if not self.samples:
                return None
            last = self.samples[-1]
            # The raw count that belongs to the last sample, not to readings that have not settled.
            raw = self._raw - (self._requests - last.requests)
            fields = ("at", "requests", "access", "ok", "answers")
            return {"raw": max(raw, 0), "sample": {name: getattr(last, name) for name in fields}}

    def _sample(self, reading: _Reading) -> Sample:
        def nearest(wanted: int, tally: _Tally) -> int:
            low, high = tally.by(reading.before - _SLACK_S), tally.by(reading.after + _SLACK_S)
            return min(max(wanted, low), high)

        # What is lost stays lost: wanted again each time, rows of after the reading would fill the gap.
        last = self.samples[-1] if self.samples else Sample(0.0, 0, 0, 0, 0)
        access = nearest(reading.requests - (last.requests - last.access), self._access)
        ok = access - (self._access.by(reading.after) - self._ok.by(reading.after))
        answers = nearest(ok - (last.ok - last.answers), self._answers)
        return Sample(reading.after, reading.requests, access, ok, answers)

    def _thin(self, now: float) -> None:
        """A sample a second for an hour, then one a minute for two days."""
        if len(self.samples) < 2 * _FINE_S:
            return
        kept: list[Sample] = []
        for sample in self.samples:
            fine = now - sample.at < _FINE_S
            if now - sample.at < _KEEP_S and (fine or not kept or sample.at - kept[-1].at >= _COARSE_STEP_S):
                kept.append(sample)
        self.samples = kept
