"""What a feature set says of itself."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from pydantic import AwareDatetime, ConfigDict, Field
from pydantic.dataclasses import dataclass

from resources.errors import SpecError
from resources.yaml_lines import line_of

FeatureType = Literal["string", "float", "int", "bool"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

# Every snapshot has these beside its features and its label.
CANONICAL = ("entity", "event_time", "label_known_at")


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Column:
    """One model input."""

    name: Name
    type: FeatureType
    description: str = ""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", coerce_numbers_to_str=True))
class FeatureSet:
    """One version of a feature set, valid over [valid_from, valid_to).

    entity, event_time, known_at, label and label_known_at name columns of what the SQL, or the Python function, gives.
    python: `module:function`, called with start, end and as_of (UTC); a module beside the file goes first.
    freshness_hours: greatest age of a snapshot's newest row at the snapshot's instant; older, its check says so.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    valid_from: AwareDatetime
    entity: Name
    event_time: Name
    known_at: Name
    label: Name
    label_known_at: Name
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    sources: tuple[Name, ...] = ()
    sql: str = ""
    python: Annotated[str, Field(pattern=r"^$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = ""
    valid_to: AwareDatetime | None = None
    freshness_hours: Annotated[float, Field(gt=0)] = 24.0
    description: str = ""
    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def features(self) -> dict[str, str]:
        """Column name to type, in order."""
        return {column.name: column.type for column in self.columns}

    def flaw(self, name: str, value: object, remedy: str, line: str | None = None) -> SpecError:
        """The error about one of its fields, at that field's line, or at that of another one."""
        return SpecError(self.file, name, value, remedy, line_of(self.lines, line or name))
