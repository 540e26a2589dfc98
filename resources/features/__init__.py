"""Feature sets: YAML in Git, read by DuckDB from the store or from a Python callable, as known at an instant.

In: a feature set, a span, an instant. Out: its rows as they were known then. A set's SQL sees its sources as tables;
every instant in it is a plain TIMESTAMP in UTC, on the way in and out. It gives one row a version of an entity; the
row's `known_at` is no earlier than that of anything joined into it.
"""

from resources.features.callables import function_of
from resources.features.reader import Rows, opened, read, sources_given
from resources.features.registry import FeatureRegistry
from resources.features.sets import CANONICAL, Column, FeatureSet, FeatureType
from resources.features.statement import names_given

__all__ = [
    "CANONICAL",
    "Column",
    "FeatureRegistry",
    "FeatureSet",
    "FeatureType",
    "Rows",
    "function_of",
    "names_given",
    "opened",
    "read",
    "sources_given",
]
