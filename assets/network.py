"""PyTorch models as a recipe returns them: fitted columns, and a fitted module behind them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class AnyNetwork:
    """columns: a fitted scikit-learn transformer from the features to (n, d) numbers, as a ColumnTransformer.

    module: a fitted `torch.nn.Module` from (n, d) float32 to one number a row, (n,) or (n, 1).
    """

    columns: Any
    module: Any

    def outputs(self, frame: pd.DataFrame) -> np.ndarray:
        """(n,) float32 numbers of the module."""
        import torch

        self.module.eval()
        with torch.no_grad():
            inputs = torch.from_numpy(np.ascontiguousarray(self.columns.transform(frame), dtype=np.float32))
            return np.asarray(self.module(inputs).reshape(-1).numpy())


@dataclass(frozen=True)
class Network(AnyNetwork):
    """A binary classifier: the module's number is the logit of class 1."""

    classes_: ClassVar[tuple[int, int]] = (0, 1)

    def predict_proba(self, frame: pd.DataFrame) -> np.ndarray:
        """(n, 2) probabilities of 0 and 1."""
        from scipy.special import expit

        chance = expit(self.outputs(frame).astype(np.float64))
        return np.column_stack([1 - chance, chance])


@dataclass(frozen=True)
class RegressionNetwork(AnyNetwork):
    """A regressor: the module's number is the answer."""

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        """(n,) numbers."""
        return self.outputs(frame).astype(np.float64)
