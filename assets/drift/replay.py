"""What a decision was taken on, kept in its record, so that asking again is answered as it was then."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd

# Seen by nobody: of a log without a row nothing had been seen.
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
CHAMPION, PREVIOUS, ALARMS_AFTER, SEEN_UNTIL = "champion", "previous", "alarms_after", "seen_until"


@dataclass(frozen=True, slots=True)
class Basis:
    """champion: the version that was judged; previous, alarms_after: keys of the decisions that this one goes on from,
    '' without one; seen_until: when the newest row of the log that was read had been seen.
    """

    champion: str
    previous: str
    alarms_after: str
    seen_until: datetime

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Basis | None":
        """That of a record; None where no champion was judged, or where it dates from before a basis was kept."""
        inputs = record["inputs"]
        if PREVIOUS not in inputs:
            return None
        until = datetime.fromisoformat(inputs[SEEN_UNTIL])
        return cls(inputs[CHAMPION], inputs[PREVIOUS], inputs[ALARMS_AFTER], until)

    def inputs(self) -> dict[str, str]:
        """As the record keeps it."""
        return {
            **{CHAMPION: self.champion, PREVIOUS: self.previous},
            **{ALARMS_AFTER: self.alarms_after, SEEN_UNTIL: self.seen_until.isoformat()},
        }


def newest(*frames: pd.DataFrame) -> datetime:
    """When the newest row of some frames of the log was seen."""
    latest = [frame["seen_at"].max().to_pydatetime() for frame in frames if len(frame)]
    return max(latest, default=NEVER)


def seen(frame: pd.DataFrame, until: datetime | None) -> pd.DataFrame:
    """The rows that had been seen by then: what reached the log later was not there to be judged."""
    return frame if until is None else frame[frame["seen_at"] <= until]
