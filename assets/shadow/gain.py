"""What the challenger gains on each request, by block: the mean, its bounds, and what more labels would show."""

import math
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from assets.shadow.confidence import (
    NO_VARIATION,
    Running,
    fixed_radius,
    growth_bets,
    log_wealth,
    returning,
    running,
    sequence_radius,
)
from assets.shadow.loss import failed_loss, largest_difference, losses
from assets.shadow.pairs import MODELS, Usable, answered, blocks, microseconds, scores
from assets.shadow.settings import ShadowSettings

Floats = NDArray[np.float64]

# With this many spreads above the bound, a true gain is found four times in five.
POWER_80 = 0.8416
# A slope within two of its own standard errors counts as none.
SLOPE_SURE = 4.0
# Further than this nobody waits: ten years of days.
FAR = 3650


@dataclass(frozen=True, slots=True)
class Gain:
    """Difference champion loss - challenger loss by block; positive: the challenger is better.

    difference, block: (n,) of each request; sums, rows, labels: (b,) of each block (a failed request is a row without
    a label); losses: (n,) of each model.
    """

    starts: list[datetime]
    sums: Floats
    rows: Floats
    labels: Floats
    path: Running
    difference: Floats
    block: NDArray[np.intp]
    losses: dict[str, Floats]

    @property
    def last(self) -> tuple[float, float, float]:
        """Mean, spread and effective blocks after the last block."""
        return float(self.path.mean[-1]), float(self.path.spread[-1]), float(self.path.effective[-1])


def measured(data: Usable, settings: ShadowSettings) -> Gain:
    """The gain on every request of `data`. A request that neither model answered costs both the same: it gains 0."""
    label = data.frame["label"].to_numpy(np.float64)
    found = {name: _losses(label, scores(data.frame[name]), data.failed, settings) for name in MODELS}
    difference = found["champion"] - found["challenger"]
    if data.failed.any():
        neither = data.failed & ~np.isfinite(difference)
        difference = np.where(neither, 0.0, difference)
    block, starts = blocks(microseconds(data.frame["event_time"]), settings)
    rows = np.bincount(block, minlength=len(starts)).astype(np.float64)
    sums = np.bincount(block, difference, minlength=len(starts)).astype(np.float64)
    failed = np.bincount(block, data.failed, minlength=len(starts))
    again = None
    if settings.cluster is not None and len(data.frame):
        import pandas as pd

        entity = pd.factorize(data.frame[settings.cluster], use_na_sentinel=False)[0]
        again = returning(difference, block, entity)
    return Gain(starts, sums, rows, rows - failed, running(sums, rows, again), difference, block, found)


def _losses(label: Floats, score: Floats, failed: NDArray[np.bool_], settings: ShadowSettings) -> Floats:
    """A model without an answer to a failed request is charged for it; one that has it, but no label, is not judged."""
    if not failed.any():
        return losses(settings, label, score)
    known = np.isfinite(label) & answered(score)
    found = np.full(len(label), failed_loss(settings))
    found[known] = losses(settings, label[known], score[known])
    return found


def radius(effective: float, settings: ShadowSettings, level: float | None = None) -> float:
    """In spreads; infinite below two blocks' worth of data. level: the settings' own unless given."""
    if effective < 2:
        return math.inf
    if settings.one_look:
        return fixed_radius(effective, level or settings.level)
    return sequence_radius(effective, settings.planned_blocks, level or settings.level)


def bounds(mean: float, spread: float, effective: float, settings: ShadowSettings) -> tuple[float, float]:
    """One-sided bounds on the gain a request, each at the settings' level."""
    half = spread * radius(effective, settings) if spread > NO_VARIATION else 0.0
    return mean - half, mean + half


