"""Are the requests without a label like those with one? If not, the labelled speak for themselves alone."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assets.drift.ks import Numeric

Floats = NDArray[np.float64]

# Critical value of the two-sample KS distance at .1 %, and the least distance that matters (statistics section 1).
CRITICAL, FLOOR = 1.9494746, 0.05
# Fewer requests than this on one side tell nothing.
FEWEST = 30


@dataclass(frozen=True, slots=True)
class Missing:
    """The champion's scores of labelled and unlabelled requests, compared. `distance`: KS; `apart`: they differ."""

    labelled: int
    unlabelled: int
    mean_labelled: float
    mean_unlabelled: float
    distance: float
    critical: float

    @property
    def apart(self) -> bool:
        return self.distance > max(self.critical, FLOOR)

    @property
    def why(self) -> str:
        return (
            f"labels are not missing at random: the {self.unlabelled} requests without one had a mean score of "
            f"{self.mean_unlabelled:.4g}, the labelled {self.mean_labelled:.4g} (KS {self.distance:.3f}); "
            "the gain is that of the labelled alone"
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "apart": self.apart}


def compare(labelled: Floats, unlabelled: Floats) -> Missing | None:
    """labelled, unlabelled: (n,), (m,) scores. None with too few on a side to tell."""
    n, m = len(labelled), len(unlabelled)
    if min(n, m) < FEWEST:
        return None
    distance = Numeric.of(labelled).distance(unlabelled)
    critical = CRITICAL * ((n + m) / (n * m)) ** 0.5
    return Missing(n, m, float(labelled.mean()), float(unlabelled.mean()), distance, critical)
