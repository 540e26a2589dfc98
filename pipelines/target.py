"""What the target column of a table asks for: the chance of an event, or a number."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assets.task import Task
from pipelines.quoting import literal, quoted
from resources.errors import SpecError

if TYPE_CHECKING:
    import pyarrow as pa

YES = ("1", "1.0", "true", "yes", "y", "t")
# A number that takes more values than these is an amount, not a kind.
MOST_KINDS = 10


@dataclass(frozen=True, slots=True)
class Target:
    """sql: the label, null where the outcome is; meaning: what is answered, in words; seen: what the table holds."""

    task: Task
    sql: str
    meaning: str
    seen: str


def target(file: Path, column: "pa.ChunkedArray", name: str, task: Task | None, positive: str | None) -> Target:
    """Of the task that is asked for, else of the one that the values speak for. `SpecError` when they do not fit."""
    import pyarrow as pa

    numbers = pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    if task is None:
        amounts = numbers and positive is None and len(column.unique()) > MOST_KINDS
        task = "regression" if amounts else "binary"
    if task == "binary":
        return _event(file, column, name, positive)
    if positive is not None:
        raise SpecError(
            file, "--positive", positive, "names an event, and --task regression answers a number: leave one out"
        )
    if not numbers:
        raise SpecError(file, "--target", f"{name}: {column.type}", "is no number: leave --task out, or write numbers")
    return _number(file, column, name)


def _number(file: Path, column: "pa.ChunkedArray", name: str) -> Target:
    import pyarrow.compute as pc

    ends = pc.min_max(column)
    low, high = (ends[end].as_py() for end in ("min", "max"))
    if low is None or low == high:
        raise SpecError(file, "--target", name, f"holds no two numbers (only {low}): there is nothing to learn")
    seen = f"{name} lies between {low:g} and {high:g}"
    return Target("regression", f"CAST({quoted(name)} AS DOUBLE)", f"The {name} to expect.", seen)


def _event(file: Path, column: "pa.ChunkedArray", name: str, wanted: str | None) -> Target:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = [item for item in column.unique().to_pylist() if item is not None]
    shown = ", ".join(sorted(map(str, values))[:5]) + (", ..." if len(values) > 5 else "")
    if wanted is None:
        found = [value for value in values if str(value).lower() in YES]
        if len(values) != 2 or len(found) != 1:
            remedy = f"it holds {len(values)} values ({shown}): name the event with --positive VALUE"
            raise SpecError(file, "--target", name, remedy)
    else:
        found = [value for value in values if str(value) == wanted]
        if not found or len(values) < 2:
            raise SpecError(file, "--positive", wanted, f"{name} needs it and another value, and holds {shown}")
    event = found[0]
    count = pc.sum(pc.equal(column, pa.scalar(event, column.type))).as_py()
    if isinstance(event, bool):
        condition, meaning = (quoted(name) if event else f"NOT {quoted(name)}"), f"{name} is {str(event).lower()}"
    else:
        value = repr(event) if isinstance(event, int | float) else literal(str(event))
        condition, meaning = f"{quoted(name)} = {value}", f"{name} is {event}"
    sql = f"CASE WHEN {quoted(name)} IS NULL THEN NULL WHEN {condition} THEN 1 ELSE 0 END"
    return Target("binary", sql, f"The chance that {meaning}.", f"{count} times {meaning}")
