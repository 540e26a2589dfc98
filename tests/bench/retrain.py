"""Retrain: what a year of weekly decisions would have gained under each gate, on three streams and two windows."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.shadow.confidence import fixed_radius, sequence_radius
from assets.shadow.expected import Pair
from assets.shadow.judge import judge
from assets.shadow.loss import loss
from assets.shadow.settings import ShadowSettings
from assets.verdict import Verdict
from tests.bench.lines import Line
from tests.bench.streams import HELD_OUT, Stream, agrawal, nyc_flights

Floats = NDArray[np.float64]

WEEK, HORIZON = timedelta(days=7), timedelta(days=28)
DECISIONS = 41
# A champion of the first weeks is never replaced; the first decision comes when two shadow windows lie behind it.
FIRST = timedelta(days=52)
CHAMPION = timedelta(days=31)
TRAILING = timedelta(weeks=8)
# By then a label is known: the spec's own maturity.
MATURITY = timedelta(hours=24)
PAIRED = ("key", "event_time", "known_at", "label")
WINDOWS = {"trailing 8 weeks": TRAILING, "all data so far": None}
DEFAULT = ShadowSettings()
OURS = f"trimtab's default, {DEFAULT.rule}, {DEFAULT.days // 7} week"
# Rule and weeks of the window of the product's own gates.
RULES = {
    OURS: (DEFAULT.rule, DEFAULT.days // 7),
    "trimtab, expected_loss, 2 weeks": ("expected_loss", 2),
    "trimtab, expected_gain, 2 weeks": ("expected_gain", 2),
}


@dataclass(frozen=True, slots=True)
class Decided:
    """One weekly decision: what the shadow saw over one week and two, and what refitting then gained a request."""

    at: datetime
    one: pd.DataFrame
    two: pd.DataFrame
    realised: float


def lines() -> Iterator[Line]:
    """Some three minutes on two cores: 43 fits for each window of each stream."""
    record: dict[str, Any] = {}
    for stream in (nyc_flights(), agrawal(), agrawal("Agrawal held out", HELD_OUT)):
        for name, window in WINDOWS.items():
            year = decisions(stream, window)
            table = {gate: _tally(said, year) for gate, said in gates(year).items()}
            where = f"{stream.name}, {name}"
            record[where] = _listed(year, table)
            print(_printed(where, table, sum(item.realised < 0 for item in year)), flush=True)
            yield _line(where, table)
    target = Path("build/retrain.json")
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(record, indent=1))


@dataclass(frozen=True, slots=True)
class Row:
    """yes: of all decisions; wrong: those that did harm; gain: realised a week, over all weeks. said: each decision."""

    yes: int
    wrong: int
    gain: float
    said: tuple[bool, ...]


def decisions(stream: Stream, window: timedelta | None) -> list[Decided]:
    """Every week's shadow and its truth; a model fitted at T is the challenger of the weeks after and T's own truth."""
    champion = stream.fit(stream.start, stream.start + CHAMPION)

    @cache
    def model(at: datetime) -> Callable[[pd.DataFrame], Floats]:
        first = stream.start if window is None else max(at - window, stream.start)
        return stream.fit(first, at - MATURITY)

    def compared(at: datetime, start: datetime, end: datetime) -> pd.DataFrame:
        rows = stream.between(start, end)
        return rows[list(PAIRED)].assign(champion=champion(rows), challenger=model(at)(rows))

    found = []
    for week in range(DECISIONS):
        at = stream.start + FIRST + week * WEEK
        one, two = (compared(at - weeks * WEEK, at - weeks * WEEK, at) for weeks in (1, 2))
        truth = float(_difference(compared(at, at, at + HORIZON)).mean())
        found.append(Decided(at, one, two, truth))
    return found


def _difference(rows: pd.DataFrame) -> Floats:
    label = rows["label"].to_numpy(np.float64)
    champion, challenger = (loss("log_loss", label, rows[name].to_numpy()) for name in ("champion", "challenger"))
    return champion - challenger


def gates(year: list[Decided]) -> dict[str, list[bool]]:
    """What each gate says every week: those of statistics section 3b, and the product's own."""
    shadows = [_difference(item.one) for item in year]
    days = [_days(item.one) for item in year]
    ours = {name: _judged(year, *rule) for name, rule in RULES.items()}
    return {
        "always retrain": [True] * len(year),
        "request-level CS, any look": [_sequence(d)[199:].max() > 0 for d in shadows],
        "request-level CS, at the end": [_sequence(d)[-1] > 0 for d in shadows],
        "mean of day blocks > 0": [d.mean() > 0 for d in days],
        "day blocks, one-sided 20 %": [_student(d, 0.2) > 0 for d in days],
        "day blocks, one-sided 5 %": [_student(d, 0.05) > 0 for d in days],
        **ours,
    }


