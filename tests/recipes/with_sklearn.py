"""A recipe for scikit-learn alone."""

from typing import Any

import pandas as pd

CATEGORIES = ["carrier", "origin", "dest"]


def fit(frame: pd.DataFrame, target: str, seed: int) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    inputs = frame.drop(columns=target)
    numbers = [name for name in inputs.columns if name not in CATEGORIES]
    gaps = [name for name in numbers if inputs[name].dtype.kind == "f"]
    columns = ColumnTransformer(
        [
            ("codes", OneHotEncoder(handle_unknown="ignore", sparse_output=False), CATEGORIES),
            ("gaps", SimpleImputer(), gaps),
            ("whole", "passthrough", [name for name in numbers if name not in gaps]),
        ]
    )
    forest = RandomForestClassifier(n_estimators=30, max_depth=6, random_state=seed, n_jobs=1)
    return Pipeline([("columns", columns), ("forest", forest)]).fit(inputs, frame[target])
