"""A fitted estimator as ONNX with one named input a column, and how far the two disagree."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from assets.network import AnyNetwork
from assets.retrain.serving_form import OPSETS, NotConvertible, finished, first_line, tensor
from assets.scoring import as_served, score
from assets.task import OUTPUTS, Task, answers, size

# Framework by the package that an estimator's last step comes from, in the words of Dagster's icons.
FRAMEWORKS = {"lightgbm": "lightgbm", "xgboost": "xgboost", "sklearn": "scikitlearn"}


def framework(estimator: Any) -> str:
    """What fitted it: lightgbm, xgboost, scikitlearn or pytorch. `NotConvertible` for any other."""
    if isinstance(estimator, AnyNetwork):
        return "pytorch"
    final = _final(estimator)
    # A subclass counts as what it is made of.
    for kind in type(final).__mro__:
        if found := FRAMEWORKS.get(kind.__module__.split(".")[0]):
            return found
    raise NotConvertible(
        f"{type(final).__module__}.{type(final).__name__} is of no known framework: fit a scikit-learn, LightGBM or "
        "XGBoost estimator, or return an assets.network.Network or RegressionNetwork around a PyTorch module"
    )


def to_onnx(estimator: Any, features: Mapping[str, str], task: Task = "binary") -> bytes:
    """binary: one output `probabilities`, (n, 2) float; regression: `prediction`, (n, 1) float.

    The same estimator gives the same bytes. `NotConvertible` when it is of another task or has no such form.
    """
    kind = framework(estimator)
    _of_the_task(estimator, task)
    if kind == "pytorch":
        from assets.retrain.torch_onnx import convert

        return finished(convert(estimator, features), OUTPUTS[task][0])
    return finished(_converted(estimator, features, task), OUTPUTS[task][0])


def _of_the_task(estimator: Any, task: Task) -> None:
    classes = getattr(estimator, "classes_", None)
    if task == "regression" and (classes is not None or not hasattr(estimator, "predict")):
        raise NotConvertible(
            "the spec's task is regression and the recipe gives a classifier: fit a regressor, or write task: binary"
        )
    if task == "binary" and (classes is None or list(classes) != [0, 1]):
        raise NotConvertible(
            f"classes are {classes}, serving needs [0, 1]: fit a classifier on a target of 0 and 1, or write "
            "task: regression in the spec"
        )


def parity(
    estimator: Any, onnx: bytes, frame: pd.DataFrame, features: Mapping[str, str], task: Task = "binary"
) -> float:
    """Largest difference of the two answers over the rows, in parts of the largest beyond 1; 0 without rows."""
    if frame.empty:
        return 0.0
    fitted = answers(estimator, as_served(frame, features), task)
    return float(np.max(np.abs(fitted - score(onnx, frame, features)))) / size(fitted)


def _converted(estimator: Any, features: Mapping[str, str], task: Task) -> Any:
    from skl2onnx import convert_sklearn

    from assets.retrain.trees import register

    register()
    final = _final(estimator)
    named = {"final_types": [(OUTPUTS[task][0], tensor("float"))]} if task == "regression" else {}
    options = {id(final): {"zipmap": False}} if task == "binary" else None
    try:
        return convert_sklearn(
            estimator,
            name="model",
            initial_types=[(name, tensor(kind)) for name, kind in features.items()],
            target_opset=OPSETS,
            options=options,
            **named,
        )
    except Exception as error:  # skl2onnx has no common base for its refusals
        raise NotConvertible(
            f"{type(final).__name__} does not convert: {first_line(error)}: fit a scikit-learn pipeline of "
            "ColumnTransformer and LightGBM, XGBoost, logistic regression, or another model that skl2onnx lists"
        ) from error


def _final(estimator: Any) -> Any:
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
