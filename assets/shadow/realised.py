"""What became of past decisions: which can be told now, and the pairs of shadow and realised gain known by then."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from assets.decision import Decision, Evidence
from assets.shadow.expected import Pair
from assets.shadow.gain import measured
from assets.shadow.pairs import usable
from assets.shadow.settings import ShadowSettings
from assets.verdict import Verdict

GATE = "realised"


@dataclass(frozen=True, slots=True)
class Past:
    """A shadow decision of the past that saw a gain, whatever its verdict."""

    at: datetime
    champion: int
    shadow: float
    loss: str
    lookback_days: float | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Past | None":
        """None where nothing was seen: no champion, or no labels."""
        details, inputs = record["details"], record["inputs"]
        if details.get("mean_gain") is None or "champion" not in inputs or "settings" not in details:
            return None
        chosen = details.get("chosen") or {}
        at, champion = datetime.fromisoformat(record["as_of"]), int(inputs["champion"])
        seen = details.get("heading")
        shadow = float(details["mean_gain"] if seen is None else seen)
        return cls(at, champion, shadow, details["settings"]["loss"], chosen.get("lookback_days"))

    def told_at(self, settings: ShadowSettings) -> datetime:
        """When the labels of its horizon are mature."""
        return self.at + timedelta(days=settings.learning.horizon_days, hours=settings.maturity_hours)


def pending(
    past: Iterable[Past], records: Iterable[Mapping[str, Any]], settings: ShadowSettings, as_of: datetime
) -> list[Past]:
    """Decisions whose realised gain can be told at `as_of` and is not yet, one an instant, the oldest first."""
    told = {datetime.fromisoformat(record["details"]["decided_at"]) for record in records}
    due = {item.at: item for item in past if item.told_at(settings) <= as_of and item.loss == settings.loss}
    return [due[at] for at in sorted(due) if at not in told]


def realised(
    model: str, past: Past, pairs: pd.DataFrame, settings: ShadowSettings, inputs: Mapping[str, str]
) -> Decision:
    """The record of one pair. pairs: as `judge`'s, the horizon's requests; challenger: the model refitted at the time.

    PASS: retraining would have paid. INCONCLUSIVE: too few labels to tell; then the pair teaches nothing.
    """
    at = past.told_at(settings)
    data = usable(pairs, settings, at)
    labels = data.counts["labels"]
    details: dict[str, Any] = {"decided_at": past.at, "shadow": past.shadow, "loss": settings.loss, "realised": None}
    if labels < settings.min_labels or data.counts["unscored"]:
        why = f"{labels} labels, {data.counts['unscored']} of them unscored: {settings.min_labels} are needed to tell"
        return Decision(model, GATE, at, why, (Evidence(GATE, Verdict.INCONCLUSIVE, why, labels),), inputs, details)
    gain = float(measured(data, settings).path.mean[-1])
    days = settings.learning.horizon_days
    why = (
        f"decided on {past.at:%Y-%m-%d} with {past.shadow:+.5f} in the shadow: refitting brought {gain:+.5f} a request "
        f"over the {days:g} days that followed ({labels} labels)"
    )
    evidence = Evidence(GATE, Verdict.PASS if gain > 0 else Verdict.FAIL, why, gain, 0.0)
    return Decision(model, GATE, at, why, (evidence,), inputs, {**details, "realised": gain})


def history(records: Sequence[Mapping[str, Any]], settings: ShadowSettings, as_of: datetime) -> list[Pair]:
    """Pairs under the same loss that were known at `as_of`, one a decision, the oldest first."""
    pairs = {}
    for record in records:
        details = record["details"]
        known = datetime.fromisoformat(record["as_of"]) <= as_of
        if known and details["loss"] == settings.loss and details["realised"] is not None:
            at = datetime.fromisoformat(details["decided_at"])
            pairs[at] = Pair(at, details["shadow"], details["realised"])
    return [pairs[at] for at in sorted(pairs)]