def _days(rows: pd.DataFrame) -> Floats:
    means = pd.Series(_difference(rows)).groupby(rows["event_time"].dt.floor("D").to_numpy()).mean()
    return means.to_numpy(dtype=np.float64)


def _student(values: Floats, alpha: float) -> float:
    return float(values.mean() - values.std(ddof=1) * fixed_radius(len(values), alpha))


def _sequence(d: Floats) -> Floats:
    """Lower bound after every request, as if requests were independent."""
    count = np.arange(1, len(d) + 1, dtype=np.float64)
    mean = np.cumsum(d) / count
    spread = np.sqrt(np.maximum(np.cumsum(d**2) - count * mean**2, 0) / np.maximum(count - 1, 1))
    grid = np.unique(np.geomspace(2, len(d), 200))
    radius = np.interp(count, grid, [sequence_radius(float(n), len(d), 0.05) for n in grid])
    lower: Floats = mean - spread * radius
    return lower


def _judged(year: list[Decided], rule: str, weeks: int) -> list[bool]:
    """The product's judge, a record every week; a decision teaches once its horizon has passed."""
    settings = ShadowSettings.model_validate({"rule": rule, "days": 7 * weeks, "maturity_hours": 0})
    said: list[bool] = []
    seen: list[Pair] = []
    for item in year:
        history = [pair for pair in seen if pair.as_of + HORIZON + MATURITY <= item.at]
        decision = judge("bench", item.one if weeks == 1 else item.two, settings, item.at, {}, history)
        said.append(decision.verdict is Verdict.PASS)
        seen.append(Pair(item.at, decision.details["heading"], item.realised))
    return said


def _tally(said: list[bool], year: list[Decided]) -> Row:
    realised = np.array([item.realised for item in year])
    yes = np.array(said, dtype=np.bool_)
    gain = float(realised[yes].sum()) / len(year)
    return Row(int(yes.sum()), int((yes & (realised < 0)).sum()), gain, tuple(map(bool, said)))


def _line(where: str, table: Mapping[str, Row]) -> Line:
    """No other gate has more realised gain and no more wrong yes."""
    ours = table[OURS]
    rivals = {name: row for name, row in table.items() if name not in RULES and row.wrong <= ours.wrong}
    best = max(rivals, key=lambda name: rivals[name].gain) if rivals else None
    above = [name for name, row in rivals.items() if row.gain > ours.gain + 1e-12]
    ratio = ours.gain / rivals[best].gain if best and rivals[best].gain else None
    name = f"realised gain a week, {where} ({ours.yes} yes, {ours.wrong} wrong)"
    target = f"no row dominates ours{'; dominated by ' + ', '.join(above) if above else ''}"
    reference = f"'{best}', the best with no more wrong yes" if best else "none: all others have more wrong yes"
    return Line("retrain", name, ours.gain, "log-loss", target, not above, ratio, reference)


def _printed(where: str, table: Mapping[str, Row], harmful: int) -> str:
    head = (
        f"{where}: {harmful} of {DECISIONS} retrainings do harm\n{'gate':<34}{'yes':>5}{'wrong':>7}{'gain a week':>13}"
    )
    rows = [f"{name:<34}{row.yes:>5}{row.wrong:>7}{row.gain:>13.4f}" for name, row in table.items()]
    return "\n".join([head, *rows])


def _listed(year: list[Decided], table: Mapping[str, Row]) -> dict[str, Any]:
    return {
        "gates": {name: {"yes": row.yes, "wrong": row.wrong, "gain": row.gain} for name, row in table.items()},
        "decisions": [
            {
                "at": item.at.isoformat(),
                "shadow_gain": float(_difference(item.one).mean()),
                "realised_gain": item.realised,
                "said": {name: row.said[week] for name, row in table.items()},
            }
            for week, item in enumerate(year)
        ],
    }


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
