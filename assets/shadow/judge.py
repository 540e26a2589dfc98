"""Does retraining pay? The challenger's loss against the champion's on the same requests, day by day."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.decision import Decision, Evidence
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
from assets.shadow.loss import LossName, delong, largest_difference, loss
from assets.shadow.pairs import Usable, block_starts, usable
from assets.shadow.settings import BLOCK_HOURS, ShadowSettings
from assets.shadow.slices import slices
from assets.shadow.worth import worth
from assets.verdict import Verdict

Floats = NDArray[np.float64]

# With this many spreads above the bound, a true gain is found four times in five.
POWER_80 = 0.8416
# Further than this nobody waits: ten years of days.
FAR = 3650


@dataclass(frozen=True, slots=True)
class Gain:
    """Difference champion loss - challenger loss by block; positive: the challenger is better."""

    starts: list[datetime]
    sums: Floats
    rows: Floats
    path: Running
    variance: float
    difference: Floats


def judge(
    model: str, pairs: pd.DataFrame, settings: ShadowSettings, as_of: datetime, inputs: Mapping[str, str]
) -> Decision:
    """PASS: retraining pays. FAIL: it does not. INCONCLUSIVE: what is still missing. ERROR: a score is no number.

    pairs: one row a logged request of `settings.window(as_of)`: key, event_time, known_at, label (0 or 1, NaN while
    unknown), champion and challenger (probabilities of class 1). The challenger must have been fitted on what was
    known before the window. Columns that `settings` names (slices, cluster) beside these. ValueError as in `usable`.
    superiority, non_inferiority: a confidence sequence over blocks, valid however often it is asked.
    expected_gain: statistics section 3b, lesson 2. What the gate should minimise is expected loss, and a missed gain
    is a loss too, so the level is the price of a wrong yes and not a convention. Each decision looks once, at the end
    of a window of its own, so a Student quantile over blocks, fixed in advance, is valid; asking again about the same
    window after every label would not be.
    """
    data = usable(pairs, settings, as_of)
    if data.counts["unscored"]:
        why = f"{data.counts['unscored']} of {data.counts['labels']} requests have no score from one of the models"
        broken = Evidence("labels", Verdict.ERROR, why, data.counts["unscored"], 0)
        return Decision(model, "shadow", as_of, why, (broken,), inputs, {"counts": dict(data.counts)})
    gain = _gain(data.frame, settings)
    details = _details(data, gain, settings)
    evidence = [_labels(data, gain, settings)]
    if evidence[0].verdict is Verdict.PASS:
        evidence.append(_verdict(gain, settings))
        if settings.slices:
            sliced, details["slices"] = _sliced(data, gain, settings)
            evidence.append(sliced)
        if settings.worth is not None and evidence[1].verdict is Verdict.PASS:
            evidence.append(worth(float(gain.path.mean[-1]), _requests_per_day(data, gain, settings), settings.worth))
    return Decision(model, "shadow", as_of, _why(evidence), tuple(evidence), inputs, details)


def _why(evidence: Sequence[Evidence]) -> str:
    """A yes by its gain and worth; a no by what stands in the way, the most severe first."""
    against = sorted((item for item in evidence if item.verdict is not Verdict.PASS), key=lambda item: -item.verdict)
    if not against:
        return "; ".join(item.why for item in evidence[1:])
    return "not retrained: " + "; ".join(item.why for item in against)


def _requests_per_day(data: Usable, gain: Gain, settings: ShadowSettings) -> float:
    mature = data.counts["labels"] + data.counts["missing_labels"]
    return mature / (len(gain.rows) * BLOCK_HOURS[settings.block] / 24)


def _sliced(data: Usable, gain: Gain, settings: ShadowSettings) -> tuple[Evidence, list[dict[str, Any]]]:
    blocks = block_starts(data.frame["event_time"], settings)
    return slices(
        data.frame, gain.difference, blocks, settings, lambda effective, level: _radius(effective, settings, level)
    )


def _gain(frame: pd.DataFrame, settings: ShadowSettings) -> Gain:
    label = frame["label"].to_numpy(np.float64)
    champion, challenger = (
        loss(settings.loss, label, frame[name].to_numpy(np.float64), settings.payoff) for name in _MODELS
    )
    difference = champion - challenger
    grouped = pd.Series(difference).groupby(block_starts(frame["event_time"], settings).array)
    starts = [start.to_pydatetime() for start in grouped.size().index]
    sums, rows = grouped.sum().to_numpy().astype(np.float64), grouped.size().to_numpy().astype(np.float64)
    again = None
    if settings.cluster is not None and len(frame):
        entity = pd.factorize(frame[settings.cluster], use_na_sentinel=False)[0]
        again = returning(difference, grouped.ngroup().to_numpy().astype(np.intp), entity)
    variance = float(np.var(difference)) if len(difference) else 0.0
    return Gain(starts, sums, rows, running(sums, rows, again), variance, difference)


_MODELS = ("champion", "challenger")
_KINDS: tuple[LossName, ...] = ("log_loss", "brier")


def _labels(data: Usable, gain: Gain, settings: ShadowSettings) -> Evidence:
    """Is there enough to decide on? Said before any bound is looked at."""
    n, blocks = data.counts["labels"], len(gain.rows)
    if data.missing_share > settings.max_missing_labels:
        why = (
            f"{data.missing_share:.0%} of the mature requests have no label (at most {settings.max_missing_labels:.0%} "
            "may lack one): labels that come for some requests only may favour a model"
        )
        return Evidence("labels", Verdict.INCONCLUSIVE, why, data.missing_share, settings.max_missing_labels)
    if n < settings.min_labels or blocks < settings.min_blocks:
        missing = max(settings.min_labels - n, 0), max(settings.min_blocks - blocks, 0)
        why = (
            f"{n} labels in {blocks} blocks of {settings.block}: {missing[0]} labels and {missing[1]} blocks more are "
            f"needed; {_detectable_sentence(gain, settings)}"
        )
        return Evidence("labels", Verdict.INCONCLUSIVE, why, n, settings.min_labels)
    why = f"{n} labels in {blocks} blocks of {settings.block} are enough to decide on"
    return Evidence("labels", Verdict.PASS, why, n, settings.min_labels)


def _verdict(gain: Gain, settings: ShadowSettings) -> Evidence:
    mean, spread, effective = (float(part[-1]) for part in (gain.path.mean, gain.path.spread, gain.path.effective))
    if spread <= NO_VARIATION:
        why = (
            f"the challenger gains {mean:+.5f} in every one of {len(gain.rows)} blocks alike: nothing varies, so no "
            f"number of labels decides; {_detectable_sentence(gain, settings)}"
        )
        return Evidence("gain", Verdict.INCONCLUSIVE, why, mean, settings.threshold)
    lower, upper = _bounds(mean, spread, effective, settings)
    passed, failed = lower > settings.threshold, upper < settings.threshold
    if settings.method == "betting" and settings.rule != "expected_gain":
        needed = math.log(1 / settings.alpha)
        passed, failed = _log_wealth(gain, settings, 1) >= needed, _log_wealth(gain, settings, -1) >= needed
    said = (
        f"the challenger gains {mean:+.5f} {settings.loss} a request, at least {lower:+.5f} "
        f"(asked: more than {settings.threshold:+.5f}; level {settings.level:g})"
    )
    if passed:
        return Evidence("gain", Verdict.PASS, f"retraining pays: {said}", lower, settings.threshold)
    if failed:
        why = f"retraining does not pay: the challenger gains at most {upper:+.5f} {settings.loss} a request"
        return Evidence("gain", Verdict.FAIL, why, upper, settings.threshold)
    why = f"undecided: {said}; {_needed_sentence(gain, settings)}; {_detectable_sentence(gain, settings)}"
    return Evidence("gain", Verdict.INCONCLUSIVE, why, lower, settings.threshold)


def _radius(effective: float, settings: ShadowSettings, level: float | None = None) -> float:
    """In spreads; infinite below two blocks' worth of data. level: the settings' own unless given."""
    if effective < 2:
        return math.inf
    if settings.rule == "expected_gain":
        return fixed_radius(effective, level or settings.level)
    return sequence_radius(effective, settings.planned_blocks, level or settings.level)


def _bounds(mean: float, spread: float, effective: float, settings: ShadowSettings) -> tuple[float, float]:
    half = spread * _radius(effective, settings) if spread > NO_VARIATION else 0.0
    return mean - half, mean + half


def _log_wealth(gain: Gain, settings: ShadowSettings, sign: int) -> float:
    """log K after the last block against 'the mean of a block is on the wrong side of the threshold'.

    Here a block counts once, whatever its size: a bet can't be weighed by a size that is known only afterwards.
    """
    largest = largest_difference(settings.loss, settings.payoff)
    x = (sign * gain.sums / gain.rows + largest) / (2 * largest)
    m = (sign * settings.threshold + largest) / (2 * largest)
    return float(log_wealth(x, m, growth_bets(x, m))[-1])


def detectable_gain(gain: Gain, settings: ShadowSettings) -> float | None:
    """Smallest true gain a request that this many blocks would find four times in five; None while unknown."""
    if len(gain.rows) < 2 or gain.path.effective[-1] < 2 or gain.path.spread[-1] <= NO_VARIATION:
        return None
    effective, spread = float(gain.path.effective[-1]), float(gain.path.spread[-1])
    return settings.threshold + spread * (_radius(effective, settings) + POWER_80 / math.sqrt(effective))


def blocks_needed(gain: Gain, settings: ShadowSettings) -> int | None:
    """Blocks in all after which a gain as large as the one seen would pass; None: not within ten years."""
    margin = float(gain.path.mean[-1]) - settings.threshold
    if margin <= 0 or not math.isfinite(float(gain.path.spread[-1])):
        return None
    per_block = float(gain.path.effective[-1]) / len(gain.rows)
    few, many = len(gain.rows), FAR
    if _radius(many * per_block, settings) * gain.path.spread[-1] >= margin:
        return None
    while few < many:
        middle = (few + many) // 2
        enough = _radius(middle * per_block, settings) * gain.path.spread[-1] < margin
        few, many = (few, middle) if enough else (middle + 1, many)
    return many


def _needed_sentence(gain: Gain, settings: ShadowSettings) -> str:
    total = blocks_needed(gain, settings)
    if total is None:
        return "at the gain seen so far no number of blocks would prove it"
    more = max(total - len(gain.rows), 1)
    return f"at the gain seen so far {more} blocks (about {more * gain.rows.mean():.0f} labels) more would decide"


def _detectable_sentence(gain: Gain, settings: ShadowSettings) -> str:
    smallest = detectable_gain(gain, settings)
    if smallest is None:
        return "the smallest gain that could be found is not known until blocks differ"
    return f"the smallest gain that could be found now is {smallest:.5f} a request"


def _details(data: Usable, gain: Gain, settings: ShadowSettings) -> dict[str, Any]:
    label = data.frame["label"].to_numpy(np.float64)
    scores = {name: data.frame[name].to_numpy(np.float64) for name in _MODELS}
    auc = delong(label, *scores.values())
    path = []
    for index, start in enumerate(gain.starts):
        mean, spread, effective = (
            float(part[index]) for part in (gain.path.mean, gain.path.spread, gain.path.effective)
        )
        lower, upper = _bounds(mean, spread, effective, settings) if effective >= 2 else (None, None)
        path.append({"block": start, "mean": mean, "lower": lower, "upper": upper, "labels": int(gain.rows[index])})
    spread = float(gain.path.spread[-1]) if len(gain.rows) > 1 else math.nan
    return {
        "counts": dict(data.counts),
        "blocks": len(gain.rows),
        "path": path,
        "threshold": settings.threshold,
        "mean_gain": float(gain.path.mean[-1]) if path else None,
        "detectable_gain": detectable_gain(gain, settings),
        "effective_labels": _effective_labels(gain, spread),
        "log_wealth": _log_wealth(gain, settings, 1) if path else None,
        "loss": {
            kind: {name: float(loss(kind, label, score).mean()) if path else None for name, score in scores.items()}
            for kind in _KINDS
        },
        "auc": asdict(auc) if auc else None,
        "settings": settings.model_dump(mode="json"),
    }


def _effective_labels(gain: Gain, spread: float) -> float | None:
    """Independent requests that would give the mean the same variance; None without variation between blocks."""
    if not spread > NO_VARIATION:
        return None
    variance_of_mean = spread**2 / float(gain.path.effective[-1])
    return min(gain.variance / variance_of_mean, float(gain.rows.sum()))
