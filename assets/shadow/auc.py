"""The area under the ROC curve of two models on the same requests, and how sure their difference is."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class AucDifference:
    """Both areas, the variance of their difference (champion - challenger), and its z; z is 0 without variance."""

    champion: float
    challenger: float
    variance: float
    z: float


def delong(label: Floats, champion: Floats, challenger: Floats) -> AucDifference | None:
    """Paired comparison of two areas under the ROC curve; None unless each class has two requests.

    label: (n,) 0 or 1; scores: (n,). Source: DeLong et al. 1988; by midranks as Sun & Xu 2014, algorithm 2, all three
    rankings of a score from one sort.
    """
    positive = label > 0.5
    m, n = int(positive.sum()), int((~positive).sum())
    if m < 2 or n < 2:
        return None
    first, second = _placements(champion, positive), _placements(challenger, positive)
    areas = float(first[positive].mean()), float(second[positive].mean())
    # Champion and challenger share their requests: what counts is the variance of the difference, request by request.
    apart = first - second
    variance = float(np.var(apart[positive], ddof=1)) / m + float(np.var(apart[~positive], ddof=1)) / n
    z = (areas[0] - areas[1]) / math.sqrt(variance) if variance > 1e-18 else 0.0
    return AucDifference(*areas, variance, z)


def _placements(scores: Floats, positive: Mask) -> Floats:
    """(n,) for each request the share of the other class on its right side: below a positive, above a negative.

    A tie counts half.
    """
    order = np.argsort(scores)
    ordered, hits = scores[order], positive[order]
    starts = np.append(0, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
    sizes = np.diff(np.append(starts, len(scores)))
    through = np.append(0, np.cumsum(hits))
    ends = starts + sizes
    positives = through[ends] - through[starts]
    negatives = sizes - positives
    below = (starts - through[starts] + negatives / 2) / (len(scores) - through[-1])
    above = 1 - (through[starts] + positives / 2) / through[-1]
    placed = np.empty(len(scores))
    placed[order] = np.where(hits, np.repeat(below, sizes), np.repeat(above, sizes))
    return placed
