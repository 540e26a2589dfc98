"""What a shadow's gain is worth once it is served: learned from what became of past decisions."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assets.decision import Evidence
from assets.shadow.settings import LearningSettings
from assets.verdict import Verdict

Floats = NDArray[np.float64]

# Noise of a realised gain where the shadow saw none, in parts of what it is where the shadow saw a usual gain's worth.
FLOOR = 0.5
SMALLEST = 1e-30


@dataclass(frozen=True, slots=True)
class Pair:
    """What a shadow saw at `as_of`, and what refitting then turned out to gain over `learning.horizon_days`.

    Both a request, in units of the loss. Known whether or not the loop went on: a refusal teaches as much as a yes.
    """

    as_of: datetime
    shadow: float
    realised: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Student's t with `freedom` degrees around `mean`: the realised gain of a decision whose shadow saw `shadow`.

    share: of a shadow's gain that is realised, as learned from `pairs` that together weigh `weight`.
    """

    shadow: float
    mean: float
    scale: float
    freedom: float
    share: float
    pairs: int
    weight: float

    @property
    def gain(self) -> float:
        """E[max(realised, 0)]: what a no would forgo."""
        z = self.mean / self.scale
        return float(self.scale * (_density(z, self.freedom) * (self.freedom + z**2) / (self.freedom - 1)
                                   + z * _below(z, self.freedom)))  # fmt: skip

    @property
    def harm(self) -> float:
        """E[max(-realised, 0)]: what a yes would do."""
        return self.gain - self.mean

    @property
    def chance_of_harm(self) -> float:
        return _below(-self.mean / self.scale, self.freedom)


def forecast(shadow: float, history: Sequence[Pair], settings: LearningSettings) -> Forecast:
    """Bayesian regression of realised on shadow gain through the origin; the prior is worth `settings.pairs` pairs.

    realised = share · shadow + noise: pairs shrink the estimate (statistics section 3b, lesson 3) or stretch it, they
    never overrule it, for what brought gain on average in spring brings harm in autumn. Noise grows with the gain that
    was seen and has a floor: a world that changes fast is no reason to distrust a slight gain in quiet times. Pairs
    whose horizons overlap tell the same weeks twice and weigh accordingly less. No scale is given: gains set it.
    Source: normal-inverse-gamma conjugate regression, Gelman et al., Bayesian Data Analysis, 3rd ed., section 14.8.
    """
    pairs = sorted(history, key=lambda pair: pair.as_of)
    x, y = (np.array([getattr(pair, name) for pair in pairs], dtype=np.float64) for name in ("shadow", "realised"))
    weight = _weights([pair.as_of for pair in pairs], settings.horizon_days)
    unit = max(float(np.mean(np.append(x, shadow) ** 2)), SMALLEST)
    noise = (np.append(x, shadow) ** 2 / unit + FLOOR) / (1 + FLOOR)
    w, prior = weight / noise[:-1], settings.pairs * unit
    precision = prior + float(w @ x**2)
    share = (prior * settings.share + float(w @ (x * y))) / precision
    freedom = settings.pairs + float(weight.sum())
    residual = float(w @ y**2) + prior * settings.share**2 - precision * share**2
    variance = (prior + max(residual, 0.0)) / freedom
    scale = math.sqrt(variance * (float(noise[-1]) + shadow**2 / precision))
    # Below one degree of freedom a mean of what lies above 0 does not exist.
    return Forecast(shadow, share * shadow, scale, max(freedom, 1.01), share, len(pairs), float(weight.sum()))


def _weights(at: Sequence[datetime], horizon_days: float) -> Floats:
    apart = [(b - a).total_seconds() / 86_400 / horizon_days for a, b in pairwise(at)]
    found: Floats = np.minimum(np.array([1.0, *apart][: len(at)]), 1.0)
    return found


def weigh(found: Forecast, cost: float, settings: LearningSettings) -> Evidence:
    """PASS when the gain that a no would forgo exceeds the harm that a yes may do and the cost of the loop.

    cost: of one loop, in units of the loss a request. The statistic is what a yes is expected to bring in all.
    """
    balance = found.gain - settings.harm_weight * found.harm - cost
    said = f"{found.pairs} past pairs say {found.share:.0%} of it" if found.pairs else "no past pair yet"
    why = (
        f"{found.shadow:+.5f} in the shadow is expected to bring {found.mean:+.5f} a request ({said}; chance of harm "
        f"{found.chance_of_harm:.0%}): gain {found.gain:.5f}, harm {found.harm:.5f} x {settings.harm_weight:g}, cost "
        f"{cost:.5f}"
    )
    if balance > 0:
        return Evidence("gain", Verdict.PASS, f"retraining pays: {why}", balance, 0.0)
    return Evidence("gain", Verdict.FAIL, f"retraining does not pay: {why}", balance, 0.0)


def _density(z: float, freedom: float) -> float:
    half = (freedom + 1) / 2
    log = math.lgamma(half) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(log - half * math.log1p(z**2 / freedom))


def _below(z: float, freedom: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, z))