def wealth(gain: Gain, settings: ShadowSettings, sign: int) -> float | None:
    """log K after the last block against 'the mean of a block is on the wrong side of the threshold'.

    Here a block counts once, whatever its size: a bet can't be weighed by a size that is known only afterwards.
    None where the loss has no bound to bet within.
    """
    largest = largest_difference(settings)
    if not math.isfinite(largest):
        return None
    x = (sign * gain.sums / gain.rows + largest) / (2 * largest)
    m = (sign * settings.threshold + largest) / (2 * largest)
    return float(log_wealth(x, m, growth_bets(x, m))[-1])


def detectable_gain(gain: Gain, settings: ShadowSettings) -> float | None:
    """Smallest true gain a request that this many blocks would find four times in five; None while unknown."""
    if len(gain.rows) < 2 or gain.path.effective[-1] < 2 or gain.path.spread[-1] <= NO_VARIATION:
        return None
    _, spread, effective = gain.last
    return settings.threshold + spread * (radius(effective, settings) + POWER_80 / math.sqrt(effective))


def blocks_needed(gain: Gain, settings: ShadowSettings) -> int | None:
    """Blocks in all after which a gain as large as the one seen would pass; None: not within ten years."""
    if len(gain.rows) < 2:
        return None
    mean, spread, effective = gain.last
    margin = mean - settings.threshold
    if margin <= 0 or not math.isfinite(spread):
        return None
    per_block = effective / len(gain.rows)
    few, many = len(gain.rows), FAR
    if radius(many * per_block, settings) * spread >= margin:
        return None
    while few < many:
        middle = (few + many) // 2
        enough = radius(middle * per_block, settings) * spread < margin
        few, many = (few, middle) if enough else (middle + 1, many)
    return many


def labels_needed(gain: Gain, settings: ShadowSettings) -> int | None:
    """Labels beyond those there are after which a gain as large as the one seen would pass; None: not foreseeable."""
    total = blocks_needed(gain, settings)
    if total is None:
        return None
    more = max(total, settings.min_blocks) - len(gain.rows)
    return max(round(more * float(gain.labels.mean())), settings.min_labels - int(gain.labels.sum()), 0)


def effective_labels(gain: Gain) -> float | None:
    """Independent requests that would give the mean the same variance; None without variation between blocks."""
    if len(gain.rows) < 2 or not gain.path.spread[-1] > NO_VARIATION:
        return None
    _, spread, effective = gain.last
    return min(float(np.var(gain.difference)) / (spread**2 / effective), float(gain.rows.sum()))


def heading(gain: Gain) -> float | None:
    """Where the gain stands at the end of the window: its mean, moved along its slope as far as the slope is sure.

    A gain that shrinks day by day is of the past, one that grows is only beginning. The slope over blocks, weighted by
    rows, is shrunk by 1 - SLOPE_SURE / F, F its square in units of its own variance: noise moves nothing. None without
    any block. Source: the positive-part estimator of James & Stein 1961, with a dead zone.
    """
    if not len(gain.rows):
        return None
    mean = float(gain.path.mean[-1])
    if len(gain.rows) < 3:
        return mean
    days = np.array([(start - gain.starts[0]).total_seconds() / 86_400 for start in gain.starts])
    days = days - float(gain.rows @ days) / float(gain.rows.sum())
    along, apart = float(gain.rows @ days**2), gain.sums / gain.rows - mean
    slope = float(gain.rows * days @ apart) / along
    noise = float(gain.rows @ (apart - slope * days) ** 2) / (len(days) - 2)
    kept = max(0.0, 1 - SLOPE_SURE * noise / (slope**2 * along)) if slope else 0.0
    return mean + kept * slope * float(days[-1])


def rests_on_one_block(gain: Gain, settings: ShadowSettings) -> bool:
    """Whether the mean without its best block no longer exceeds the threshold: what a heavy tail looks like."""
    best = int(np.argmax(gain.sums - settings.threshold * gain.rows))
    rows = gain.rows.sum() - gain.rows[best]
    return bool(rows > 0 and (gain.sums.sum() - gain.sums[best]) / rows <= settings.threshold)
