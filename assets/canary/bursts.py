"""Slow requests come in bursts that one pool has to itself, so the unit of their evidence is a look, not a request.

A stall of one pool makes every request slow that it holds. Counted one by one they are proof of anything; here a look
of seconds bets once, on the difference of the two arms' shares of slow requests, whatever the burst within it:
E = mean over stakes l of prod_t (1 + l/(1+tol) (g_c - (1+tol) g_b)), g = min(share of slow requests, cap) / cap.
While E[g_c | past] <= (1+tol) E[g_b | past], P(ever E >= 1/alpha) <= alpha (Ville). That holds for requests that are
slow one by one (they fall on the arms at random) and for stalls (a share of time, for equal pools the same on both),
and for trouble that both share. The cap comes from the past and from how many requests there are, never from what
they did. It takes more from the smaller arm, whose share scatters more (Jensen): where that would be the champion, at
shares of the challenger above a half, nothing is capped. Source: Waudby-Smith & Ramdas, JRSSB 2024, betting.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assets.canary.eprocess import log_mean

Floats = NDArray[np.float64]
# Requests, and slow ones among them.
Arm = tuple[ArrayLike, ArrayLike]

# Parts of the capital at stake in a look: small ones find small differences, large ones are quick.
STAKES = (0.4, 0.9)
# The same at 100 %, where the challenger is held to an absolute rate.
ALONE = (0.05, 0.2, 0.5)
# Weight of the comparison; the rest goes to the looks at 100 %.
COMPARED = 0.9
# A look's share of slow requests counts up to this many times the usual one, and always up to one request.
CAP = 3.0
# What is taken for usual before the first look: slow requests, of requests.
USUAL = (1.0, 20.0)


def winnings(share: float, canary: Arm, baseline: Arm, usual: ArrayLike, tolerance: float) -> Floats:
    """(..., K) log of the factor by which a look multiplies the capital, one for each of STAKES.

    canary, baseline: requests and slow ones, (...) each; a look in which one arm has no request wins nothing.
    usual: (...) share of slow requests in all looks before.
    """
    (mine, my_slow), (theirs, their_slow) = (np.asarray(arm, dtype=np.float64) for arm in (canary, baseline))
    both = (mine > 0) & (theirs > 0)
    cap = np.minimum(CAP * np.asarray(usual) + 1 / np.maximum(np.minimum(mine, theirs), 1), 1.0)
    if share > 0.5:
        cap = np.ones_like(cap)
    my_part, their_part = (
        np.minimum(slow / np.maximum(requests, 1), cap) / cap
        for requests, slow in ((mine, my_slow), (theirs, their_slow))
    )
    gain = np.where(both, my_part - (1 + tolerance) * their_part, 0.0) / (1 + tolerance)
    won: Floats = np.log1p(gain[..., None] * np.asarray(STAKES))
    return won


@dataclass(frozen=True, slots=True)
class Bursts:
    """What the looks so far prove about slow requests. tolerance, max_rate: the nulls that are bet against.

    requests, slow: of both arms, so far. compared, alone: log of the capital, one for each of STAKES and of ALONE.
    """

    tolerance: float
    max_rate: float
    requests: int = 0
    slow: int = 0
    compared: tuple[float, ...] = (0.0,) * len(STAKES)
    alone: tuple[float, ...] = (0.0,) * len(ALONE)

    def update(self, share: float, canary: tuple[int, int], baseline: tuple[int, int]) -> Self:
        """After one look. share: assigned share of the canary; canary, baseline: requests and slow ones of each arm.

        A look in which one arm has no request compares nothing.
        """
        (mine, my_slow), (theirs, their_slow) = canary, baseline
        compared, alone = self.compared, self.alone
        if 0 < share < 1 and mine and theirs:
            usual = (self.slow + USUAL[0]) / (self.requests + USUAL[1])
            won = winnings(share, (mine, my_slow), (theirs, their_slow), usual, self.tolerance)
            compared = tuple(float(log + more) for log, more in zip(compared, won, strict=True))
        elif share == 1 and mine:
            gain = (my_slow / mine - self.max_rate) / self.max_rate
            alone = tuple(log + math.log1p(stake * gain) for log, stake in zip(alone, ALONE, strict=True))
        requests, slow = self.requests + mine + theirs, self.slow + my_slow + their_slow
        return replace(self, requests=requests, slow=slow, compared=compared, alone=alone)

    @property
    def log_e(self) -> float:
        """Log of the e-process; 0 before the first look."""
        one, two = (float(log_mean(np.array(logs))) for logs in (self.compared, self.alone))
        return float(np.logaddexp(math.log(COMPARED) + one, math.log(1 - COMPARED) + two))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "compared": list(self.compared), "alone": list(self.alone)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(**dict(value) | {name: tuple(value[name]) for name in ("compared", "alone")})
