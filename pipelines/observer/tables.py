"""Rows of one model gathered into Arrow tables, a segment each."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.observer.rows import Access, Answer
from resources import segments

if TYPE_CHECKING:
    import pyarrow as pa


def access_tables(rows: Iterable[Access]) -> list[tuple[str, "pa.Table"]]:
    """(model, table) for each model among the rows."""
    import pyarrow as pa

    by_model: dict[str, list[Access]] = defaultdict(list)
    for row in rows:
        by_model[row.model].append(row)
    schema = segments.access_schema()
    return [
        (model, pa.table([pa.array(c, f.type) for c, f in zip(zip(*mine, strict=True), schema, strict=True)], schema))
        for model, mine in by_model.items()
    ]


def answers_tables(answers: Iterable[Answer]) -> list[tuple[str, "pa.Table"]]:
    """(model, table) for each model, and for each set of inputs it was asked with."""
    groups: dict[tuple[str, Any], list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.model, answer.signature].append(answer)
    return [(model, _answers_table(mine)) for (model, _), mine in groups.items()]


def _answers_table(answers: Sequence[Answer]) -> "pa.Table":
    import numpy as np
    import pyarrow as pa

    counts = [len(answer.keys) for answer in answers]

    def repeated(values: Sequence[Any]) -> list[Any]:
        return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]

    fixed = [
        repeated([answer.request_id for answer in answers]),
        repeated([answer.event_us for answer in answers]),
        repeated([answer.seen_us for answer in answers]),
        [key for answer in answers for key in answer.keys],
        repeated([answer.version for answer in answers]),
        np.concatenate([answer.answers for answer in answers]),
        [row for count in counts for row in range(count)],
    ]
    schema = segments.answers_schema()
    table = pa.table([pa.array(values, column.type) for values, column in zip(fixed, schema, strict=True)], schema)
    for name, kind in answers[0].signature:
        parts = [answer.inputs[name] for answer in answers]
        if kind == "str":
            column = pa.array([value for part in parts for value in part], pa.string())
        else:
            column = pa.array(np.concatenate(parts))
        table = table.append_column(name, column)
    return table
