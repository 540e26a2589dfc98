"""What a table says about the model that could be made of it: inputs, target, time, and how much of everything."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.task import Task
from pipelines.quoting import quoted
from pipelines.target import Target
from pipelines.target import target as target_of
from resources.errors import SpecError
from resources.features import CANONICAL

if TYPE_CHECKING:
    import pyarrow as pa

# Names that the SQL of a drafted feature set gives to what every row has.
ROLES = ("row_key", "happened_at", "outcome_known_at")
# A word of its own in more than every second row names the row, not a kind of it.
IDENTIFIER_SHARE, IDENTIFIER_LEAST = 0.5, 50
HOLDOUT_ROWS = 600


@dataclass(frozen=True, slots=True)
class Input:
    """One column of the source and the model input made of it. sql: its expression; type: of a feature column."""

    source: str
    name: str
    type: str
    sql: str


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything the files of a new model are written from. outcome: what is made of the column `target`."""

    model: str
    file: str
    inputs: tuple[Input, ...]
    left_out: tuple[tuple[str, str], ...]
    time: str
    key: str | None
    target: str
    label: str
    outcome: Target
    start: datetime
    rows: int
    lookback_days: int
    holdout_days: int


def read_table(file: Path) -> "pa.Table":
    """A CSV or Parquet file. `SpecError` when it is neither, cannot be read or holds no row."""
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, read_csv
    from pyarrow.parquet import read_table as read_parquet

    readers: dict[str, Any] = {
        ".csv": lambda: read_csv(file, convert_options=ConvertOptions(strings_can_be_null=True)),
        ".parquet": lambda: read_parquet(file),
    }
    if file.suffix.lower() not in readers:
        raise SpecError(file, "--from", file.suffix, "is neither .csv nor .parquet: write the table as one of them")
    try:
        table: pa.Table = readers[file.suffix.lower()]()
    except (OSError, pa.ArrowException) as error:
        raise SpecError(file, "--from", str(file), f"cannot be read: {error}") from error
    if not table.num_rows:
        raise SpecError(file, "--from", 0, "holds no rows: give the rows that the model shall learn from")
    return table


def draft(
    model: str,
    file: Path,
    table: "pa.Table",
    target: str,
    time: str,
    key: str | None,
    positive: str | None,
    task: Task | None = None,
) -> Draft:
    """What can be said from the table alone, the task too. `SpecError` names file, field, value and remedy."""
    for field, name in (("--target", target), ("--time", time), *((("--key", key),) if key else ())):
        if name not in table.column_names:
            raise SpecError(file, field, name, f"is no column: choose one of {', '.join(table.column_names)}")
    if len({target, time, key}) < 3:
        raise SpecError(file, "--target", target, "target, time and key have to be three different columns")
    first, last = _span(file, table[time], time)
    if key is not None and len(table[key].unique()) < table.num_rows:
        raise SpecError(file, "--key", key, "names some rows twice: choose a unique column, or leave --key out")
    outcome = target_of(file, table[target], target, task, positive)
    label = _names([target], {*CANONICAL, *ROLES})[0]
    inputs, left_out = _inputs(table, {target, time, key}, label)
    if not inputs:
        raise SpecError(file, "--from", table.column_names, "no column is left to predict from: add some")
    days = max((last - first).total_seconds() / 86_400, 1.0)
    holdout = int(min(max(7.0, HOLDOUT_ROWS * days / table.num_rows), max(days / 4, 1.0)))
    return Draft(
        model=model,
        file=file.name,
        inputs=inputs,
        left_out=left_out,
        time=time,
        key=key,
        target=target,
        label=label,
        outcome=outcome,
        start=first.replace(hour=0, minute=0, second=0, microsecond=0),
        rows=table.num_rows,
        lookback_days=max(365, 5 * holdout),
        holdout_days=holdout,
    )


def _span(file: Path, column: "pa.ChunkedArray", name: str) -> tuple[datetime, datetime]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        remedy = "is no time: write ISO 8601, as 2024-05-01T13:00:00Z (without a zone it counts as UTC)"
        raise SpecError(file, "--time", f"{name}: {column.type}", remedy)
    if column.null_count:
        raise SpecError(file, "--time", name, f"{column.null_count} rows have no time: drop them or fill it in")
    ends = pc.min_max(column.cast(pa.timestamp("us", getattr(column.type, "tz", None))))
    first, last = (value.as_py() for value in (ends["min"], ends["max"]))
    return tuple(at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC) for at in (first, last))


def _inputs(
    table: "pa.Table", roles: set[str | None], label: str
) -> tuple[tuple[Input, ...], tuple[tuple[str, str], ...]]:
    chosen, left_out = [], []
    for name in table.column_names:
        if name in roles:
            continue
        kind, sql_or_reason = _kind(name, table[name])
        if kind is None:
            left_out.append((name, sql_or_reason))
        else:
            chosen.append((name, kind, sql_or_reason))
    names = _names([name for name, _, _ in chosen], {*CANONICAL, *ROLES, label})
    inputs = (Input(source, name, kind, sql) for (source, kind, sql), name in zip(chosen, names, strict=True))
    return tuple(inputs), tuple(left_out)


def _kind(name: str, column: "pa.ChunkedArray") -> tuple[str | None, str]:
    """(feature type, SQL), or (None, why it is left out)."""
    from pyarrow import types

    kind, complete = column.type, not column.null_count
    if types.is_dictionary(kind):
        kind = kind.value_type
    if column.null_count == len(column):
        return None, "it is empty"
    if types.is_boolean(kind):
        return ("int" if complete else "float"), f"CAST({quoted(name)} AS INTEGER)"
    if types.is_integer(kind):
        return ("int" if complete else "float"), quoted(name)
    if types.is_floating(kind) or types.is_decimal(kind):
        return "float", quoted(name)
    if types.is_string(kind) or types.is_large_string(kind):
        distinct = len(column.unique())
        if distinct > max(IDENTIFIER_LEAST, IDENTIFIER_SHARE * len(column)):
            return None, f"{distinct} different values in {len(column)} rows: it names rows"
        return "string", quoted(name)
    return None, f"{kind} is no model input: compute a number or a word from it in the SQL"


def _names(sources: Iterable[str], taken: set[str]) -> list[str]:
    """A name that a model input may have for each, none twice (SQL doesn't tell `Age` from `age`).

    >>> _names(["Monthly fee", "monthly_fee", "2nd", "row_key"], {"row_key"})
    ['Monthly_fee', 'monthly_fee_2', '_2nd', 'row_key_2']
    """
    used, names = {name.lower() for name in taken}, []
    for source in sources:
        plain = re.sub(r"\W", "_", source, flags=re.ASCII) or "_"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        name, number = plain, 2
        while name.lower() in used:
            name, number = f"{plain}_{number}", number + 1
        used.add(name.lower())
        names.append(name)
    return names


def first_partition(found: Draft, cadence: str) -> datetime:
    """Where partitions begin: the first day with rows; for a weekly model the first of its weekday, Monday."""
    return found.start - timedelta(days=found.start.weekday()) if cadence == "weekly" else found.start
