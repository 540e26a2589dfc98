"""Who pays for the gain: the comparison within each value of the named columns, the small ones together."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.decision import Evidence
from assets.shadow.confidence import running
from assets.shadow.settings import ShadowSettings
from assets.verdict import Verdict

Floats = NDArray[np.float64]
SMALL = "(small)"


@dataclass(frozen=True, slots=True)
class Slice:
    """Mean gain a request of one slice, and the most that chance would leave it at. upper: +inf while unknown."""

    name: str
    labels: int
    gain: float
    upper: float


def slices(
    frame: pd.DataFrame,
    difference: Floats,
    blocks: NDArray[np.intp],
    settings: ShadowSettings,
    radius: Callable[[float, float], float],
) -> tuple[Evidence, list[dict[str, Any]]]:
    """The worst slice decides: FAIL when one loses more than allowed and more than chance explains.

    frame: (n,) rows with the columns `settings.slices`; difference: (n,) champion loss - challenger loss; blocks: (n,)
    number of each row's block; radius: (effective blocks, level) to half-width in spreads. The chance of a wrong
    refusal is shared out among the slices (Bonferroni).
    """
    groups = [
        (name, rows) for column in settings.slices for name, rows in _groups(frame[column], settings.min_slice_labels)
    ]
    if not groups:
        why = f"no slice of {', '.join(settings.slices)} has {settings.min_slice_labels} labels: none can be judged"
        return Evidence("slices", Verdict.INCONCLUSIVE, why), []
    level = settings.alpha / len(groups)
    found = [_slice(name, difference[rows], blocks[rows], level, radius) for name, rows in groups]
    limit = settings.max_slice_loss
    worse = [item for item in found if item.gain < -limit and item.upper < 0]
    worst = min(found, key=lambda item: item.gain)
    named = ", ".join(f"{item.name} {item.gain:+.5f}" for item in worse or [worst])
    which = "these" if worse else "worst"
    why = f"{len(worse)} of {len(found)} slices lose more than {limit:g} a request; {which}: {named}"
    table = [
        {"slice": i.name, "labels": i.labels, "gain": i.gain, "upper": i.upper}
        for i in sorted(found, key=lambda item: item.gain)
    ]
    return Evidence("slices", Verdict.FAIL if worse else Verdict.PASS, why, worst.gain, -limit), table


def _groups(column: pd.Series, least: int) -> list[tuple[str, NDArray[np.intp]]]:
    """Positions of each value with enough rows, in order of value; what is small lies together, if that is enough."""
    code, found = pd.factorize(column)
    names = np.array([*map(str, found), "(missing)"], dtype=object)
    code = np.where(code < 0, len(found), code)
    rows = np.bincount(code, minlength=len(names))
    large = sorted((str(names[at]), at) for at in np.flatnonzero(rows >= least))
    groups = [(f"{column.name}={name}", np.flatnonzero(code == at)) for name, at in large]
    small = np.flatnonzero(rows[code] < least)
    return groups + ([(f"{column.name}={SMALL}", small)] if len(small) >= least else [])


def _slice(
    name: str,
    difference: Floats,
    blocks: NDArray[np.intp],
    level: float,
    radius: Callable[[float, float], float],
) -> Slice:
    rows, sums = np.bincount(blocks), np.bincount(blocks, difference)
    path = running(sums[rows > 0].astype(np.float64), rows[rows > 0].astype(np.float64))
    mean, spread, effective = (float(part[-1]) for part in (path.mean, path.spread, path.effective))
    upper = mean + spread * radius(effective, level) if effective >= 2 and math.isfinite(spread) else math.inf
    return Slice(name, len(difference), mean, upper)
