"""Need-based routing through the state machine: simulated traffic, split as the gateway would split it."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from assets.canary.coverage import Coverage, Seen
from assets.canary.events import Loaded, Observed, WeightsConfirmed
from assets.canary.looks import Look
from assets.canary.rollout import Phase, Rollout, begin, share
from assets.canary.settings import CanarySettings, CoverageSettings
from assets.canary.step import step

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ZIPF = 1 / np.arange(1, 201)
ZIPF /= ZIPF.sum()


@dataclass(frozen=True)
class World:
    """pi: traffic by cell; errors: (K,) rate of both arms; worse: factor of the challenger's; named: share of requests
    that carry the header.
    """

    pi: NDArray[np.float64]
    errors: NDArray[np.float64]
    worse: float = 1.0
    named: float = 1.0


def rules(need_percent: int, ladder: tuple[int, ...] = (1, 100), wanted: float = 0.95) -> CanarySettings:
    limits = CoverageSettings(cells=200, covered=(wanted,), could_fail=(1.0,), need_percent=need_percent)
    return CanarySettings(ladder=ladder, coverage=limits, hold_deadline_s=1e9, rung_deadline_s=1e9)


def start(settings: CanarySettings, world: World) -> Rollout:
    reference = tuple((1e6 * world.pi).astype(int).tolist())
    coverage = ("cells", Coverage(reference, (1,) * 24))
    rollout = begin("m", 2, "green", "p", "d", settings, NOW, champion=(1, "blue"), coverage=coverage)
    return step(rollout, Loaded(), NOW)


def look(rollout: Rollout, world: World, requests: int, rng: np.random.Generator) -> Observed:
    """What the driver would tell of so many requests under this rollout's weights."""
    traffic = rng.multinomial(requests, world.pi)
    favoured = np.isin(np.arange(len(world.pi)), rollout.needed)
    named = rng.binomial(traffic, world.named) * favoured
    part, rung = rollout.settings.coverage.need_percent / 100, share(rollout)
    rest = _arms(traffic - named, rung, rung, world, rng)
    return Observed(*rest, _arms(named, part, rung, world, rng) if rollout.needed else None)


def _arms(
    both: NDArray[np.int64], part: float, rung: float, world: World, rng: np.random.Generator
) -> tuple[Look, Seen]:
    mine = rng.binomial(both, part)
    bad = int(rng.binomial(mine, np.minimum(world.errors * world.worse, 1)).sum())
    theirs = int(rng.binomial(both - mine, world.errors).sum())
    counts = int(mine.sum()), int((both - mine).sum())
    seen = Seen(part, tuple(mine.tolist()), tuple(both.tolist()), 0, (0,) * 24, rung)
    return Look(part, counts[0], bad, 0, counts[1], theirs, 0, 1.0), seen


def run(settings: CanarySettings, world: World, seed: int, requests: int = 1000, looks: int = 10_000) -> Rollout:
    """Until it leaves its rung for 100 %, or for good."""
    rng, rollout = np.random.default_rng(seed), start(settings, world)
    for _ in range(looks):
        if rollout.phase in (Phase.PROMOTING, Phase.ROLLING_BACK):
            break
        rollout = step(rollout, WeightsConfirmed(), NOW)
        rollout = step(rollout, look(rollout, world, requests, rng), NOW)
    return rollout


def pooled(rollout: Rollout) -> Rollout:
    """The same looks as a judge would see them who knows one share only: all requests together at the mean share."""
    total = rollout.guards.looks[0]
    for item in rollout.guards.looks[1:]:
        total = replace(item, share=total.share).plus(total)
    part = total.canary_requests / total.requests
    return replace(rollout, guards=type(rollout.guards)((replace(total, share=part),)))
