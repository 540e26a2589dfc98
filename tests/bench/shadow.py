"""Shadow: how often a look at every label is wrong, how soon it is right, and how fast a million rows are compared."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.shadow.confidence import Running, running, sequence_radius
from assets.shadow.judge import judge
from assets.shadow.settings import ShadowSettings
from tests.bench.lines import Line, at_least, at_most

Floats = NDArray[np.float64]

RUNS, LABELS, FIRST_LOOK = 1000, 20_000, 200
ALPHA = 0.05
# A day's shared part has a fifth of a request's own spread: 100 requests of a day then tell no more than 21.
DAYS, A_DAY, DAY_SPREAD = 56, 100, 0.2
# statistics.md, section 3: asymptotic confidence sequence, looks up to 20 000 labels.
TABLE_POWER, TABLE_LABELS, EFFECT = 0.99, 5_900, 0.036


def lines() -> Iterator[Line]:
    """Two minutes or so on one core."""
    rng = np.random.default_rng(20130131)
    yield from _independent(rng)
    yield from _by_day(rng)
    yield _million(rng)


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
    """Requests share their day's weather; blocks are days, and the day that is going on counts as far as it got."""
    radius = _radii(np.linspace(2, DAYS, 2000), DAYS)
    grid = np.linspace(2, DAYS, 2000)
    wrong = 0
    for run in range(RUNS):
        values = rng.normal(0, 1, (DAYS, A_DAY)) + rng.normal(0, DAY_SPREAD, (DAYS, 1))
        path = _every_label(values)
        if run == 0:
            _agrees(values, path)
        looks = slice(6 * A_DAY, None)
        bound = path.spread[looks] * np.interp(path.effective[looks], grid, radius)
        wrong += bool((path.mean[looks] > bound).any())
    yield at_most("shadow", "A/A false yes with day effects, every label", _upper(wrong), "%", 100 * ALPHA)


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
    n, start = 1_000_000, datetime(2013, 3, 1, tzinfo=UTC)
    times = pd.Series(pd.to_datetime(start) + pd.to_timedelta(np.sort(rng.random(n)) * 14, unit="D"))
    truth = rng.uniform(0.05, 0.75, n)
    pairs = pd.DataFrame(
        {
            "key": np.arange(n),
            "event_time": times,
            "known_at": times + timedelta(hours=2),
            "label": (rng.random(n) < truth).astype(float),
            "champion": np.clip(truth + rng.normal(0, 0.1, n), 0, 1),
            "challenger": np.clip(truth + rng.normal(0, 0.05, n), 0, 1),
        }
    )
    settings = ShadowSettings(rule="expected_gain")
    judge("bench", pairs[:20_000], settings, start + timedelta(days=15), {})  # imports count once a process
    seconds = [_seconds(lambda: judge("bench", pairs, settings, start + timedelta(days=15), {})) for _ in range(3)]
    sorting = _seconds(lambda: np.argsort(truth, kind="stable"))
    best = min(seconds)
    name = "comparison of 1e6 paired rows, best of 3"
    return Line("shadow", name, best, "s", "≤ 2 s", best <= 2, best / sorting, "argsort of as many numbers")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
