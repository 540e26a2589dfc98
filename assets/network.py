"""A PyTorch model as a recipe returns it: fitted columns, and a fitted module behind them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Network:
    """A binary classifier.

    columns: a fitted scikit-learn transformer from the features to (n, d) numbers, as a ColumnTransformer.
    module: a fitted `torch.nn.Module` from (n, d) float32 to the logit of class 1, (n,) or (n, 1).
    """

    columns: Any
    module: Any
    classes_: ClassVar[tuple[int, int]] = (0, 1)

    def predict_proba(self, frame: pd.DataFrame) -> np.ndarray:
        """(n, 2) probabilities of 0 and 1."""
        import torch

        self.module.eval()
        with torch.no_grad():
            inputs = torch.from_numpy(np.ascontiguousarray(self.columns.transform(frame), dtype=np.float32))
            chance = torch.sigmoid(self.module(inputs).reshape(-1)).numpy().astype(np.float64)
        return np.column_stack([1 - chance, chance])
