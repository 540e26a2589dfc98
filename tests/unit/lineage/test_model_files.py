"""The folder around a model keeps its very bytes, and MLflow can load it."""

from pathlib import Path

import pytest

from resources.errors import LineageError
from resources.mlflow_model import model_files
from tests.serving_stack import tiny_onnx


def test_the_folder_holds_the_very_bytes() -> None:
    files = model_files(tiny_onnx(), "model")
    assert files["model/model.onnx"] == tiny_onnx()
    assert b"onnxruntime" in files["model/requirements.txt"]


def test_mlflow_loads_the_folder_and_knows_its_columns(tmp_path: Path) -> None:
    import mlflow.models

    for path, body in model_files(tiny_onnx(), "model").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(body)
    signature = mlflow.models.Model.load(str(tmp_path / "model")).signature
    assert signature is not None
    kinds = {str(column.name): str(column.type) for column in signature.inputs}
    assert kinds == {"carrier": "DataType.string", "temp": "DataType.float", "hour": "DataType.long"}


def test_other_bytes_are_refused() -> None:
    with pytest.raises(LineageError, match="not an ONNX model"):
        model_files(b"\xff\xff\xff", "model")
