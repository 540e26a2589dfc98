"""From an alarm budget, 'at most 3 false alarms a year over all features', to the levels that keep it.

One half is for the inputs, which one aggregate of all features judges, the other for harm, by the union bound.

Inputs: a block alarms with probability alpha, as the conformal level promises, and an alarm begins where `hits` of the
last `of` blocks are above it and one block before they were not. For independent blocks that happens in a share
a(1 - a) C(of - 1, hits - 1) a^(hits - 1) (1 - a)^(of - hits) of all blocks: an upward crossing needs the newest block
above, the one that leaves not, and hits - 1 of those between. Correlated blocks alarm in clusters: what was realised
is reported beside the budget. Harm: the e-detector's mean time between false alarms is at least its ARL.
"""

import math
from dataclasses import dataclass
from datetime import timedelta

YEAR = timedelta(days=365.25)


@dataclass(frozen=True, slots=True)
class Levels:
    """alpha: false-alarm rate of one block; arl_days: least mean time between false alarms of harm; history: past
    blocks without which no level keeps alpha."""

    alpha: float
    arl_days: float
    history: int


def levels(alarms_per_year: float, block: timedelta, hits: int, of: int) -> Levels:
    """The least strict levels that keep the budget.

    >>> found = levels(3, timedelta(days=1), 2, 3)
    >>> round(found.alpha, 4), round(found.arl_days, 1), found.history
    (0.0476, 243.5, 21)
    """
    share = alarms_per_year / 2
    allowed = share / (YEAR / block)
    # Beyond the middle of its own range an alarm that never ends begins less often: the search stays below it.
    low, high = 0.0, min((hits - 0.5) / of, 0.5)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if beginnings(middle, hits, of) <= allowed else (low, middle)
    return Levels(low, YEAR / timedelta(days=1) / share, math.ceil(1 / low - 1e-9) - 1)


def beginnings(alpha: float, hits: int, of: int) -> float:
    """Share of independent blocks in which an alarm begins.

    >>> beginnings(0.05, 1, 1), round(beginnings(0.05, 2, 3), 6)
    (0.0475, 0.004513)
    """
    between = math.comb(of - 1, hits - 1) * alpha ** (hits - 1) * (1 - alpha) ** (of - hits)
    return alpha * (1 - alpha) * between
