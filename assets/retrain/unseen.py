"""On which later rows a candidate may be held against the champion: those that the champion was not fitted on.

A champion that was released less than a hold-out ago has seen part of it, and answers that part better than it will
ever answer clients.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pandas as pd

from assets.decision import Evidence
from assets.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """rows: (n,) of bool, those of the hold-out that are compared on; seen: how many of them the champion has seen."""

    rows: np.ndarray
    seen: int

    def said(self) -> str:
        """What a reader has to know of the rows; '' when they are the whole hold-out, and new to both."""
        if self.seen:
            return f" The champion was fitted on {self.seen} of these {int(self.rows.sum())} rows."
        return "" if self.rows.all() else f" Compared on the {int(self.rows.sum())} rows after the champion's own."

    def fair(self, evidence: Evidence) -> Evidence:
        """A candidate that holds against a champion on its own rows holds; one that does not is not proven worse.

        Evidence without a statistic compared nothing.
        """
        if evidence.statistic is None:
            return evidence
        if self.seen and evidence.verdict is Verdict.FAIL:
            remedy = " That is no fair loss: judge again when enough rows after the champion's fit have their labels."
            return replace(evidence, verdict=Verdict.INCONCLUSIVE, why=evidence.why + self.said() + remedy)
        return replace(evidence, why=evidence.why + self.said())


def compared(
    times: "pd.Series[pd.Timestamp]", seen_until: datetime | None, enough: Callable[[np.ndarray], bool]
) -> Compared:
    """The rows after `seen_until` where they are enough, else all.

    times: (n,) event times; seen_until: of the last row that the champion was fitted on; None without a champion.
    """
    everything = np.ones(len(times), dtype=bool)
    if seen_until is None:
        return Compared(everything, 0)
    fresh = (times > pd.Timestamp(seen_until)).to_numpy()
    return Compared(fresh, 0) if enough(fresh) else Compared(everything, int((~fresh).sum()))
