"""Does the challenger in its pool answer as its registered file does? The same rows are put to both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.profile.package import build_probe
from assets.task import size

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Rows that were compared, rows whose answers differ on any replica, and the largest difference."""

    compared: int
    differing: int
    farthest: float


def agreement(served: Floats, expected: Floats, tolerance: float) -> Agreement:
    """served: (replicas, n) answers; expected: (n,). An answer that is no number differs.

    tolerance: of chances; of numbers that go beyond 1, in parts of the largest.

    >>> agreement(np.array([[0.1, 0.5]]), np.array([0.1, 0.9]), 1e-4)
    Agreement(compared=2, differing=1, farthest=0.4)
    >>> agreement(np.array([[20_000.5, 30.0]]), np.array([20_000.0, 30.0]), 1e-4)
    Agreement(compared=2, differing=0, farthest=0.5)
    """
    apart = np.abs(served - expected[None, :]).max(axis=0)
    apart = np.where(np.isfinite(apart), apart, size(expected))
    return Agreement(len(expected), int((apart > tolerance * size(expected)).sum()), float(apart.max(initial=0.0)))


def together(parts: Sequence[Agreement]) -> Agreement:
    """The comparison of all rows from those of its parts."""
    return Agreement(
        sum(part.compared for part in parts),
        sum(part.differing for part in parts),
        max((part.farthest for part in parts), default=0.0),
    )


def question(rows: pd.DataFrame, features: Mapping[str, str]) -> dict[str, Any]:
    """n complete rows as one request of the Open Inference Protocol."""
    asked = build_probe(rows, features, np.zeros(len(rows)))["inputs"]
    return {"inputs": [{"name": name, **tensor} for name, tensor in asked.items()]}


def last_column(answer: Mapping[str, Any], output: str) -> Floats:
    """(n,) last column of an output of shape (n, k) or (n,). ValueError when the answer lacks it."""
    for item in answer.get("outputs", []):
        if item["name"] == output:
            values = np.asarray(item["data"], dtype=np.float64)
            rows = int(item["shape"][0])
            return values.reshape(rows, -1)[:, -1]
    raise ValueError(f"the answer holds no output {output!r}: {str(answer)[:200]}")
