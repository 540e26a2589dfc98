"""Does retraining pay? The challenger's loss against the champion's on the same requests, day by day."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.decision import Decision, Evidence
from assets.shadow.auc import delong
from assets.shadow.confidence import NO_VARIATION
from assets.shadow.expected import Forecast, Pair, forecast, weigh
from assets.shadow.gain import (
    Gain,
    blocks_needed,
    bounds,
    detectable_gain,
    effective_labels,
    heading,
    labels_needed,
    measured,
    radius,
    rests_on_one_block,
    wealth,
)
from assets.shadow.loss import failed_loss, largest_difference, losses
from assets.shadow.missing import Missing, compare
from assets.shadow.pairs import MODELS, Usable, scores, usable
from assets.shadow.settings import BLOCK_HOURS, LOSSES, LossName, ShadowSettings
from assets.shadow.slices import slices
from assets.shadow.worth import loop_cost, worth
from assets.verdict import Verdict

Floats = NDArray[np.float64]


def judge(
    model: str,
    pairs: pd.DataFrame,
    settings: ShadowSettings,
    as_of: datetime,
    inputs: Mapping[str, str],
    history: Sequence[Pair] = (),
) -> Decision:
    """PASS: retraining pays. FAIL: it does not. INCONCLUSIVE: what is still missing. ERROR: a score is no number.

    pairs: one row a logged request of `settings.window(as_of)`: key, event_time, known_at, label (NaN while unknown),
    champion and challenger (what they answer, by `settings.task`). The challenger must have been fitted on what was
    known before the window. Beside these the columns that `settings` names (slices, cluster) and those that `usable`
    knows (failed, reports, corrected). ValueError as in `usable`.
    superiority, non_inferiority: a confidence sequence over blocks, valid however often it is asked.
    expected_gain: statistics section 3b, lesson 2. What the gate should minimise is expected loss, and a missed gain
    is a loss too, so the level is the price of a wrong yes and not a convention. Each decision looks once, at the end
    of a window of its own, so a Student quantile over blocks, fixed in advance, is valid; asking again about the same
    window after every label would not be.
    expected_loss: lesson 3. `history`, the pairs of past decisions known at `as_of`, says what becomes of a gain like
    the one at the end of this window.
    """
    data = usable(pairs, settings, as_of)
    if data.counts["unscored"]:
        why = f"{data.counts['unscored']} of {data.counts['labels']} requests have no score from one of the models"
        broken = Evidence("labels", Verdict.ERROR, why, data.counts["unscored"], 0)
        return Decision(model, "shadow", as_of, why, (broken,), inputs, {"counts": dict(data.counts)})
    gain, missing = measured(data, settings), _missing(data)
    details = _details(data, gain, missing, settings)
    evidence = [_labels(data, gain, missing, settings)]
    if evidence[0].verdict is Verdict.PASS:
        found = _forecast(gain, history, settings)
        if found is not None:
            details["forecast"] = asdict(found) | {"history": [pair.to_dict() for pair in history]}
        evidence.append(_verdict(data, gain, found, settings))
        if settings.slices:
            sliced, details["slices"] = slices(
                data.frame, gain.difference, gain.block, settings, lambda blocks, level: radius(blocks, settings, level)
            )
            evidence.append(sliced)
        if settings.worth is not None and evidence[1].verdict is Verdict.PASS:
            evidence.append(_worth(data, gain, found, settings))
    return Decision(model, "shadow", as_of, _why(evidence, missing), tuple(evidence), inputs, details)


def _why(evidence: Sequence[Evidence], missing: Missing | None) -> str:
    """A yes by its gain and worth; a no by what stands in the way, the most severe first. A warning comes last."""
    against = sorted((item for item in evidence if item.verdict is not Verdict.PASS), key=lambda item: -item.verdict)
    said = "; ".join(item.why for item in against or evidence[1:])
    warning = f"; warning: {missing.why}" if missing is not None and missing.apart else ""
    return f"not retrained: {said}{warning}" if against else said + warning


def _missing(data: Usable) -> Missing | None:
    if not len(data.unlabelled):
        return None
    return compare(data.frame["champion"].to_numpy(np.float64)[~data.failed], data.unlabelled)


def _requests_per_day(data: Usable, gain: Gain, settings: ShadowSettings) -> float:
    mature = data.counts["labels"] + data.counts["missing_labels"] + data.counts["failed"]
    return mature / (len(gain.rows) * BLOCK_HOURS[settings.block] / 24)


def _labels(data: Usable, gain: Gain, missing: Missing | None, settings: ShadowSettings) -> Evidence:
    """Is there enough to decide on? Said before any bound is looked at."""
    n, blocks = data.counts["labels"], len(gain.rows)
    if data.missing_share > settings.max_missing_labels:
        why = (
            f"{data.missing_share:.0%} of the mature requests have no label (at most {settings.max_missing_labels:.0%} "
            "may lack one): labels that come for some requests only may favour a model"
        )
        return Evidence("labels", Verdict.INCONCLUSIVE, why, data.missing_share, settings.max_missing_labels)
    if n < settings.min_labels or blocks < settings.min_blocks:
        short = max(settings.min_labels - n, 0), max(settings.min_blocks - blocks, 0)
        why = (
            f"{n} labels in {blocks} blocks of {settings.block}: {short[0]} labels and {short[1]} blocks more are "
            f"needed; {_detectable_sentence(gain, settings)}"
        )
        return Evidence("labels", Verdict.INCONCLUSIVE, why, n, settings.min_labels)
    why = f"{n} labels in {blocks} blocks of {settings.block} are enough to decide on"
    if failed := data.counts["failed"]:
        why += f"; {failed} requests failed and cost both models the same"
    if missing is not None and missing.apart:
        why += f"; {missing.why}"
    return Evidence("labels", Verdict.PASS, why, n, settings.min_labels)


def _forecast(gain: Gain, history: Sequence[Pair], settings: ShadowSettings) -> Forecast | None:
    if settings.rule != "expected_loss" or gain.path.spread[-1] <= NO_VARIATION:
        return None
    return forecast(heading(gain) or 0.0, history, settings.learning)


def _verdict(data: Usable, gain: Gain, found: Forecast | None, settings: ShadowSettings) -> Evidence:
    mean, spread, effective = gain.last
    if spread <= NO_VARIATION:
        why = (
            f"the challenger gains {mean:+.5f} in every one of {len(gain.rows)} blocks alike: nothing varies, so no "
            f"number of labels decides; {_detectable_sentence(gain, settings)}"
        )
        return Evidence("gain", Verdict.INCONCLUSIVE, why, mean, settings.threshold)
    if found is not None:
        return weigh(found, _cost(data, gain, settings), settings.learning)
    lower, upper = bounds(mean, spread, effective, settings)
    passed, failed = lower > settings.threshold, upper < settings.threshold
    if settings.method == "betting" and not settings.one_look:
        needed = math.log(1 / settings.alpha)
        passed, failed = ((wealth(gain, settings, sign) or 0.0) >= needed for sign in (1, -1))
    said = (
        f"the challenger gains {mean:+.5f} {settings.loss} a request, at least {lower:+.5f} "
        f"(asked: more than {settings.threshold:+.5f}; level {settings.level:g})"
    )
    if passed and not math.isfinite(largest_difference(settings)) and rests_on_one_block(gain, settings):
        why = f"undecided: {said}, but without its best block of {settings.block} nothing of it would be left"
        return Evidence("gain", Verdict.INCONCLUSIVE, why, lower, settings.threshold)
    if passed:
        return Evidence("gain", Verdict.PASS, f"retraining pays: {said}", lower, settings.threshold)
    if failed:
        why = f"retraining does not pay: the challenger gains at most {upper:+.5f} {settings.loss} a request"
        return Evidence("gain", Verdict.FAIL, why, upper, settings.threshold)
    why = f"undecided: {said}; {_needed_sentence(gain, settings)}; {_detectable_sentence(gain, settings)}"
    return Evidence("gain", Verdict.INCONCLUSIVE, why, lower, settings.threshold)


def _cost(data: Usable, gain: Gain, settings: ShadowSettings) -> float:
    """Of one loop, in units of the loss a request; the harm a challenger may do is weighed for itself."""
    if settings.worth is None:
        return settings.min_gain
    return max(settings.min_gain, loop_cost(_requests_per_day(data, gain, settings), settings.worth))


def _worth(data: Usable, gain: Gain, found: Forecast | None, settings: ShadowSettings) -> Evidence:
    """What was learned about the share that stays replaces the spec's guess."""
    assert settings.worth is not None
    prices = settings.worth if found is None else settings.worth.model_copy(update={"realised_share": 1.0})
    expected = float(gain.path.mean[-1]) if found is None else found.mean
    return worth(expected, _requests_per_day(data, gain, settings), prices)


