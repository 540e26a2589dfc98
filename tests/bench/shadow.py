"""Shadow: how often a look at every label is wrong, how soon it is right, and how fast a million rows are compared."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.retrain.export import to_onnx
from assets.scoring import Scorer, as_served
from assets.shadow.confidence import Running, running, sequence_radius
from assets.shadow.judge import judge
from assets.shadow.loss import loss
from assets.shadow.settings import ShadowSettings
from tests.bench import flights
from tests.bench.lines import Line, at_least, at_most

Floats = NDArray[np.float64]

RUNS, LABELS, FIRST_LOOK = 1000, 20_000, 200
ALPHA = 0.05
DAYS, A_DAY = 56, 100
# statistics.md, section 3: asymptotic confidence sequence, looks up to 20 000 labels.
TABLE_POWER, TABLE_LABELS, EFFECT = 0.99, 5_900, 0.036


def lines() -> Iterator[Line]:
    """Two to three minutes on two cores."""
    rng = np.random.default_rng(20130131)
    yield from _independent(rng)
    yield from _by_day(rng)
    yield _million(rng)
    yield _scoring()


def _independent(rng: np.random.Generator) -> Iterator[Line]:
    """Every request its own block, a look at each."""
    radius = _radii(np.arange(1, LABELS + 1, dtype=np.float64), LABELS)
    for effect, name in ((0.0, "a/a"), (EFFECT, "power")):
        first = np.array([_first_yes(rng.normal(effect, 1, LABELS), radius) for _ in range(RUNS)])
        found = int((first > 0).sum())
        if name == "a/a":
            yield at_most("shadow", "A/A false yes, look at every label, upper bound", _upper(found), "%", 100 * ALPHA)
            continue
        share = found / RUNS
        labels = float(first[first > 0].mean())
        yield at_least("shadow", "power at d_eff .036 in 20k labels", 100 * share, "%", 90 * TABLE_POWER)
        met = abs(labels / TABLE_LABELS - 1) <= 0.1
        ratio = labels / TABLE_LABELS
        yield Line("shadow", "mean labels to a yes", labels, "", "within 10 % of 5 900", met, ratio, "the table's")


def _first_yes(values: Floats, radius: Floats) -> int:
    """Labels seen at the first look with a positive lower bound; 0 when there is none."""
    count = np.arange(1, len(values) + 1, dtype=np.float64)
    mean = np.cumsum(values) / count
    spread = np.sqrt(np.maximum(np.cumsum(values**2) - count * mean**2, 0) / np.maximum(count - 1, 1))
    yes = np.flatnonzero((mean > spread * radius)[FIRST_LOOK - 1 :])
    return int(yes[0]) + FIRST_LOOK if yes.size else 0


def _by_day(rng: np.random.Generator) -> Iterator[Line]:
    """Requests share their day's weather; blocks are days, and the day that is going on counts as far as it got.

    The shared part is as large as the flights' own, measured here.
    """
    shared = day_spread()
    radius = _radii(np.linspace(2, DAYS, 2000), DAYS)
    grid = np.linspace(2, DAYS, 2000)
    wrong = 0
    for run in range(RUNS):
        values = rng.normal(0, 1, (DAYS, A_DAY)) + rng.normal(0, shared, (DAYS, 1))
        path = _every_label(values)
        if run == 0:
            _agrees(values, path)
        looks = slice(6 * A_DAY, None)
        bound = path.spread[looks] * np.interp(path.effective[looks], grid, radius)
        wrong += bool((path.mean[looks] > bound).any())
    name = f"A/A false yes with the flights' day effects ({shared:.2f} of a request's own spread), every label"
    yield at_most("shadow", name, _upper(wrong), "%", 100 * ALPHA)


def _every_label(values: Floats) -> Running:
    """`running` after each label of (days, labels a day), all at once: (n,) arrays."""
    days, a_day = values.shape
    part, rows = np.cumsum(values, axis=1), np.arange(1, a_day + 1, dtype=np.float64)
    whole = np.vstack(
        [np.zeros(3), np.cumsum(np.column_stack([part[:, -1], part[:, -1] ** 2, part[:, -1] * a_day]), 0)]
    )
    before = np.arange(days)[:, None]
    sums, squares, crossed = (whole[:-1, i][:, None] for i in range(3))
    total, size = before * a_day + rows, before * a_day**2 + rows**2
    mean = (sums + part) / total
    residual = squares + part**2 - 2 * mean * (crossed + part * rows) + mean**2 * size
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.maximum(residual, 0) / total**2 * (before + 1) / before
    effective = total**2 / size
    return Running(mean.ravel(), np.sqrt(variance * effective).ravel(), effective.ravel())


def _agrees(values: Floats, path: Running) -> None:
    """The simulation's closed form is the product's own computation."""
    day, label = 9, 37
    sums = np.append(values[:day].sum(1), values[day, :label].sum())
    rows = np.append(np.full(day, float(A_DAY)), float(label))
    own, at = running(sums, rows), day * A_DAY + label - 1
    assert np.allclose(
        [own.mean[-1], own.spread[-1], own.effective[-1]], [path.mean[at], path.spread[at], path.effective[at]]
    )


def _radii(effective: Floats, planned: float) -> Floats:
    """The product's radius on a grid that is fine where it bends, interpolated to all of `effective`."""
    grid = np.unique(np.geomspace(2, effective[-1], 300))
    return np.interp(effective, grid, [sequence_radius(float(n), planned, ALPHA) for n in grid])


