"""Several challengers over one log: the chance of a wrong yes is shared out, the best that passes is chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assets.decision import Decision
from assets.shadow.expected import Pair
from assets.shadow.judge import judge
from assets.shadow.settings import ShadowSettings
from assets.verdict import Verdict

# Which of several decisions speaks for all: a yes; else what is broken, else what may still become one.
FIRST = (Verdict.PASS, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.FAIL)


@dataclass(frozen=True, slots=True)
class Contender:
    """A challenger fitted on `lookback_days` before the window. scores: (n,) what it answers; snapshot: its digest."""

    lookback_days: float
    scores: NDArray[np.float64]
    snapshot: str


def judge_all(
    model: str,
    pairs: pd.DataFrame,
    contenders: Mapping[str, Contender],
    settings: ShadowSettings,
    as_of: datetime,
    inputs: Mapping[str, str],
    history: Sequence[Pair] = (),
) -> Decision:
    """As `judge` for every contender on the same `pairs` (without the column challenger); one decision for all.

    With k of them each is judged at a k-th of the level (Bonferroni: they share requests, so no less will do). The
    record lists all; details.chosen names the one whose statistic is the highest among those that pass.
    """
    shared = _shared_out(settings, len(contenders))
    said = {
        name: judge(
            model,
            pairs.assign(challenger=_column(item.scores)),
            shared,
            as_of,
            {**inputs, "challenger_snapshot": item.snapshot},
            history,
        )
        for name, item in contenders.items()
    }
    best = min(said, key=lambda name: (FIRST.index(said[name].verdict), -_statistic(said[name])))
    decision, item = said[best], contenders[best]
    details = {**decision.details, "chosen": {"name": best, "lookback_days": item.lookback_days}}
    if len(said) == 1:
        return replace(decision, details=details)
    details["challengers"] = [_listed(name, contenders[name], found) for name, found in said.items()]
    others = ", ".join(f"{name} {found.verdict.name}" for name, found in said.items() if name != best)
    which = "chosen" if decision.verdict is Verdict.PASS else "nearest"
    why = f"{decision.why} ({which} of {len(said)}: {best}, {item.lookback_days:g} days; {others})"
    return replace(decision, why=why, details=details)


def _shared_out(settings: ShadowSettings, contenders: int) -> ShadowSettings:
    levels = {"alpha": settings.alpha / contenders, "expected_gain_alpha": settings.expected_gain_alpha / contenders}
    return settings if contenders == 1 else settings.model_copy(update=levels)


def _column(scores: NDArray[np.float64]) -> Any:
    return scores if scores.ndim == 1 else list(scores)


def _statistic(decision: Decision) -> float:
    found = [item.statistic for item in decision.evidence if item.name == "gain" and item.statistic is not None]
    return found[0] if found else -np.inf


def _listed(name: str, item: Contender, decision: Decision) -> dict[str, Any]:
    last = (decision.details.get("path") or [{}])[-1]
    return {
        "name": name,
        "lookback_days": item.lookback_days,
        "snapshot": item.snapshot,
        "verdict": decision.verdict,
        "why": decision.why,
        "mean_gain": decision.details.get("mean_gain"),
        "lower": last.get("lower"),
        "upper": last.get("upper"),
    }
