"""A recipe for PyTorch that tells how it goes."""

from typing import Any

import numpy as np
import pandas as pd

from assets.network import Network
from assets.reporting import Report, silent

CATEGORIES = ["carrier", "origin", "dest"]


def fit(frame: pd.DataFrame, target: str, seed: int, report: Report = silent) -> Any:
    import torch
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    inputs = frame.drop(columns=target)
    numbers = [name for name in inputs.columns if name not in CATEGORIES]
    gaps = [name for name in numbers if inputs[name].dtype.kind == "f"]
    columns = ColumnTransformer(
        [
            ("codes", OneHotEncoder(handle_unknown="ignore", sparse_output=False), CATEGORIES),
            ("gaps", make_pipeline(SimpleImputer(), StandardScaler()), gaps),
            ("whole", StandardScaler(), [name for name in numbers if name not in gaps]),
        ]
    )
    rows = torch.from_numpy(columns.fit_transform(inputs).astype(np.float32))
    labels = torch.from_numpy(frame[target].to_numpy(dtype=np.float32))
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    module = torch.nn.Sequential(torch.nn.Linear(rows.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for epoch in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(module(rows).reshape(-1), labels)
        loss.backward()
        optimiser.step()
        report(epoch, {"loss": float(loss.detach())})
    return Network(columns, module)
