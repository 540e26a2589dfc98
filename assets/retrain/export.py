"""A fitted estimator as ONNX with one named input a column, and how far the two disagree."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from assets.scoring import as_served, score

# onnxmltools converts LightGBM up to opset 15; trees are in the ML domain's version 3.
OPSETS = {"": 15, "ai.onnx.ml": 3}
# Triton 24.10 carries an ONNX Runtime that reads no newer format.
MAX_IR_VERSION = 10


class NotConvertible(ValueError):
    """The estimator has no ONNX form that serving can load. Says why and what to fit instead."""


def to_onnx(estimator: Any, features: Mapping[str, str]) -> bytes:
    """A binary classifier whose one output `probabilities` is (n, 2) float. The same estimator gives the same bytes."""
    from skl2onnx import convert_sklearn

    _register_lightgbm()
    classes = getattr(estimator, "classes_", None)
    if classes is None or list(classes) != [0, 1]:
        raise NotConvertible(f"classes are {classes}, serving needs [0, 1]: fit a classifier on a target of 0 and 1")
    final = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    try:
        model = convert_sklearn(
            estimator,
            name="model",
            initial_types=[(name, _tensor(kind)) for name, kind in features.items()],
            target_opset=OPSETS,
            options={id(final): {"zipmap": False}},
            final_types=None,
        )
    except Exception as error:  # skl2onnx has no common base for its refusals
        raise NotConvertible(
            f"{type(final).__name__} does not convert: {type(error).__name__}: {error}: fit a scikit-learn pipeline "
            "of ColumnTransformer and LightGBM, logistic regression, or another model that skl2onnx lists"
        ) from error
    return _finished(model)


def parity(estimator: Any, onnx: bytes, frame: pd.DataFrame, features: Mapping[str, str]) -> float:
    """Largest difference of the two probabilities of class 1 over the rows of frame; 0 without rows."""
    if frame.empty:
        return 0.0
    fitted = estimator.predict_proba(as_served(frame, features))[:, 1]
    return float(np.max(np.abs(fitted - score(onnx, frame, features))))


def _register_lightgbm() -> None:
    from lightgbm import LGBMClassifier
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes

    update_registered_converter(
        LGBMClassifier,
        "LightGbmLGBMClassifier",
        calculate_linear_classifier_output_shapes,
        _convert_floored,
        options={"nocl": [True, False], "zipmap": [True, False, "columns"]},
    )


def _convert_floored(scope: Any, operator: Any, container: Any) -> None:
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm

    operator.raw_operator = _Floored(operator.raw_operator)
    convert_lightgbm(scope, operator, container)


class _Floored:
    """A LightGBM classifier whose thresholds are 32-bit numbers.

    ONNX keeps thresholds in 32 bits. Rounded to the nearest, one can pass over the very value it has to keep on its
    right; rounded down, `x <= threshold` says the same for every 32-bit x.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.booster_ = _floored(model.booster_)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _floored(booster: Any) -> Any:
    from lightgbm import Booster

    lines = booster.model_to_string(num_iteration=booster.best_iteration).split("\n")
    kept = []
    for line in lines:
        name, _, values = line.partition("=")
        if name == "threshold" and values:
            line = "threshold=" + " ".join(repr(_floor32(float(value))) for value in values.split(" "))
        # The sizes of the text of each tree, which has changed; LightGBM reads without them.
        if name != "tree_sizes":
            kept.append(line)
    return Booster(model_str="\n".join(kept))


def _floor32(value: float) -> float:
    """The largest 32-bit number that is not above value.

    >>> _floor32(0.1) <= 0.1 < float(np.nextafter(np.float32(_floor32(0.1)), np.float32(1)))
    True
    """
    nearest = np.float32(np.clip(value, np.finfo(np.float32).min, np.finfo(np.float32).max))
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf)))


def _tensor(kind: str) -> Any:
    from skl2onnx.common import data_types

    kinds = {
        "string": data_types.StringTensorType,
        "float": data_types.FloatTensorType,
        "int": data_types.Int64TensorType,
        "bool": data_types.BooleanTensorType,
    }
    return kinds[kind]([None, 1])


def _finished(model: Any) -> bytes:
    import onnx

    outputs = [item for item in model.graph.output if item.name == "probabilities"]
    if not outputs:
        names = [item.name for item in model.graph.output]
        raise NotConvertible(f"the converted model gives {names}, not probabilities: fit a classifier")
    # The converted label has a wrong shape, and nobody asks for it.
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    if model.ir_version > MAX_IR_VERSION:
        raise NotConvertible(f"IR version {model.ir_version} is newer than {MAX_IR_VERSION}, which serving reads")
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
