"""How far back a fit may see: as far as the challenger that the shadow chose, else as the spec says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from assets.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Window:
    """Days before the decision. chosen_by: digest of the shadow decision that chose them; '' when the spec did."""

    days: float
    chosen_by: str = ""

    @property
    def length(self) -> timedelta:
        return timedelta(days=self.days)

    def inputs(self) -> dict[str, str]:
        """What a decision record says it rests on."""
        return {"shadow": self.chosen_by} if self.chosen_by else {}


def window(records: Iterable[tuple[str, Mapping[str, Any]]], champion: int | None, days: float) -> Window:
    """The look-back that was proven to pay, or `days`.

    records: (digest, record) of the shadow decisions as of the same instant; those that did not pass, or were about
    another champion than the one that serves, choose nothing. Of several that passed the largest gain does.
    """
    found = [
        (float(record["details"]["mean_gain"]), digest, float(chosen["lookback_days"]))
        for digest, record in records
        if record["verdict"] == Verdict.PASS.name
        and champion is not None
        and record["inputs"].get("champion") == str(champion)
        and (chosen := record["details"].get("chosen"))
    ]
    if not found:
        return Window(days)
    _, digest, lookback = max(found)
    return Window(lookback, digest)
