"""One line of `make bench`: a figure, what it is held against, and whether it was reached."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """`ratio` compares with a reference measured in the same run; None where the target is absolute."""

    room: str
    name: str
    figure: float | None
    unit: str
    target: str
    met: bool
    ratio: float | None = None
    reference: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        figure = "not measured" if self.figure is None else f"{self.figure:,.4g} {self.unit}"
        ratio = "" if self.ratio is None else f"  ({self.ratio:.3g} × {self.reference})"
        return (
            f"{'met ' if self.met else 'MISSED'}  {self.room:<8} {self.name}: {figure}{ratio}  [target {self.target}]"
        )


def at_most(room: str, name: str, figure: float | None, unit: str, limit: float) -> Line:
    """A figure that must not exceed a limit. What was not measured is not met."""
    return Line(room, name, figure, unit, f"≤ {limit:g} {unit}", figure is not None and figure <= limit)


def at_least(room: str, name: str, figure: float | None, unit: str, limit: float) -> Line:
    """A figure that must reach a limit."""
    return Line(room, name, figure, unit, f"≥ {limit:g} {unit}", figure is not None and figure >= limit)


Bench = Callable[[], Iterable[Line]]
