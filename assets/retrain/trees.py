"""Boosted trees as ONNX: skl2onnx is told of LightGBM and XGBoost, and LightGBM's thresholds keep their side."""

import sys
from typing import Any

import numpy as np


def register() -> None:
    """Make the tree libraries known to skl2onnx: those that are imported, for no estimator is of any other."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator as shapes

    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    classes, number = shapes.calculate_linear_classifier_output_shapes, shapes.calculate_linear_regressor_output_shapes
    if "lightgbm" in sys.modules:
        from lightgbm import LGBMClassifier, LGBMRegressor

        update_registered_converter(
            LGBMClassifier, "LightGbmLGBMClassifier", classes, _convert_floored, options=options
        )
        update_registered_converter(LGBMRegressor, "LightGbmLGBMRegressor", number, _convert_floored)
    if "xgboost" in sys.modules:
        from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
        from xgboost import XGBClassifier, XGBRegressor

        update_registered_converter(XGBClassifier, "XGBoostXGBClassifier", classes, convert_xgboost, options=options)
        update_registered_converter(XGBRegressor, "XGBoostXGBRegressor", number, convert_xgboost)


def _convert_floored(scope: Any, operator: Any, container: Any) -> None:
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm

    operator.raw_operator = _Floored(operator.raw_operator)
    convert_lightgbm(scope, operator, container)


class _Floored:
    """A LightGBM model whose thresholds are 32-bit numbers.

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
