"""Rows that a Python function gives instead of SQL."""

import importlib
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resources.errors import DataError
from resources.features.sets import FeatureSet

if TYPE_CHECKING:
    import pyarrow as pa


def function_of(feature_set: FeatureSet) -> Callable[..., Any]:
    """The function that `python: module:function` names. `SpecError` when there is none that takes three instants."""
    module_name, _, name = feature_set.python.partition(":")
    try:
        module = _module(module_name, Path(feature_set.file).parent)
    except Exception as error:
        raise feature_set.flaw("python", feature_set.python, f"does not import: {error}") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise feature_set.flaw("python", feature_set.python, f"{module_name} has no function {name}: define it")
    try:
        signature(function).bind(start=None, end=None, as_of=None)
    except TypeError as error:
        remedy = f"{error}: it is called as {name}(start=..., end=..., as_of=...)"
        raise feature_set.flaw("python", f"{name}{signature(function)}", remedy) from error
    return function


def write_rows(feature_set: FeatureSet, start: datetime, end: datetime, as_of: datetime, file: Path) -> None:
    """What the function gives, into a Parquet file: it may be a stream, and the query runs through its rows twice.

    A pandas DataFrame, an Arrow table or reader, or an iterator of record batches, in memory a batch at a time.
    """
    import pyarrow.parquet as pq

    function = function_of(feature_set)
    asked = {"start": start, "end": end, "as_of": as_of}
    try:
        given = function(**{name: instant.astimezone(UTC) for name, instant in asked.items()})
        batches = _batches(given)
        if batches is not None and (first := next(batches, None)) is not None:
            with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
                writer.write_batch(first)
                for batch in batches:
                    writer.write_batch(batch)
            return
    except Exception as error:
        what = f"{feature_set.file}: python {feature_set.python} raised {type(error).__name__}: {error}"
        raise DataError(f"{what}: correct the function, or what it reads") from error
    if batches is not None:
        raise DataError(f"{feature_set.file}: python {feature_set.python} yielded no batch: yield one without rows")
    remedy = "gives no table: return a pandas DataFrame, an Arrow table or reader, or yield Arrow record batches"
    raise feature_set.flaw("python", type(given).__name__, remedy)


def _batches(given: Any) -> "Iterator[pa.RecordBatch] | None":
    import pandas as pd
    import pyarrow as pa

    if isinstance(given, pd.DataFrame):
        given = pa.Table.from_pandas(given, preserve_index=False)
    if isinstance(given, pa.Table):  # one without rows has no batch, but a schema
        return iter(given.to_batches() or [pa.RecordBatch.from_pylist([], schema=given.schema)])
    return iter(given) if isinstance(given, pa.RecordBatchReader | Iterator) else None


def _module(name: str, folder: Path) -> Any:
    """The module beside the feature set's file, else one that Python can import."""
    file = folder / f"{name}.py"
    if not file.is_file():
        return importlib.import_module(name)
    own = f"trimtab_features_{abs(hash(file.resolve()))}"
    spec = spec_from_file_location(own, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = module_from_spec(spec)
    sys.modules[own] = module
    spec.loader.exec_module(module)
    return module
