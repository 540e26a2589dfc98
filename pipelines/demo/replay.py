"""The replay: flights as live requests in simulated time, labels as they land, a check at the end of every week."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pandas as pd

from pipelines.demo.clients import Clients, by_day
from pipelines.demo.loops import LoopWatch
from pipelines.factory import WATCH
from pipelines.launch import Webserver
from resources.errors import StackError
from resources.traffic import Traffic

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Week:
    """One partition of the replay. Checked only when the replay reaches its end."""

    partition: str
    start: datetime
    end: datetime


@dataclass
class Replay:
    """Sends `flights` day by day through the gateway and asks Dagster for the weekly checks."""

    model: str
    flights: pd.DataFrame  # entity, event_time, features, label, label_known_at; sorted by event_time
    clients: Clients
    traffic: Traffic
    webserver: Webserver
    watch_job: str
    watch: LoopWatch
    verdict_of: Callable[[Week], tuple[str, str] | None]
    say: Callable[[str], None]
    progress: Callable[[datetime, int], None]
    pending: tuple[Week, str] | None = None
    checked: list[Week] = field(default_factory=list)
    _labelled_to: datetime | None = None

    def play(self, weeks: Iterable[Week], start: datetime, through: datetime) -> None:
        """Until `through`, then on for as long as a loop that has begun still needs traffic."""
        ends = {week.end: week for week in weeks}
        rows = self.flights[self.flights["event_time"] >= start]
        for day, flights in by_day(rows):
            end = day + DAY
            if day >= through and self._finished():
                break
            self.clients.send(flights)
            self._labels(end)
            self.progress(min(end, through), len(flights))
            if end in ends and end <= through:
                self._check(ends[end])
            self._collect(wait=False)
        while not self._finished():  # the data may end while a loop still runs: it ends by its own deadlines
            time.sleep(1)

    def _finished(self) -> bool:
        self._collect(wait=True)
        return self.watch.settled

    def _labels(self, until: datetime) -> None:
        known = self.flights["label_known_at"]
        fresh = known <= until
        if self._labelled_to is not None:
            fresh &= known > self._labelled_to
        labels = self.flights.loc[fresh, ["entity", "label", "label_known_at"]]
        self._labelled_to = until
        if len(labels):
            self.traffic.put_labels(
                self.model,
                labels.rename(columns={"entity": "key", "label_known_at": "known_at"}).astype({"label": float}),
            )

    def _check(self, week: Week) -> None:
        # One check after the other: each carries on where the one before ended.
        self._collect(wait=True)
        run = self.webserver.launch(
            self.watch_job,
            [[self.model, room] for room in WATCH],
            week.partition,
            {"model": self.model, "trigger": "demo clock"},
        )
        self.pending = (week, run)

    def _collect(self, *, wait: bool) -> None:
        if self.pending is None:
            return
        week, run = self.pending
        status = self.webserver.wait(run, 180) if wait else self.webserver.status(run)
        if status in ("FAILURE", "CANCELED"):
            raise StackError(f"the check of {week.partition} ended as {status}: see {self.webserver.page(run)}")
        if status != "SUCCESS":
            return
        self.pending = None
        self.checked.append(week)
        verdict, why = self.verdict_of(week) or ("ERROR", "no decision record")
        self.say(f"week of {week.start:%d %b}: drift {verdict}: {why}")
        if verdict == "FAIL":
            self.watch.alarm()
