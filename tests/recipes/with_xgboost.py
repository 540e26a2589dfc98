"""A recipe for XGBoost that tells how it goes."""

from typing import Any

import pandas as pd

from assets.reporting import Report, silent, xgboost_callback

CATEGORIES = ["carrier", "origin", "dest"]


def fit(frame: pd.DataFrame, target: str, seed: int, report: Report = silent) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder
    from xgboost import XGBClassifier

    inputs = frame.drop(columns=target)
    numbers = [name for name in inputs.columns if name not in CATEGORIES]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("codes", codes, CATEGORIES), ("numbers", "passthrough", numbers)])
    rows = columns.fit_transform(inputs)
    trees = XGBClassifier(
        n_estimators=40, max_depth=4, subsample=0.8, random_state=seed, n_jobs=2, callbacks=[xgboost_callback(report)]
    )
    trees.fit(rows, frame[target], eval_set=[(rows, frame[target])], verbose=False)
    return Pipeline([("columns", columns), ("trees", trees)])
