"""Which decisions of the drift gate came before: found among their keys, which carry the instant."""

from collections.abc import Sequence
from datetime import datetime


def prefix(model: str) -> str:
    """Where the drift decisions of a model lie."""
    return f"decisions/{model}/drift/"


def at(keys: Sequence[str], model: str, as_of: datetime) -> list[str]:
    """Keys of decisions taken at an instant."""
    return [key for key in keys if key.startswith(f"{prefix(model)}{as_of:%Y%m%dT%H%MZ}/")]


def latest(keys: Sequence[str], model: str, limit: datetime, inclusive: bool) -> str:
    """Key of the latest decision taken before an instant, or at it too; '' without one. keys: in order."""
    end = f"{prefix(model)}{limit:%Y%m%dT%H%MZ}/{'~' if inclusive else ''}"
    before = [key for key in keys if key <= end]
    return before[-1] if before else ""
