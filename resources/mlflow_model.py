"""The folder that any MLflow loads as a model, around ONNX bytes that stay exactly as they are."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from resources.errors import LineageError


def model_files(onnx: bytes, folder: str) -> dict[str, bytes]:
    """Contents by path below `folder`; `model.onnx` holds the very bytes. `LineageError` when they are no ONNX."""
    import mlflow.onnx
    from google.protobuf.message import DecodeError
    from onnx import load_from_string

    try:
        model = load_from_string(onnx)
    except DecodeError as error:
        raise LineageError(f"{len(onnx)} bytes are not an ONNX model: {error}: register what to_onnx gives") from error
    with TemporaryDirectory() as place:
        root = Path(place) / "model"
        # Requirements that are given are not inferred: that alone takes seconds.
        mlflow.onnx.save_model(
            model,
            str(root),
            signature=_signature(model),
            pip_requirements=["mlflow", "onnx", "onnxruntime"],
            save_as_external_data=False,
        )
        # MLflow writes the model anew, in other bytes than those that were judged.
        (root / "model.onnx").write_bytes(onnx)
        return {f"{folder}/{file.relative_to(root)}": file.read_bytes() for file in root.rglob("*") if file.is_file()}


def _signature(model: Any) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec
    from numpy import dtype
    from onnx import TensorProto

    kinds = {
        TensorProto.STRING: DataType.string,
        TensorProto.FLOAT: DataType.float,
        TensorProto.INT64: DataType.long,
        TensorProto.BOOL: DataType.boolean,
    }
    inputs = Schema([ColSpec(kinds[item.type.tensor_type.elem_type], item.name) for item in model.graph.input])
    return ModelSignature(inputs, Schema([TensorSpec(dtype("float32"), (-1, 2), model.graph.output[0].name)]))


@contextmanager
def written(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder with these files by relative path, for as long as it takes to upload it."""
    with TemporaryDirectory() as place:
        folder = Path(place).resolve()
        for path, body in files.items():
            target = (folder / path).resolve()
            if not target.is_relative_to(folder):
                raise LineageError(f"artifact {path!r} leaves its run: name it by a relative path")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
        yield folder
