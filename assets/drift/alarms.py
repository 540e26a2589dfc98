"""One alarm until it is acknowledged, retrained or recovered, and how often alarms really came.

An alarm opens when a check fails and none is open. Checks that fail while it is open are the same alarm. It closes
when all checks that failed in it pass (silence is no recovery), or when another champion serves. The state goes from
decision to decision in their details, so that a replayed decision has it too; an acknowledgement is a person's act, and
is kept beside the decisions.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from assets.verdict import Verdict

ALARMING = ("inputs", "harm")
# Closed alarms that are listed; older ones are only counted.
LISTED = 50
RECOVERED, RETRAINED = "recovered", "retrained"


@dataclass(frozen=True, slots=True)
class Alarm:
    """Instants in ISO 8601. closed and how are empty while it is open."""

    opened: str
    checks: tuple[str, ...]
    closed: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True)
class Alarms:
    """since: when watching began; count: alarms ever; last: the latest ones, oldest first."""

    since: str
    count: int = 0
    last: tuple[Alarm, ...] = ()

    @property
    def open(self) -> Alarm | None:
        """The alarm that is neither recovered nor retrained."""
        return self.last[-1] if self.last and not self.last[-1].closed else None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Alarms":
        """The inverse of `report`."""
        last = tuple(Alarm(a["opened"], tuple(a["checks"]), a["closed"], a["how"]) for a in value["last"])
        return cls(value["since"], int(value["count"]), last)


def acknowledgement_key(model: str, opened: str) -> str:
    """Where a person's word about an alarm lies. opened: its instant in ISO 8601.

    >>> acknowledgement_key("churn", "2024-01-12T00:00:00+00:00")
    'acknowledgements/churn/20240112T000000Z.json'
    """
    return f"acknowledgements/{model}/{datetime.fromisoformat(opened):%Y%m%dT%H%M%SZ}.json"


def follow(alarms: Alarms, verdicts: Mapping[str, Verdict], as_of: datetime, retrained: bool) -> Alarms:
    """The state after a decision. verdicts: by check; retrained: another champion than in the decision before."""
    at = as_of.isoformat()
    current = alarms.open
    if current and retrained:
        alarms = _with(alarms, replace(current, closed=at, how=RETRAINED))
        current = None
    failed = tuple(name for name in ALARMING if verdicts.get(name) is Verdict.FAIL)
    if failed and current:
        return _with(alarms, replace(current, checks=tuple(sorted({*current.checks, *failed}))))
    if failed:
        return Alarms(alarms.since, alarms.count + 1, (*alarms.last, Alarm(at, failed))[-LISTED:])
    if current and all(verdicts.get(name) is Verdict.PASS for name in current.checks):
        return _with(alarms, replace(current, closed=at, how=RECOVERED))
    return alarms


def _with(alarms: Alarms, latest: Alarm) -> Alarms:
    return replace(alarms, last=(*alarms.last[:-1], latest))


def report(alarms: Alarms, as_of: datetime, alarms_per_year: float | None) -> dict[str, Any]:
    """Plain JSON values: the state, and the spacing that was realised beside the budget, which is of FALSE alarms."""
    days = (as_of - datetime.fromisoformat(alarms.since)) / timedelta(days=1)
    opened = [datetime.fromisoformat(alarm.opened) for alarm in alarms.last]
    gaps = [(later - earlier) / timedelta(days=1) for earlier, later in pairwise(opened)]
    current = alarms.open
    return {
        "since": alarms.since,
        "count": alarms.count,
        "last": [asdict(alarm) for alarm in alarms.last],
        "open": current.opened if current else None,
        "watched_days": round(days, 3),
        "days_between": round(sum(gaps) / len(gaps), 3) if gaps else None,
        "budget_per_year": alarms_per_year,
    }


def sentence(found: Mapping[str, Any]) -> str:
    """The report in a line.

    >>> sentence({"count": 2, "watched_days": 56.0, "days_between": 21.0, "budget_per_year": 3, "open": None})
    '2 alarms in 56 days, 21 days apart; budget: 3 false ones a year'
    """
    number = int(found["count"])
    parts = [f"{number} alarm{'' if number == 1 else 's'} in {found['watched_days']:.4g} days"]
    parts += [f", {found['days_between']:.4g} days apart"] if found["days_between"] is not None else []
    parts += [f"; budget: {found['budget_per_year']:g} false ones a year"] if found["budget_per_year"] else []
    parts += [f"; open since {found['open'][:16]}"] if found["open"] else []
    return "".join(parts)
