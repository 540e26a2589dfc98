"""Losses of one request, and the area under the ROC curve of two models on the same requests."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from assets.shadow.settings import PayoffSettings

Floats = NDArray[np.float64]

# One confident mistake must not outweigh a week of requests.
CLIP = 0.01

LossName = Literal["log_loss", "brier", "payoff"]


def largest_difference(name: LossName, payoff: PayoffSettings | None) -> float:
    """Largest |champion loss - challenger loss| that one request can show."""
    if payoff is not None:
        return payoff.largest_difference
    return 1.0 if name == "brier" else math.log((1 - CLIP) / CLIP)


def loss(name: LossName, label: Floats, probability: Floats, payoff: PayoffSettings | None = None) -> Floats:
    """Loss of each request. label: (n,) 0 or 1; probability: (n,) of class 1; log_loss in nats, clipped at CLIP.

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


@dataclass(frozen=True, slots=True)
class AucDifference:
    """Both areas, the variance of their difference (champion - challenger), and its z; z is 0 without variance."""

    champion: float
    challenger: float
    variance: float
    z: float


def delong(label: Floats, champion: Floats, challenger: Floats) -> AucDifference | None:
    """Paired comparison of two areas under the ROC curve; None unless each class has two requests.

    label: (n,) 0 or 1; scores: (n,). Source: DeLong et al. 1988 by midranks, Sun & Xu 2014, algorithm 2.
    """
    from scipy.stats import rankdata

    positive = label > 0.5
    m, n = int(positive.sum()), int((~positive).sum())
    if m < 2 or n < 2:
        return None
    areas, above, below = [], [], []
    for scores in (champion, challenger):
        ranks = rankdata(scores)
        areas.append((ranks[positive].sum() / m - (m + 1) / 2) / n)
        above.append((ranks[positive] - rankdata(scores[positive])) / n)
        below.append(1 - (ranks[~positive] - rankdata(scores[~positive])) / m)
    covariance = np.cov(np.stack(above)) / m + np.cov(np.stack(below)) / n
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    difference = float(areas[0] - areas[1])
    z = difference / math.sqrt(variance) if variance > 1e-18 else 0.0
    return AucDifference(float(areas[0]), float(areas[1]), max(variance, 0.0), z)
