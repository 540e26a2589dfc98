"""What the gates measure on a hold-out. labels: (n,) of 0 and 1, or numbers; scores: (n,) what was answered to them."""

import math

import numpy as np
import pandas as pd

from assets.task import Task

CALIBRATION_BINS = 10
# An error of so many usual ones counts as much to the detector of harm as any larger.
HARM = 4.0


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve, ties counted half; NaN when only one outcome occurs. Source: Mann & Whitney 1947.

    >>> auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
    0.75
    """
    from scipy.stats import rankdata

    positives = int(np.sum(labels))
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return math.nan
    ranks = float(rankdata(scores)[labels == 1].sum())
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def roc(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares of zeros and of ones at or above each distinct score, from (0, 0) to (1, 1). Both outcomes must occur."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits = np.append(0, np.cumsum(labels[order])[ends])
    alarms = np.append(0, ends + 1) - hits
    return alarms / alarms[-1], hits / hits[-1]


def losses(labels: np.ndarray, scores: np.ndarray, task: Task = "binary") -> np.ndarray:
    """Loss of each row, (n,). binary: Brier, in [0, 1]. regression: the absolute error in parts of `constant_loss`.

    >>> losses(np.array([10.0, 20.0, 60.0]), np.array([10.0, 30.0, 50.0]), "regression").tolist()
    [0.0, 0.6, 0.6]
    """
    if task == "regression":
        return np.asarray(np.abs(scores - labels) / constant_loss(labels), dtype=np.float64)
    return np.asarray((scores - labels) ** 2, dtype=np.float64)


def constant_loss(labels: np.ndarray) -> float:
    """Mean absolute error of the best constant answer to these rows, their median: the unit of a regression's loss."""
    return float(np.mean(np.abs(labels - np.median(labels))))


def skill(labels: np.ndarray, scores: np.ndarray) -> float:
    """Part of the best constant answer's absolute error that is saved: 1 is perfect, 0 is no better than it."""
    return 1 - float(losses(labels, scores, "regression").mean())


def harm_scale(labels: np.ndarray, scores: np.ndarray, task: Task) -> float | None:
    """The absolute error that counts as a loss of 1 to the detector of harm: HARM times the mean of these rows.

    None for chances, whose Brier loss lies in [0, 1] by itself.
    """
    if task == "binary":
        return None
    mean = float(np.mean(np.abs(scores - labels)))
    return HARM * mean or 1.0


def calibration(labels: np.ndarray, scores: np.ndarray, bins: int = CALIBRATION_BINS) -> pd.DataFrame:
    """Mean probability, observed frequency and rows of each bin; bins of equal rows in order of score."""
    order = np.argsort(scores, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return pd.DataFrame(
        {
            "probability": [float(scores[part].mean()) for part in parts],
            "frequency": [float(labels[part].mean()) for part in parts],
            "rows": [len(part) for part in parts],
        }
    )


def calibration_error(labels: np.ndarray, scores: np.ndarray) -> float:
    """Mean gap between probability and frequency over the bins, weighted by rows. Source: Naeini et al., AAAI 2015."""
    table = calibration(labels, scores)
    gaps = (table["probability"] - table["frequency"]).abs()
    return float(np.average(gaps, weights=table["rows"]))


def upper_bound(values: np.ndarray, days: np.ndarray, confidence: float) -> float:
    """One-sided upper bound of the mean of the days' means; +inf below two days.

    Rows of one day share its weather, so the day is the unit. values: (n,); days: (n,) labels of the day.
    """
    from scipy.stats import t

    means = pd.Series(values).groupby(np.asarray(days)).mean().to_numpy()
    if len(means) < 2:
        return math.inf
    return float(means.mean() + t.ppf(confidence, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means)))
