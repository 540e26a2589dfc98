"""Coverage of the feature space: what it costs to make and to count, and how many requests it takes."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import pandas as pd

from assets.canary.curves import expected, lowest, reached, requests_needed, shares
from assets.cells import build_cells
from tests import need_based
from tests.bench.lines import Line, at_least, at_most

FEATURES = {"kind": "string", **{f"x{number}": "float" for number in range(11)}}
ROWS, CELLS, LEAST = 1_000_000, 200, 30
T = TypeVar("T")
ZIPF = 1 / np.arange(1, CELLS + 1)


def lines() -> Iterator[Line]:
    """About twenty seconds."""
    frame, scores = _rows(ROWS)
    reference = frame.head(50_000)
    build_cells(reference.head(1000), FEATURES, scores[:1000], 2)  # imports the library that grows trees
    cells, build_s = _timed(lambda: build_cells(reference, FEATURES, scores[: len(reference)], CELLS))
    name = f"{CELLS} cells of {len(reference)} reference rows, {len(FEATURES)} features: made, one core"
    yield at_most("canary", name, build_s, "s", 1)
    _, assign_s = min((_timed(lambda: cells.assign(frame)) for _ in range(3)), key=lambda found: found[1])
    yield at_least("canary", "rows given their cell, one core", ROWS / assign_s, "rows/s", 1e6)

    uniform, zipf = shares([1] * CELLS), ZIPF / ZIPF.sum()
    curve, seen = expected(uniform, 500, 1), requests_needed(zipf, 1, 0.95)
    yield Line("canary", "coverage, 200 equal cells: E C_1(500)", curve, "", "= .9184", round(curve, 4) == 0.9184)
    yield Line("canary", "coverage, 200 Zipf cells: n for E C_1 = .95", seen, "", "= 979", seen == 979)
    rate, broken = assignment()
    yield at_most("canary", "coverage, a random assignment called broken", 100 * rate, "%", 1.6)
    yield at_least("canary", "coverage, one that spares every tenth cell called broken", 100 * broken, "%", 95)

    world = need_based.World(zipf, np.zeros(CELLS))
    found = [need_based.run(need_based.rules(50), world, seed, requests=350) for seed in (1, 2, 3)]
    mine = float(np.mean([sum(rollout.coverage.seen) for rollout in found if rollout.coverage]))
    even = requests_needed(zipf, LEAST, 0.95) or 0
    name = "need-based routing, looks of 350 requests through the state machine: canary requests to C_30 = .95"
    yield Line("canary", name, mine, "", "≤ 6500", mine <= 6500, mine / even, f"proportional, {even}")


def assignment(runs: int = 1000) -> tuple[float, float]:
    """Share of runs whose assignment is called broken: where it is random, and where every tenth cell is spared."""
    rng, pi = np.random.default_rng(1), ZIPF / ZIPF.sum()
    found = np.zeros(2)
    traffic = rng.multinomial(30_000, pi)
    least = lowest(pi, reached([(0.5, traffic)], LEAST), 0.01)
    for _ in range(runs):
        seen = rng.binomial(traffic, 0.5)
        spared = np.where(np.arange(CELLS) % 10 == 9, 0, seen)
        found += [pi[count >= LEAST].sum() < least - 1e-9 for count in (seen, spared)]
    random, broken = (found / runs).tolist()
    return random, broken


def _rows(count: int) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({f"x{number}": rng.normal(size=count).astype(np.float32) for number in range(11)})
    frame["kind"] = np.array([f"kind {number}" for number in range(40)], dtype=object)[rng.integers(0, 40, count)]
    frame["event_time"] = pd.date_range("2024-01-01", periods=count, freq="s", tz="UTC")
    score = 1 / (1 + np.exp(-(frame["x0"] + frame["x1"] * frame["x2"] + (frame["x3"] > 1)).to_numpy(float)))
    return frame, score


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """Seconds of a processor: others share the machine."""
    began = time.process_time()
    return call(), time.process_time() - began


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
