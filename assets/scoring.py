"""How rows become a model's named inputs, and its answers: one way for training, gates, probes and clients."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    import onnxruntime

# Fewer rows than the least are not worth a thread.
CHUNK_ROWS, LEAST_ROWS = 65_536, 2_048
WORKERS = 2
# More groups than these would tear apart what came at the same time.
MOST_GROUPS = 64
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
    """A model loaded once for many calls. Chunks are answered by `workers` threads, one thread each.

    ONNX Runtime turns strings into its own under Python's lock and looks them up in one thread: threads over chunks
    overlap that with the other chunk's trees, its own threads within a chunk can't.
    """

    onnx: bytes
    workers: int = WORKERS

    @cached_property
    def session(self) -> "onnxruntime.InferenceSession":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
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
        session, output = self.session, self.output  # made once, before threads ask for them
        answers = np.empty(len(frame), dtype=np.float64)

        def answer(rows: slice) -> None:
            part = frame.iloc[rows]
            order = alike(part, features)
            (found,) = session.run([output], {name: column[order] for name, column in tensors(part, features).items()})
            answers[rows.start + order] = found.reshape(len(found), -1)[:, -1]

        size = min(CHUNK_ROWS, max(-(-len(frame) // self.workers), LEAST_ROWS))
        parts = [slice(start, start + size) for start in range(0, len(frame), size)]
        if len(parts) < 2 or self.workers < 2:
            for part in parts:
                answer(part)
        else:
            with ThreadPoolExecutor(self.workers) as pool:
                list(pool.map(answer, parts))
        return answers


def alike(frame: pd.DataFrame, features: Mapping[str, str]) -> np.ndarray:
    """(n,) positions in which rows of the same categories follow one another, else as they came.

    A row takes some six branches in each of a model's trees. The processor guesses them, and a row like the one before
    it makes it guess right: logged flights are answered a fifth faster so, and twice as fast as in no order at all.
    """
    code, groups = np.zeros(len(frame), dtype=np.int16), 1
    for name in (name for name, kind in features.items() if kind == "string" and len(frame) > LEAST_ROWS):
        found, distinct = pd.factorize(frame[name])
        if groups * (len(distinct) + 1) <= MOST_GROUPS:
            groups *= len(distinct) + 1
            code = (code * (len(distinct) + 1) + found + 1).astype(np.int16)
    return np.argsort(code, kind="stable")


def kind_of(values: pd.Series) -> str:
    """The feature type of a column by its dtype."""
    return {"f": "float", "i": "int", "u": "int", "b": "bool"}.get(values.dtype.kind, "string")


def _column(values: pd.Series, kind: str) -> np.ndarray:
    if kind == "string":
        # Each distinct value becomes text once; the missing one is the last.
        codes, found = pd.factorize(values)
        return np.array([*map(str, found), ""], dtype=object)[codes]
    return values.to_numpy(dtype=_DTYPES[kind])