def _needed_sentence(gain: Gain, settings: ShadowSettings) -> str:
    total = blocks_needed(gain, settings)
    if total is None:
        return "at the gain seen so far no number of blocks would prove it"
    more = max(total - len(gain.rows), 1)
    return f"at the gain seen so far {more} blocks (about {more * gain.labels.mean():.0f} labels) more would decide"


def _detectable_sentence(gain: Gain, settings: ShadowSettings) -> str:
    smallest = detectable_gain(gain, settings)
    if smallest is None:
        return "the smallest gain that could be found is not known until blocks differ"
    return f"the smallest gain that could be found now is {smallest:.5f} a request"


def _details(data: Usable, gain: Gain, missing: Missing | None, settings: ShadowSettings) -> dict[str, Any]:
    path = _path(gain, settings)
    label = data.frame["label"].to_numpy(np.float64)[~data.failed]
    answers = {name: scores(data.frame[name])[~data.failed] for name in MODELS}
    auc = delong(label, *answers.values()) if settings.task == "binary" else None
    failed = failed_loss(settings) if data.counts["failed"] else None
    return {
        "counts": dict(data.counts),
        "blocks": len(gain.rows),
        "path": path,
        "threshold": settings.threshold,
        "mean_gain": float(gain.path.mean[-1]) if path else None,
        "heading": heading(gain),
        "detectable_gain": detectable_gain(gain, settings),
        "labels_needed": labels_needed(gain, settings),
        "effective_labels": effective_labels(gain),
        "log_wealth": wealth(gain, settings, 1) if path else None,
        "loss": {kind: _means(kind, label, answers, gain, data.failed, settings) for kind in _kinds(settings)},
        "failed_loss": failed,
        "missing": missing.to_dict() if missing else None,
        "auc": asdict(auc) if auc else None,
        "settings": settings.model_dump(mode="json"),
    }


