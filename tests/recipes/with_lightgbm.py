"""A recipe for LightGBM that tells how it goes."""

from typing import Any

import pandas as pd

from assets.reporting import Report, lightgbm_callback, silent

CATEGORIES = ["carrier", "origin", "dest"]


def fit(frame: pd.DataFrame, target: str, seed: int, report: Report = silent) -> Any:
    from lightgbm import LGBMClassifier
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    inputs = frame.drop(columns=target)
    numbers = [name for name in inputs.columns if name not in CATEGORIES]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("codes", codes, CATEGORIES), ("numbers", "passthrough", numbers)])
    rows = columns.fit_transform(inputs)
    trees = LGBMClassifier(
        n_estimators=40, subsample=0.8, subsample_freq=1, random_state=seed, n_jobs=2, deterministic=True, verbose=-1
    )
    trees.fit(rows, frame[target], eval_set=[(rows, frame[target])], callbacks=[lightgbm_callback(report)])
    return Pipeline([("columns", columns), ("trees", trees)])
