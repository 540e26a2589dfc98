"""How a flight-delay model is fitted: categories to numbers, then boosted trees."""

from typing import Any

import pandas as pd

CATEGORIES = ["carrier", "origin", "dest"]


def fit(frame: pd.DataFrame, target: str, seed: int) -> Any:
    """A fitted scikit-learn pipeline. frame: the features and the column `target` of 0 and 1."""
    from lightgbm import LGBMClassifier
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    inputs = frame.drop(columns=target)
    numbers = [name for name in inputs.columns if name not in CATEGORIES]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("codes", codes, CATEGORIES), ("numbers", "passthrough", numbers)])
    trees = LGBMClassifier(
        n_estimators=150,
        learning_rate=0.05,
        num_leaves=31,
        min_child_samples=100,
        reg_lambda=5.0,
        subsample=0.8,
        subsample_freq=1,
        colsample_bytree=0.8,
        random_state=seed,
        n_jobs=2,
        deterministic=True,
        force_row_wise=True,
        verbose=-1,
    )
    return Pipeline([("columns", columns), ("trees", trees)]).fit(inputs, frame[target])
