"""A fitted estimator as ONNX with one named input a column, and how far the two disagree."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from assets.network import Network
from assets.retrain.serving_form import OPSETS, NotConvertible, finished, first_line, tensor
from assets.scoring import as_served, score

# Framework by the package that an estimator's last step comes from, in the words of Dagster's icons.
FRAMEWORKS = {"lightgbm": "lightgbm", "xgboost": "xgboost", "sklearn": "scikitlearn"}


def framework(estimator: Any) -> str:
    """What fitted it: lightgbm, xgboost, scikitlearn or pytorch. `NotConvertible` for any other."""
    if isinstance(estimator, Network):
        return "pytorch"
    final = _final(estimator)
    # A subclass counts as what it is made of.
    for kind in type(final).__mro__:
        if found := FRAMEWORKS.get(kind.__module__.split(".")[0]):
            return found
    raise NotConvertible(
        f"{type(final).__module__}.{type(final).__name__} is of no known framework: fit a scikit-learn, LightGBM or "
        "XGBoost classifier, or return an assets.network.Network around a PyTorch module"
    )


def to_onnx(estimator: Any, features: Mapping[str, str]) -> bytes:
    """A binary classifier whose one output `probabilities` is (n, 2) float. The same estimator gives the same bytes."""
    kind = framework(estimator)
    classes = getattr(estimator, "classes_", None)
    if classes is None or list(classes) != [0, 1]:
        raise NotConvertible(f"classes are {classes}, serving needs [0, 1]: fit a classifier on a target of 0 and 1")
    if kind == "pytorch":
        from assets.retrain.torch_onnx import convert

        return finished(convert(estimator, features))
    return finished(_converted(estimator, features))


def parity(estimator: Any, onnx: bytes, frame: pd.DataFrame, features: Mapping[str, str]) -> float:
    """Largest difference of the two probabilities of class 1 over the rows of frame; 0 without rows."""
    if frame.empty:
        return 0.0
    fitted = estimator.predict_proba(as_served(frame, features))[:, 1]
    return float(np.max(np.abs(fitted - score(onnx, frame, features))))


def _converted(estimator: Any, features: Mapping[str, str]) -> Any:
    from skl2onnx import convert_sklearn

    from assets.retrain.trees import register

    register()
    final = _final(estimator)
    try:
        return convert_sklearn(
            estimator,
            name="model",
            initial_types=[(name, tensor(kind)) for name, kind in features.items()],
            target_opset=OPSETS,
            options={id(final): {"zipmap": False}},
            final_types=None,
        )
    except Exception as error:  # skl2onnx has no common base for its refusals
        raise NotConvertible(
            f"{type(final).__name__} does not convert: {first_line(error)}: fit a scikit-learn pipeline of "
            "ColumnTransformer and LightGBM, XGBoost, logistic regression, or another model that skl2onnx lists"
        ) from error


def _final(estimator: Any) -> Any:
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
