"""Canary judges of others, to be measured beside ours: per-minute counts -> fired by then, (runs, minutes)."""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.float64]
Fired = NDArray[np.bool_]

# Minutes before a rank test can say anything.
FEWEST = 5


def mann_whitney(canary_bad: Counts, canary: Counts, bad: Counts, baseline: Counts) -> Fired:
    """Kayenta's defaults: the 98 % interval of the shift between the minutes' rates lies above .25 of the shift.

    Source: spinnaker/kayenta, MannWhitneyClassifier (tolerance .25, confidence level .98), direction 'increase'.
    """
    mine, theirs = canary_bad / np.maximum(canary, 1), bad / np.maximum(baseline, 1)
    fired = np.zeros(mine.shape, dtype=bool)
    for minute in range(FEWEST, mine.shape[1] + 1):
        apart = (mine[:, :minute, None] - theirs[:, None, :minute]).reshape(len(mine), -1)
        apart.sort(axis=1)
        pairs = minute * minute
        rank = int(np.floor(pairs / 2 - 2.326 * np.sqrt(pairs * (2 * minute + 1) / 12)))
        if rank < 1:
            continue
        shift = np.median(apart, axis=1)
        fired[:, minute - 1] = apart[:, rank - 1] > 0.25 * np.abs(shift)
    return np.logical_or.accumulate(fired, axis=1)


def threshold(canary_bad: Counts, canary: Counts, bad: Counts, baseline: Counts, *, strikes: int) -> Fired:
    """Flagger's manner: a minute in which the canary's rate is half again the champion's is a strike."""
    worse = canary_bad / np.maximum(canary, 1) > 1.5 * bad / np.maximum(baseline, 1)
    return np.cumsum(worse, axis=1) >= strikes


def naive_z(canary_bad: Counts, canary: Counts, bad: Counts, baseline: Counts) -> Fired:
    """The one-sided z-test on pooled rates at 5 %, asked anew every minute."""
    xc, nc, xb, nb = (np.cumsum(counts, axis=1) for counts in (canary_bad, canary, bad, baseline))
    pooled = (xc + xb) / (nc + nb)
    spread = np.sqrt(np.maximum(pooled * (1 - pooled), 1e-12) * (1 / np.maximum(nc, 1) + 1 / nb))
    fired: Fired = (xc / np.maximum(nc, 1) - xb / nb) / spread > 1.645
    return np.logical_or.accumulate(fired, axis=1)
