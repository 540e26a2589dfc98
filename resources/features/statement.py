"""What a feature set's SQL says before any table is there."""

import json
import re
from typing import Any

from resources.errors import SpecError
from resources.features.query import require
from resources.features.sets import FeatureSet


def names_given(feature_set: FeatureSet) -> set[str] | None:
    """The columns that the SQL gives, None where a star gives all of a table's.

    `SpecError` when it is not one SELECT, gives two columns of one name, or lacks one that the set names.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(feature_set.sql)
    except duckdb.Error as error:
        raise refused(feature_set, str(error), own_lines=True) from error
    if [item.type for item in statements] != [duckdb.StatementType.SELECT]:
        kinds = ", ".join(item.type.name for item in statements)
        raise feature_set.flaw("sql", kinds, "has to be one SELECT and nothing else")
    names = _selected(feature_set.sql)
    if names is None:
        return None
    for name in names:
        if names.count(name) > 1:
            raise feature_set.flaw("sql", name, "is given twice: name one of them otherwise, with AS")
    require(feature_set, set(names))
    return set(names)


def refused(feature_set: FeatureSet, text: str, own_lines: bool) -> SpecError:
    """What DuckDB says of the SQL. own_lines: the lines it counts are the set's own."""
    found = re.search(r"LINE (\d+):", text) if own_lines else None
    where = f"sql.{found.group(1)}" if found else "sql"
    return feature_set.flaw("sql", feature_set.name, f"DuckDB refuses it: {text}", where)


def _selected(sql: str) -> list[str] | None:
    """Names of the select list in order; None if it can't be told without the tables."""
    import duckdb

    with duckdb.connect() as connection:
        row = connection.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {}
    if tree.get("error", True):
        return None
    node = tree["statements"][0]["node"]
    while node["type"] == "SET_OPERATION_NODE":  # a UNION takes the names of its first SELECT
        node = node["left"]
    if node["type"] != "SELECT_NODE":
        return None
    names: list[str] = []
    for item in node["select_list"]:
        if not item["alias"] and item["type"] != "COLUMN_REF":
            return None
        names.append(item["alias"] or item["column_names"][-1])
    return names
