"""Years of labelled requests: the flights of 2013, and concepts that drift, come back and change for good."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tests.bench import flights

Floats = NDArray[np.float64]
Model = Callable[[pd.DataFrame], Floats]

# First and last week, Agrawal's function before and after.
Concepts = tuple[tuple[int, int, int, int], ...]

WEEKS, A_DAY = 52, 100


@dataclass(frozen=True)
class Stream:
    """Requests by event_time with key, known_at, label and inputs, all of them numbers."""

    name: str
    start: datetime
    rows: pd.DataFrame
    inputs: tuple[str, ...]

    def between(self, start: datetime, end: datetime) -> pd.DataFrame:
        """Requests of [start, end)."""
        at = self.rows["event_time"].searchsorted(pd.DatetimeIndex([start, end]))
        return self.rows.iloc[at[0] : at[1]].reset_index(drop=True)

    def fit(self, start: datetime, end: datetime) -> Model:
        """Few trees, fitted on [start, end), as a function from rows to chances."""
        from lightgbm import LGBMClassifier

        rows = self.between(start, end)
        trees = LGBMClassifier(n_estimators=60, learning_rate=0.1, num_leaves=31, min_child_samples=100, reg_lambda=5.0,
                               colsample_bytree=0.8, random_state=7, n_jobs=1, deterministic=True, force_row_wise=True,
                               verbose=-1)  # fmt: skip
        trees.fit(rows[list(self.inputs)].to_numpy(np.float32), rows["label"])
        return lambda asked: trees.predict_proba(asked[list(self.inputs)].to_numpy(np.float32))[:, 1]


def nyc_flights() -> Stream:
    """336 688 flights, their carriers and airports by number."""
    rows = flights.rows()
    inputs = tuple(flights.features())
    numbers = {
        name: pd.factorize(rows[name], sort=True)[0].astype(np.float32) if kind == "string" else rows[name]
        for name, kind in flights.features().items()
    }
    return Stream("flights", flights.START, _stream(rows["event_time"], rows[flights.LABEL], numbers), inputs)


# Which of Agrawal's functions holds in each part of the year: it drifts over weeks, comes back, changes at once.
CONCEPTS = ((0, 10, 0, 0), (10, 18, 0, 2), (18, 26, 2, 2), (26, 28, 2, 0), (28, 36, 0, 0), (36, 52, 6, 6))


# Another year, kept back: the rule's beliefs were chosen on the first one and the flights, not on this.
HELD_OUT = ((0, 12, 4, 4), (12, 22, 4, 1), (22, 34, 1, 1), (34, 35, 1, 7), (35, 52, 7, 7))


def agrawal(name: str = "Agrawal (river)", concepts: Concepts = CONCEPTS) -> Stream:
    """River's generator of loan applications; each day some answers are turned round, few or many together."""
    rng = np.random.default_rng(20130131)
    start = datetime(2013, 1, 1, tzinfo=UTC)
    n = WEEKS * 7 * A_DAY
    week = np.arange(n) / (7 * A_DAY)
    concept = np.zeros(n, dtype=np.intp)
    for first, last, before, after in concepts:
        part = (week >= first) & (week < last)
        share = (week[part] - first) / (last - first)
        concept[part] = np.where(rng.random(part.sum()) < share, after, before)
    drawn = {number: _drawn(int(number), int((concept == number).sum())) for number in np.unique(concept)}
    made = pd.concat(
        [frame.set_index(np.flatnonzero(concept == number)) for number, frame in drawn.items()]
    ).sort_index()
    turned = rng.random(n) < np.repeat(rng.beta(1, 7, WEEKS * 7), A_DAY)
    label = np.where(turned, 1 - made["label"], made["label"]).astype(np.float64)
    inputs = [str(name) for name in made if name != "label"]
    times = pd.Series(pd.Timestamp(start) + pd.to_timedelta((np.arange(n) + 0.5) / A_DAY, unit="D"))
    columns = {name: made[name].to_numpy(np.float32) for name in inputs}
    return Stream(name, start, _stream(times, pd.Series(label), columns), tuple(inputs))


def _drawn(concept: int, rows: int) -> pd.DataFrame:
    from river.datasets import synth

    stream: Any = synth.Agrawal(classification_function=concept, seed=concept + 1, perturbation=0.05)
    return pd.DataFrame([{**x, "label": y} for x, y in stream.take(rows)])


def _stream(times: pd.Series, label: pd.Series, columns: Mapping[str, Any]) -> pd.DataFrame:
    frame = pd.DataFrame({name: np.asarray(column) for name, column in columns.items()})
    times = times.reset_index(drop=True)
    return frame.assign(key=np.arange(len(frame)), event_time=times, known_at=times, label=label.to_numpy(np.float64))