def _upper(events: int) -> float:
    """Clopper-Pearson upper 95 % bound, in percent."""
    from scipy.stats import beta

    return 100 * float(beta.ppf(0.95, events + 1, RUNS - events))


def _million(rng: np.random.Generator) -> Line:
    """Keys are texts and several requests share a second, as in a log."""
    n, start = 1_000_000, datetime(2013, 3, 1, tzinfo=UTC)
    seconds = np.sort(rng.integers(0, 14 * 86_400, n))
    times = pd.Series(pd.to_datetime(start) + pd.to_timedelta(seconds, unit="s")).astype("datetime64[us, UTC]")
    truth = rng.uniform(0.05, 0.75, n)
    pairs = pd.DataFrame(
        {
            "key": np.arange(n).astype(str).astype(object),
            "event_time": times,
            "known_at": times + timedelta(hours=2),
            "label": (rng.random(n) < truth).astype(float),
            "champion": np.clip(truth + rng.normal(0, 0.1, n), 0, 1),
            "challenger": np.clip(truth + rng.normal(0, 0.05, n), 0, 1),
        }
    )
    settings = ShadowSettings(rule="expected_gain")
    judge("bench", pairs[:20_000], settings, start + timedelta(days=15), {})  # imports count once a process
    best = min(_seconds(lambda: judge("bench", pairs, settings, start + timedelta(days=15), {})) for _ in range(3))
    other = min(_seconds(lambda: _by_the_books(pairs)) for _ in range(2))
    name = "comparison of 1e6 paired rows, best of 3"
    reference = f"pandas and scipy by the books, {other:.3g} s"
    return Line("shadow", name, best, "s", "≤ 2 s", best <= 2, best / other, reference)


def _by_the_books(pairs: pd.DataFrame) -> tuple[pd.Series, float]:
    """The same in the plain words of pandas and scipy: one row a key, days, and DeLong with its six rankings."""
    from scipy.stats import rankdata

    frame = pairs.sort_values("known_at").drop_duplicates("key", keep="last").sort_values(["event_time", "key"])
    label = frame["label"].to_numpy()
    scores = [frame[name].to_numpy() for name in ("champion", "challenger")]
    champion, challenger = (loss("log_loss", label, score) for score in scores)
    days = pd.Series(champion - challenger).groupby(frame["event_time"].dt.floor("D").to_numpy()).mean()
    positive = label > 0.5
    m, n = positive.sum(), (~positive).sum()
    above, below = [], []
    for score in scores:
        ranks = rankdata(score)
        above.append((ranks[positive] - rankdata(score[positive])) / n)
        below.append(1 - (ranks[~positive] - rankdata(score[~positive])) / m)
    covariance = np.cov(np.stack(above)) / m + np.cov(np.stack(below)) / n
    return days, float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])


def _scoring() -> Line:
    """The flights model (150 trees, 12 columns, three of them texts) on a million logged rows in order of time."""
    past = flights.between(flights.START, flights.START + timedelta(days=56))
    onnx = to_onnx(flights.recipe().fit(flights.inputs(past), flights.LABEL, 7), flights.features())
    year = flights.rows()
    rows = pd.concat([year] * 3, ignore_index=True).iloc[:1_000_000]
    alone, ours = Scorer(onnx, workers=1), Scorer(onnx)
    for scorer in (alone, ours):
        scorer(rows[:10_000], flights.features())  # sessions are made once
    one = len(rows) / _seconds(lambda: alone(rows, flights.features()))
    best = len(rows) / min(_seconds(lambda: ours(rows, flights.features())) for _ in range(2))
    name = "scoring of 1e6 rows on ONNX Runtime"
    reference = f"one thread, {one:,.0f} rows/s"
    return Line("shadow", name, best, "rows/s", "≥ 600 000 rows/s", best >= 600_000, best / one, reference)


def day_spread() -> float:
    """What a day's shared part of d is to a request's own, in the flights: standard deviations, January against March.

    d: log-loss of the model of January less that of one refitted at the end of February, on every flight of March.
    Variance components of the one-way layout with unequal days. Source: Searle, Casella, McCulloch 1992, section 3.6.
    """
    march = flights.between(flights.START + timedelta(days=59), flights.START + timedelta(days=90))
    label = march[flights.LABEL].to_numpy(np.float64)
    found = []
    for days in (31, 58):
        past = flights.between(flights.START, flights.START + timedelta(days=days))
        estimator = flights.recipe().fit(flights.inputs(past), flights.LABEL, 7)
        answers = estimator.predict_proba(as_served(march, flights.features()))[:, 1]
        found.append(loss("log_loss", label, answers))
    d = pd.Series(found[0] - found[1]).groupby(march["event_time"].dt.floor("D").to_numpy())
    sizes, means = d.size().to_numpy(np.float64), d.mean().to_numpy()
    days_n, rows = len(sizes), sizes.sum()
    within = float((d.var().to_numpy() * (sizes - 1)).sum() / (rows - days_n))
    between = float((sizes * (means - (sizes @ means) / rows) ** 2).sum() / (days_n - 1))
    effective = (rows - (sizes**2).sum() / rows) / (days_n - 1)
    return float(np.sqrt(max((between - within) / effective, 0.0) / within))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
