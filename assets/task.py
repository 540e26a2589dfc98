"""What a model is asked for, and what follows from it wherever an estimator answers."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["binary", "multiclass", "regression"]
# What is trained, packaged and served. Where the log keeps one number an answer, a chance for each class does not fit.
SERVED: tuple[Task, ...] = ("binary", "regression")
# The one output of a model by its task: name, and numbers a row. The last of them is the answer.
OUTPUTS: dict[Task, tuple[str, int]] = {"binary": ("probabilities", 2), "regression": ("prediction", 1)}


def answers(estimator: Any, rows: "pd.DataFrame", task: Task) -> np.ndarray:
    """(n,) chance of class 1, or the number that is answered. rows: the features, as they are served."""
    found = estimator.predict(rows) if task == "regression" else estimator.predict_proba(rows)[:, 1]
    return np.asarray(found, dtype=np.float64).reshape(len(rows))


def size(answered: np.ndarray) -> float:
    """What a tolerance for answers is multiplied with: 1 for chances, the largest for numbers beyond it.

    Serving computes in 32 bits, so what two servers of one file may differ by grows with the answer.

    >>> size(np.array([0.2, 0.9])), size(np.array([-3000.0, 20.0]))
    (1.0, 3000.0)
    """
    return max(1.0, float(np.max(np.abs(answered), initial=0.0)))
