"""The decision record: one gate, its evidence, and why. Kept for ever in MLflow and S3."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from assets.verdict import Verdict, overall


@dataclass(frozen=True, slots=True)
class Evidence:
    """One statistic against its threshold. `why` is a sentence a person understands alone.

    decides: whether the verdict of the decision depends on it; a hint is shown beside and changes nothing.
    """

    name: str
    verdict: Verdict
    why: str
    statistic: float | None = None
    threshold: float | None = None
    decides: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate decided at `as_of` on inputs named by digest; `details` holds what a page shows beside it."""

    model: str
    gate: str
    as_of: datetime
    why: str
    evidence: tuple[Evidence, ...]
    inputs: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The most severe of the evidence that decides."""
        return overall(item.verdict for item in self.evidence if item.decides)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a number that is not finite becomes None, for JSON has no word for it."""
        return {
            "model": self.model,
            "gate": self.gate,
            "as_of": self.as_of.isoformat(),
            "verdict": self.verdict.name,
            "why": self.why,
            "evidence": [
                {
                    "name": e.name,
                    "verdict": e.verdict.name,
                    "why": e.why,
                    "statistic": _plain(e.statistic),
                    "threshold": _plain(e.threshold),
                    **({} if e.decides else {"decides": False}),
                }
                for e in self.evidence
            ],
            "inputs": dict(self.inputs),
            "details": _plain(self.details),
        }

    def to_json(self) -> bytes:
        """Canonical bytes: the same decision is the same digest."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=1, allow_nan=False).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Verdict):
        return value.name
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
