"""The whylogs profile of a snapshot or a window: mergeable into that of any longer span."""

import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

# whylogs loads these for embeddings, which features are not: without them its import takes half the time, and every
# check of every model pays it.
EMBEDDINGS_ONLY = "sklearn.cluster"
# whylogs takes more than a microsecond a value: of more rows than these it sees every second, third, ... one.
MOST_ROWS = 200_000
_BATCH_ROWS = 65_536


def _load_whylogs() -> None:
    if "whylogs" in sys.modules or EMBEDDINGS_ONLY in sys.modules:
        return
    sys.modules[EMBEDDINGS_ONLY] = None  # type: ignore[assignment]  # how Python spells "can't be imported"
    try:
        importlib.import_module("whylogs.core")
    finally:
        del sys.modules[EMBEDDINGS_ONLY]


def profile(frame: pd.DataFrame) -> bytes:
    """A serialized whylogs profile view. Empty frames and columns of a single value have one too."""
    step = stride(len(frame))
    return _profile([frame.iloc[::step]])


def profile_file(file: Path, columns: Sequence[str]) -> bytes:
    """The profile of a Parquet file's columns, a batch in memory at a time."""
    return _profile(_sampled(file, columns))


def stride(rows: int) -> int:
    """Of how many rows one is profiled.

    >>> stride(0), stride(200_000), stride(200_001)
    (1, 1, 2)
    """
    return max(-(-rows // MOST_ROWS), 1)


def _sampled(file: Path, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        step, skip = stride(opened.metadata.num_rows), 0
        for batch in opened.iter_batches(_BATCH_ROWS, columns=list(columns)):
            yield batch.to_pandas().iloc[skip::step]
            skip = (skip - batch.num_rows) % step


def _profile(frames: Iterable[pd.DataFrame]) -> bytes:
    _load_whylogs()
    from whylogs.core import DatasetProfile
    from whylogs.core.schema import DatasetSchema

    kept = DatasetProfile(schema=DatasetSchema())
    for frame in frames:
        # whylogs tells a column's type by its first values: strings that are all missing would be unknown for ever.
        texts = frame.select_dtypes(exclude=["number", "bool", "datetimetz", "datetime"]).columns
        typed = frame.astype(dict.fromkeys(texts, object))
        if len(typed):  # whylogs warns of nothing to do
            kept.track(pandas=typed)
    return bytes(kept.view().serialize())


def merged(profiles: list[bytes]) -> bytes:
    """One profile of all rows that the given ones saw. `ValueError` without any."""
    _load_whylogs()
    from whylogs.core.view.dataset_profile_view import DatasetProfileView

    if not profiles:
        raise ValueError("no profiles to merge: give at least one")
    first, *rest = (DatasetProfileView.deserialize(item) for item in profiles)
    for view in rest:
        first = first.merge(view)
    return bytes(first.serialize())
