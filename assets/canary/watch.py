"""How the driver looks at the traffic: which requests of the log a look is made of, and what is counted in it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import pandas as pd

from assets.canary.coverage import Seen, tally
from assets.canary.events import Event, Observed, Tick
from assets.canary.looks import Look, count, due, first_events
from assets.canary.outcomes import Known, Span, extended, fresh, known
from assets.canary.rollout import Rollout, share
from assets.cells import Cells

# Requests reach the log this long after they end: the gateway sends its records twice a second.
LOG_LAG = timedelta(seconds=1.5)
# Requests that were on their way while the weights changed belong to neither rung.
SETTLE = timedelta(seconds=0.3)
# A request that takes longer counts in no look; the phase's deadline is for pools that hang.
LONGEST = timedelta(seconds=60)
# Outcomes are counted so often.
OUTCOMES_EVERY = timedelta(seconds=5)


class Log(Protocol):
    """What is asked of the log of requests and answers."""

    def access_seen(self, model: str, since: datetime) -> pd.DataFrame: ...
    def answers_seen(self, model: str, since: datetime) -> pd.DataFrame: ...
    def first_labels(self, model: str, since: datetime, as_of: datetime) -> pd.DataFrame: ...


@dataclass
class Watch:
    """The looks of one driver: each goes on where the one before ended. cells: reads those that the rollout counts by.

    began: from when on requests were assigned by the weights of now; since: where the next look begins.
    """

    log: Log
    cells: Callable[[Rollout], Cells]
    began: datetime | None = None
    since: datetime | None = None
    _cells: Cells | None = None
    _told_at: datetime | None = None

    def restart(self, at: datetime) -> None:
        """The gateway has confirmed other weights."""
        self.began = self.since = at + SETTLE

    def look(self, rollout: Rollout, now: datetime) -> Event:
        """What ended since the last look, as far as it is surely in the log."""
        since = self.since or now + SETTLE  # a resumed driver counts from now: nothing twice
        self.began = self.began or since
        until = now - LOG_LAG
        self.since = max(since, until)
        if until <= since or rollout.champion_pool is None:
            return Tick()
        rows = due(self._seen(rollout, max(self.began, since - LONGEST)), since, until)
        logged, seconds = self._logged(rollout, since, until), (until - since).total_seconds()
        if not rollout.needed:
            span = Span(share(rollout), since, until) if 0 < share(rollout) < 1 else None
            look, cells = self._counted(rollout, rows, share(rollout), seconds, logged)
            return Observed(replace(look, outcomes=self._outcomes(rollout, span, now)), cells, span=span)
        favours = rows["cell"].isin([str(cell) for cell in rollout.needed])
        # One look in two parts: each has its part of the seconds, so that both together have them once.
        named_s = seconds * float(favours.mean()) if len(rows) else 0.0
        part, others = rollout.settings.coverage.need_percent / 100, rows[~favours]
        rest = self._counted(rollout, others, share(rollout), seconds - named_s, _of(logged, others))
        return Observed(*rest, self._counted(rollout, rows[favours], part, named_s, _of(logged, rows[favours])))

    def _seen(self, rollout: Rollout, since: datetime) -> pd.DataFrame:
        if rollout.settings.sticky_header is None:
            return self.log.access_seen(rollout.model, since)
        everything = self.log.access_seen(rollout.model, rollout.started_at)
        rows = first_events(everything[everything["pool"] != ""], rollout.slow_ms, rollout.challenger_pool)
        return rows[rows["seen_at"] >= pd.Timestamp(since)]

    def _outcomes(self, rollout: Rollout, span: Span | None, now: datetime) -> tuple[Known, ...]:
        """What became known since it was last counted. All of the rollout is counted each time, so nothing is lost
        with a driver; that is much to read, and labels are late anyway: not at every look.
        """
        asked, spans = rollout.settings.outcome, extended(rollout.spans, span) if span else rollout.spans
        early = self._told_at is not None and now < self._told_at + OUTCOMES_EVERY
        if not asked.judged or not spans or early:
            return ()
        self._told_at = now
        access, answers = (
            read(rollout.model, spans[0].start) for read in (self.log.access_seen, self.log.answers_seen)
        )
        if access.empty:
            return ()
        labels = self.log.first_labels(rollout.model, access["event_time"].min(), now)
        pools = rollout.challenger_pool, str(rollout.champion_pool)
        return fresh(known(access, answers, labels, spans, pools, asked), rollout.guards.outcomes)

    def _logged(self, rollout: Rollout, since: datetime, until: datetime) -> pd.DataFrame | None:
        """Answers of the same look; None where no coverage is asked for, or the challenger is alone."""
        if rollout.coverage is None or not 0 < share(rollout) < 1:
            return None
        logged = self.log.answers_seen(rollout.model, since)
        return logged[logged["seen_at"] < pd.Timestamp(until)]

    def _counted(
        self, rollout: Rollout, rows: pd.DataFrame, part: float, seconds: float, logged: pd.DataFrame | None
    ) -> tuple[Look, Seen | None]:
        """The look of these access rows, and of these answers by cell."""
        look = count(rows, part, rollout.challenger_pool, str(rollout.champion_pool), rollout.slow_ms, seconds)
        if logged is None:
            return look, None
        if self._cells is None:
            self._cells = self.cells(rollout)
        if rollout.rehearsal:  # both pools answer as one version
            mine = logged["request_id"].isin(rows.loc[rows["pool"] == rollout.challenger_pool, "request_id"])
            logged = logged.assign(version=mine.map({True: str(rollout.version), False: ""}))
        return look, tally(logged, self._cells, part, rollout.version, share(rollout))


def _of(logged: pd.DataFrame | None, rows: pd.DataFrame) -> pd.DataFrame | None:
    """The answers of these requests."""
    return None if logged is None else logged[logged["request_id"].isin(rows["request_id"])]
