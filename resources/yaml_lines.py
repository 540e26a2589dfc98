"""YAML whose every field knows its line: an error that names one is found at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from resources.errors import SpecError

Lines = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. lines: dotted path (`columns.2.type`) to line, 1-based; of a literal block also `sql.3`."""

    value: Any
    lines: Lines


def documents(file: Path) -> list[Document]:
    """The documents of a file that hold anything. `SpecError` when it can't be read, is no YAML, or repeats a key."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(file, "(file)", str(file), f"cannot be read: {reason}") from error
    found = []
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # check_node said so
            lines = {"": node.start_mark.line + 1, **dict(_lines(node, "", file))}
            found.append(Document(loader.construct_document(node), lines))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        raise SpecError(file, "yaml", None, f"is not YAML: {what}", mark.line + 1 if mark else None) from error
    finally:
        loader.dispose()
    return [item for item in found if item.value is not None]


def line_of(lines: Lines, field: str) -> int | None:
    """The line of a field, of what holds it when it is missing itself, None for a document of unknown origin.

    >>> line_of({"": 1, "drift": 7}, "drift.alpha"), line_of({"": 1}, "name"), line_of({}, "name")
    (7, 1, None)
    """
    while field and field not in lines:
        field = field.rpartition(".")[0]
    return lines.get(field)


def located(flaw: SpecError) -> SpecError:
    """The same flaw of a YAML file of one document, with the line of its field if it has none yet."""
    if flaw.line is not None or not flaw.file.endswith(".yaml") or not Path(flaw.file).is_file():
        return flaw
    found = documents(Path(flaw.file))
    line = line_of(found[0].lines, flaw.field) if len(found) == 1 else None
    return SpecError(flaw.file, flaw.field, flaw.value, flaw.remedy, line)


def _lines(node: yaml.Node, path: str, file: Path) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            name, line = f"{path}{key.value}", key.start_mark.line + 1
            if name in seen:
                raise SpecError(file, name, key.value, "is written twice: keep one", line)
            seen.add(name)
            yield name, line
            yield from _lines(value, f"{name}.", file)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield f"{path}{position}", item.start_mark.line + 1
            yield from _lines(item, f"{path}{position}.", file)
    elif isinstance(node, yaml.ScalarNode) and node.style == "|":
        for number in range(1, node.value.count("\n") + 2):
            yield f"{path}{number}", node.start_mark.line + 1 + number
