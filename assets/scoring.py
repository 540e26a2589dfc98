"""How rows become a model's named inputs, and its answers: one way for training, gates, probes and clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    import onnxruntime

CHUNK_ROWS = 65_536
_DTYPES: dict[str, Any] = {"float": np.float32, "int": np.int64, "bool": np.bool_}


def as_served(frame: pd.DataFrame, features: Mapping[str, str]) -> pd.DataFrame:
    """The features alone, in order, as serving will see them: floats in 32 bits, a missing string as ''.

    Recipes are fitted on this, so no threshold lies between a number and its 32-bit form.
    """
    return pd.DataFrame({name: _column(frame[name], kind) for name, kind in features.items()}, index=frame.index)


def tensors(frame: pd.DataFrame, features: Mapping[str, str]) -> dict[str, np.ndarray]:
    """One input of shape (n, 1) a column: string as objects of str (null is ''), float32, int64, bool."""
    return {name: _column(frame[name], kind).reshape(-1, 1) for name, kind in features.items()}


def score(onnx: bytes, frame: pd.DataFrame, features: Mapping[str, str]) -> np.ndarray:
    """Probability of class 1 by ONNX Runtime, (n,) float64."""
    return Scorer(onnx)(frame, features)


@dataclass(frozen=True)
class Scorer:
    """A model loaded once for many calls."""

    onnx: bytes

    @cached_property
    def session(self) -> "onnxruntime.InferenceSession":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Spinning threads would take the cores from the servers beside us.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(self.onnx, options, providers=["CPUExecutionProvider"])

    @cached_property
    def features(self) -> dict[str, str]:
        """Type of each named input, as feature sets name them."""
        kinds = {"tensor(string)": "string", "tensor(float)": "float", "tensor(int64)": "int", "tensor(bool)": "bool"}
        return {item.name: kinds[item.type] for item in self.session.get_inputs()}

    @cached_property
    def output(self) -> str:
        """The first float output, whose last column is the answer."""
        return str(next(item.name for item in self.session.get_outputs() if item.type == "tensor(float)"))

    def __call__(self, frame: pd.DataFrame, features: Mapping[str, str]) -> np.ndarray:
        """Probability of class 1, (n,) float64."""
        answers = [np.empty(0)]
        for start in range(0, len(frame), CHUNK_ROWS):
            inputs = tensors(frame.iloc[start : start + CHUNK_ROWS], features)
            (answer,) = self.session.run([self.output], inputs)
            answers.append(answer.reshape(len(answer), -1)[:, -1].astype(np.float64))
        return np.concatenate(answers)


def kind_of(values: pd.Series) -> str:
    """The feature type of a column by its dtype."""
    return {"f": "float", "i": "int", "u": "int", "b": "bool"}.get(values.dtype.kind, "string")


def _column(values: pd.Series, kind: str) -> np.ndarray:
    if kind == "string":
        return values.astype(object).where(values.notna(), "").astype(str).to_numpy(dtype=object)
    return values.to_numpy(dtype=_DTYPES[kind])
