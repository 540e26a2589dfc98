"""Losses of one request, by what a model is asked for: an event, one of several classes, or a number."""

import math

import numpy as np
from numpy.typing import NDArray

from assets.shadow.settings import LossName, PayoffSettings, ShadowSettings

Floats = NDArray[np.float64]

# One confident mistake must not outweigh a week of requests.
CLIP = 0.01


def losses(settings: ShadowSettings, label: Floats, score: Floats, name: LossName | None = None) -> Floats:
    """(n,) loss of each request under `settings`, or under another loss of the same task.

    label: (n,) 0 or 1, the number of a class, or a number. score: (n,) probability of class 1, (n, k) of each class, or
    (n,) the number that was answered. A loss above `loss_cap` counts as that.
    """
    name = name or settings.loss
    if settings.task == "regression":
        found = _of_number(name, label, score, settings.quantile)
    elif settings.task == "multiclass":
        found = _of_classes(name, label, score)
    else:
        found = loss(name, label, score, settings.payoff if name == "payoff" else None)
    return found if settings.loss_cap is None else np.minimum(found, settings.loss_cap)


def loss(name: LossName, label: Floats, probability: Floats, payoff: PayoffSettings | None = None) -> Floats:
    """Loss of each request of a binary task. probability: (n,) of class 1; log_loss in nats, clipped at CLIP.

    payoff, when given, is what is compared: the value that the answer did not bring, in the pay-off's own unit.

    >>> loss("log_loss", np.array([1.0, 0.0]), np.array([0.0, 0.5])).round(4).tolist()
    [4.6052, 0.6931]
    >>> loss("brier", np.array([1.0]), np.array([0.25])).tolist()
    [0.5625]
    """
    if payoff is not None:
        acted = np.where(label > 0.5, payoff.true_positive, payoff.false_positive)
        let_be = np.where(label > 0.5, payoff.false_negative, payoff.true_negative)
        return -np.where(probability >= payoff.threshold, acted, let_be)
    if name == "brier":
        return np.square(label - probability)
    clipped = np.clip(probability, CLIP, 1 - CLIP)
    return -np.log(np.where(label > 0.5, clipped, 1 - clipped))


def _of_classes(name: LossName, label: Floats, score: Floats) -> Floats:
    """Brier is the sum over classes, in [0, 2]. Source: Brier 1950."""
    of_truth: Floats = score[np.arange(len(score)), label.astype(np.intp)]
    if name == "brier":
        return np.asarray(np.square(score).sum(axis=1) - 2 * of_truth + 1, dtype=np.float64)
    return -np.log(np.clip(of_truth, CLIP, 1 - CLIP))


def _of_number(name: LossName, label: Floats, score: Floats, quantile: float) -> Floats:
    """Pinball is the loss whose best constant answer is the quantile. Source: Koenker & Bassett 1978."""
    missed = label - score
    if name == "pinball":
        return np.maximum(quantile * missed, (quantile - 1) * missed)
    return np.abs(missed) if name == "absolute" else np.square(missed)


def largest_difference(settings: ShadowSettings) -> float:
    """Largest |champion loss - challenger loss| that one request can show; infinite without a bound."""
    bound = _largest(settings)
    return bound if settings.loss_cap is None else min(bound, settings.loss_cap)


def _largest(settings: ShadowSettings) -> float:
    if settings.payoff is not None:
        return settings.payoff.largest_difference
    if settings.task == "regression":
        return math.inf
    if settings.loss == "brier":
        return 2.0 if settings.task == "multiclass" else 1.0
    return math.log((1 - CLIP) / CLIP)


def failed_loss(settings: ShadowSettings) -> float:
    """What a request costs that a model did not answer: the spec's word, else the worst that an answer can cost.

    NaN where nothing is said and no answer is the worst: how dear it is, is then not known.
    """
    if settings.failed_loss is not None:
        return settings.failed_loss
    if settings.payoff is not None:
        return -settings.payoff.lowest
    if settings.task == "regression":
        return settings.loss_cap if settings.loss_cap is not None else math.nan
    worst = (2.0 if settings.task == "multiclass" else 1.0) if settings.loss == "brier" else -math.log(CLIP)
    return worst if settings.loss_cap is None else min(worst, settings.loss_cap)
