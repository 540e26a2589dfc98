"""Which features moved, in words. Naming never alarms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from assets.drift.aggregate import Columns, Marginal


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature over the whole window."""

    feature: str
    kind: str
    distance: float
    weight: float
    p_value: float
    null_share: float
    unseen: float
    named: bool


def benjamini_hochberg(p_values: Sequence[float], fdr: float) -> npt.NDArray[np.bool_]:
    """Which hypotheses are rejected at this false discovery rate (Benjamini & Hochberg, JRSS B 57, 1995).

    >>> benjamini_hochberg([0.04, 0.001, 0.9], 0.05).tolist()
    [False, True, False]
    """
    p = np.asarray(p_values, dtype=float)
    if len(p) == 0:
        return np.zeros(0, dtype=bool)
    line = fdr * np.arange(1, len(p) + 1) / len(p)
    under = np.flatnonzero(np.sort(p) <= line)
    return p <= np.sort(p)[under[-1]] if len(under) else np.zeros(len(p), dtype=bool)


def name_features(
    marginals: Mapping[str, Marginal], weights: Mapping[str, float], batch: Columns, fdr: float, floor: float
) -> list[Feature]:
    """All features, those that count most in the aggregate first. Named: significant AND at least `floor` away."""
    distances = {name: marginal.distance(batch[name]) for name, marginal in marginals.items()}
    p_values = [marginal.p_value(batch[name], distances[name]) for name, marginal in marginals.items()]
    rejected = benjamini_hochberg(p_values, fdr)
    found = []
    for (name, marginal), p_value, significant in zip(marginals.items(), p_values, rejected, strict=True):
        distance = distances[name]
        null = float(pd.isna(batch[name]).mean())
        named = bool(significant and distance >= floor)
        unseen = marginal.unseen(batch[name])
        found.append(Feature(name, marginal.kind, distance, weights[name], p_value, null, unseen, named))
    return sorted(found, key=lambda item: (-item.weight * item.distance, -item.distance, item.feature))


def listed(features: Sequence[Feature], most: int = 5) -> str:
    """The features to look at: 'temp .34, pressure .12 and 3 more'."""
    chosen = [item for item in features if item.named] or list(features[:1])
    words = ", ".join(f"{item.feature} {short(item.distance)}" for item in chosen[:most])
    return words + (f" and {len(chosen) - most} more" if len(chosen) > most else "")


def short(value: float) -> str:
    """A share as people write it.

    >>> short(0.081), short(1.0), short(-0.25), short(0.34)
    ('.081', '1', '-.25', '.34')
    """
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def plural(count: int, word: str) -> str:
    """A count with its word.

    >>> plural(1, "day"), plural(12000, "label")
    ('1 day', '12 000 labels')
    """
    return f"{count:,}".replace(",", " ") + f" {word}{'' if count == 1 else 's'}"
