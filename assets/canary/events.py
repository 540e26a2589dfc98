"""What can happen to a rollout."""

from dataclasses import dataclass

from assets.canary.coverage import Seen
from assets.canary.looks import Look
from assets.canary.outcomes import Span
from assets.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Loaded:
    """Every replica of the challenger's pool reported the package ready and its probe answered."""


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The challenger can't be loaded, or answers its probe wrongly."""

    reason: str


@dataclass(frozen=True, slots=True)
class WeightsConfirmed:
    """The gateway serves what `weights` and `mirror` ask for."""


@dataclass(frozen=True, slots=True)
class WeightsFailed:
    """The gateway did not take or did not confirm them."""

    reason: str


@dataclass(frozen=True, slots=True)
class MirrorSeen:
    """Copies answered since mirroring began, in all: the challenger's, and the champion's on the same requests.

    compared: logged requests that were put to the challenger and to its registered ONNX file; differing: of these, the
    ones whose answers did not agree; farthest: the largest difference.
    """

    success: int = 0
    fail: int = 0
    champion_success: int = 0
    champion_fail: int = 0
    compared: int = 0
    differing: int = 0
    farthest: float = 0.0


@dataclass(frozen=True, slots=True)
class Observed:
    """What ended since the last look, under weights that were confirmed before it began; seen: by cell, where the
    spec asks for coverage. needed: the same of requests that named a cell in need, which had a share of their own.
    span: when these requests were assigned, while both versions served.
    """

    look: Look
    seen: Seen | None = None
    needed: tuple[Look, Seen | None] | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody, or something that is no guard, ends the rollout: an operator, a crashed challenger."""

    reason: str
    verdict: Verdict = Verdict.INCONCLUSIVE


Event = Loaded | LoadFailed | WeightsConfirmed | WeightsFailed | MirrorSeen | Observed | Tick | Abort
