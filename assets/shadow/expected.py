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
    """Student's t with `freedom` degrees around `mean`: the realised gain of a decision whose shadow saw `shadow`."""

    shadow: float
    mean: float
    scale: float
    freedom: float
    share: float
    offset: float
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
    """Bayesian regression of realised on shadow gain; the prior is worth `settings.pairs` pairs.

    realised = offset + share · shadow + noise. Before any pair: offset 0, the spec's share, and noise as large as the
    shadow itself. With pairs all three are learned: where last week says little about next month (statistics section
    3b, lesson 3) the share shrinks towards 0 and the mean of what retraining brought decides instead. Pairs whose
    horizons overlap tell the same weeks twice and weigh accordingly less. shadow must not be 0 without history.
    Source: normal-inverse-gamma conjugate regression, Gelman et al., Bayesian Data Analysis, 3rd ed., section 14.8.
    """
    pairs = sorted(history, key=lambda pair: pair.as_of)
    x, y = (np.array([getattr(pair, name) for pair in pairs], dtype=np.float64) for name in ("shadow", "realised"))
    w = _weights([pair.as_of for pair in pairs], settings.horizon_days)
    unit = float(np.mean(np.append(x, shadow) ** 2))  # the scale of gains here, whatever the loss
    prior_mean, prior = np.array([0.0, settings.share]), settings.pairs * np.diag([1.0, unit])
    design = np.column_stack([np.ones(len(x)), x])
    precision = prior + design.T @ (w[:, None] * design)
    mean = np.linalg.solve(precision, prior @ prior_mean + design.T @ (w * y))
    freedom = settings.pairs + float(w.sum())
    residual = float(w @ y**2 + prior_mean @ prior @ prior_mean - mean @ precision @ mean)
    variance = (settings.pairs * unit + max(residual, 0.0)) / freedom
    at = np.array([1.0, shadow])
    scale = math.sqrt(variance * (1 + float(at @ np.linalg.solve(precision, at))))
    # Below one degree of freedom a mean of what lies above 0 does not exist.
    return Forecast(shadow, float(at @ mean), scale, max(freedom, 1.01), float(mean[1]), float(mean[0]), len(pairs),
                    float(w.sum()))  # fmt: skip


def _weights(at: Sequence[datetime], horizon_days: float) -> Floats:
    apart = [(b - a).total_seconds() / 86_400 / horizon_days for a, b in pairwise(at)]
    found: Floats = np.minimum(np.array([1.0, *apart][: len(at)]), 1.0)
    return found


def weigh(found: Forecast, cost: float, settings: LearningSettings) -> Evidence:
    """PASS when the gain that a no would forgo exceeds the harm that a yes may do and the cost of the loop.

    cost: of one loop, in units of the loss a request. The statistic is what a yes is expected to bring in all.
    """
    balance = found.gain - settings.harm_weight * found.harm - cost
    seen = (
        f"{found.pairs} past pairs of shadow and realised gain say {found.offset:+.5f} and {found.share:.2f} of a "
        f"shadow's gain" if found.pairs else f"no past pair yet, {found.share:.0%} of a shadow's gain is expected"
    )  # fmt: skip
    why = (
        f"{found.shadow:+.5f} in the shadow is expected to bring {found.mean:+.5f} a request ({seen}; chance of harm "
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
