"""Do clients of the champion reach the candidate? Its inputs have to be the same, or the change accepted by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# A release with this run tag accepts a change of the inputs it names, separated by commas.
ACCEPT_TAG = "trimtab/accept_schema"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Inputs by name: those only the candidate takes, those only the champion takes, and those of another type.

    accepted: names whose change somebody accepted; by: where that was said.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    by: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every input that changes."""
        return (*self.added, *self.removed, *self.retyped)

    @property
    def open(self) -> tuple[str, ...]:
        """Changes that nobody accepted."""
        return tuple(name for name in self.names if name not in self.accepted)

    @property
    def comparable(self) -> bool:
        """Whether rows made for the candidate can be put to the champion as well."""
        return not self.removed and not self.retyped

    def said(self) -> str:
        """The change in words."""
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (
                ("asks for", self.added),
                ("no longer takes", self.removed),
                ("takes in another type", self.retyped),
            )
            if names
        ]
        return "; ".join(parts)

    def as_details(self) -> dict[str, Any]:
        """For the record."""
        return {
            "added": self.added,
            "removed": self.removed,
            "retyped": self.retyped,
            "accepted": [name for name in self.names if name in self.accepted],
            "by": self.by,
        }


def schema_change(
    champion: Mapping[str, str], candidate: Mapping[str, str], accepted: Iterable[str] = (), tag: str = ""
) -> SchemaChange:
    """From the inputs of both, type by name; their order does not matter, inputs go by name.

    accepted: of the spec; tag: the value of the run's `ACCEPT_TAG`.
    """
    by_tag = [name.strip() for name in tag.split(",") if name.strip()]
    by_spec = list(accepted)
    sources = [
        source for source, names in ((f"run tag {ACCEPT_TAG}", by_tag), ("training.accept_schema", by_spec)) if names
    ]
    return SchemaChange(
        added=tuple(name for name in candidate if name not in champion),
        removed=tuple(name for name in champion if name not in candidate),
        retyped=tuple(name for name in candidate if name in champion and candidate[name] != champion[name]),
        accepted=tuple(dict.fromkeys([*by_tag, *by_spec])),
        by=" and ".join(sources),
    )
