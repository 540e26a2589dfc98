"""The whylogs profile of a snapshot: mergeable into that of any longer span."""

import importlib
import sys

import pandas as pd

# whylogs loads these for embeddings, which features are not: without them its import takes half the time, and every
# check of every model pays it.
EMBEDDINGS_ONLY = "sklearn.cluster"


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
    _load_whylogs()
    from whylogs.core import DatasetProfile
    from whylogs.core.schema import DatasetSchema

    # whylogs tells a column's type by its first values: strings that are all missing would be unknown for ever.
    texts = frame.select_dtypes(exclude=["number", "bool", "datetimetz", "datetime"]).columns
    typed = frame.astype(dict.fromkeys(texts, object))
    kept = DatasetProfile(schema=DatasetSchema())
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
