"""`trimtab new`: the three files of a model, written from a draft."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

from assets.task import Task
from pipelines.draft import Draft, first_partition
from pipelines.quoting import quoted
from resources.errors import SpecError

RECIPE = '''"""How {model} is fitted: categories to numbers, then boosted trees. Yours to change."""

from typing import Any

import pandas as pd

CATEGORIES = {categories}


def fit(frame: pd.DataFrame, target: str, seed: int) -> Any:
    """A fitted scikit-learn pipeline. frame: the features and the column `target`, {target}."""
    from lightgbm import {trees}
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    inputs = frame.drop(columns=target)
    numbers = [name for name in inputs.columns if name not in CATEGORIES]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    parts = [("codes", codes, CATEGORIES), ("numbers", "passthrough", numbers)]
    columns = ColumnTransformer([part for part in parts if part[2]])
    trees = {trees}(
        n_estimators=150,
        learning_rate=0.05,
        num_leaves=15,
        min_child_samples=30,
        reg_lambda=5.0,
        random_state=seed,
        n_jobs=2,
        deterministic=True,
        force_row_wise=True,
        verbose=-1,
    )
    return Pipeline([("columns", columns), ("trees", trees)]).fit(inputs, frame[target])
'''

# By task: LightGBM's estimator, and what its target is.
TREES: dict[Task, tuple[str, str]] = {
    "binary": ("LGBMClassifier", "0 or 1"),
    "regression": ("LGBMRegressor", "the number that is answered"),
}


def files(found: Draft, owner: str, cadence: str, label_delay_hours: float) -> dict[str, str]:
    """Text by file name."""
    trees, target = TREES[found.outcome.task]
    categories = [item.name for item in found.inputs if item.type == "string"]
    return {
        "model.yaml": _model(found, owner, cadence, label_delay_hours),
        "features.yaml": _features(found, label_delay_hours),
        "recipe.py": RECIPE.format(model=found.model, categories=json.dumps(categories), trees=trees, target=target),
    }


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """All files or none. `SpecError` when the folder is there already."""
    if folder.exists():
        remedy = "is there already: choose another name, or delete it first"
        raise SpecError(folder, "MODEL", folder.name, remedy)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, text in texts.items():
            (beside / name).write_text(text)
        beside.chmod(0o755)
        beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _model(found: Draft, owner: str, cadence: str, label_delay_hours: float) -> str:
    return f"""\
# Made by `trimtab new` from {found.file}. `trimtab check` says whether it still holds together.
name: {found.model}
description: {json.dumps(found.outcome.meaning, ensure_ascii=False)}
task: {found.outcome.task}
owners: [{json.dumps(owner)}]
feature_set: {found.model}
cadence: {cadence}
start: {first_partition(found, cadence):%Y-%m-%dT%H:%M:%SZ}
# An outcome is known this long after its row.
label_delay_hours: {label_delay_hours:g}
shadow:
  maturity_hours: {label_delay_hours:g}
training:
  lookback_days: {found.lookback_days}
  # {found.rows} rows in the file: the hold-out has to hold enough of them to judge on.
  holdout_days: {found.holdout_days}
"""


def _features(found: Draft, label_delay_hours: float) -> str:
    columns = "\n".join(f"  - {{name: {item.name}, type: {item.type}}}" for item in found.inputs)
    left_out = "".join(f"# Left out: {name!r}, for {why}.\n" for name, why in found.left_out)
    at = f"CAST({quoted(found.time)} AS TIMESTAMP)"
    target = quoted(found.target)
    selected = [f"{_key(found, at)} AS row_key", f"{at} AS happened_at"]
    selected += [f"{item.sql} AS {quoted(item.name)}" for item in found.inputs]
    selected += [
        f"{found.outcome.sql} AS {quoted(found.label)}",
        f"CASE WHEN {target} IS NOT NULL THEN {at} + INTERVAL {round(label_delay_hours * 60)} MINUTES END "
        "AS outcome_known_at",
    ]
    body = ",\n".join(f"    {line}" for line in selected)
    return f"""\
# Rows count as known at their own time, in UTC; every column but the target has to be known by then.
{left_out}name: {found.model}
version: 1
valid_from: {found.start:%Y-%m-%dT%H:%M:%SZ}
freshness_hours: 48
entity: row_key
event_time: happened_at
known_at: happened_at
label: {found.label}
label_known_at: outcome_known_at
sources: [{found.model}]
columns:
{columns}
sql: |
  SELECT
{body}
  FROM {quoted(found.model)}
"""


def _key(found: Draft, at: str) -> str:
    if found.key is not None:
        return f"CAST({quoted(found.key)} AS VARCHAR)"
    order = ", ".join(quoted(item.source) for item in found.inputs)
    return f"strftime({at}, '%Y-%m-%dT%H:%M:%SZ-') || row_number() OVER (PARTITION BY {at} ORDER BY {order})"