def _path(gain: Gain, settings: ShadowSettings) -> list[dict[str, Any]]:
    """The confidence sequence: after each block the mean, bounds (None before the second), its labels."""
    found = []
    for index, start in enumerate(gain.starts):
        mean, spread, effective = (
            float(part[index]) for part in (gain.path.mean, gain.path.spread, gain.path.effective)
        )
        lower, upper = bounds(mean, spread, effective, settings) if effective >= 2 else (None, None)
        labels = int(gain.labels[index])
        found.append({"block": start, "mean": mean, "lower": lower, "upper": upper, "labels": labels})
    return found


def _kinds(settings: ShadowSettings) -> list[LossName]:
    """What the record shows: every loss of the task that needs no word of the spec, and the one that decides."""
    return [kind for kind in LOSSES[settings.task] if kind == settings.loss or kind not in ("payoff", "pinball")]


def _means(
    kind: LossName,
    label: Floats,
    answers: Mapping[str, Floats],
    gain: Gain,
    failed: NDArray[np.bool_],
    settings: ShadowSettings,
) -> dict[str, float | None]:
    """Mean loss of each model over the requests that were answered and labelled."""
    if not len(label):
        return dict.fromkeys(MODELS)
    if kind == settings.loss:
        return {name: float(gain.losses[name][~failed].mean()) for name in MODELS}
    return {name: float(losses(settings, label, answer, kind).mean()) for name, answer in answers.items()}
