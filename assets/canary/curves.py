"""Has the canary seen enough KINDS of requests? The share of the reference's cells that it met often enough.

pi: (K,) share of the reference traffic in each cell; C_m = sum of pi over the cells that were seen m times or more.
Statistics of design section 4, 'Coverage of the feature space'.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
# Draws of C_m under random assignment: twenty lie below its quantile of 1 %.
DRAWS = 2000
# More requests than this are no plan but a refusal.
MOST = 1 << 30
# Failures without a cell that are placed one by one; so many more are beyond any budget.
PLACED = 200


def shares(reference: Sequence[int]) -> Floats:
    """pi, (K,) from reference rows by cell."""
    counts = np.asarray(reference, dtype=np.float64)
    pi: Floats = counts / counts.sum()
    return pi


def covered(pi: Floats, seen: ArrayLike, least: int) -> float:
    """C_m. seen: (K,) requests by cell; least: m.

    >>> covered(np.array([0.5, 0.3, 0.2]), [30, 29, 40], 30)
    0.7
    """
    return 1 - float(pi[np.asarray(seen) < least].sum())  # exactly 1 when all are covered


def expected(pi: Floats, requests: int, least: int) -> float:
    """E C_m(n) = sum of pi_k P(Bin(n, pi_k) >= m), where requests fall on cells as the reference did."""
    from scipy.special import bdtrc

    return float(pi @ bdtrc(least - 1, requests, pi)) if requests >= least else 0.0


def requests_needed(pi: Floats, least: int, wanted: float) -> int | None:
    """Fewest n with E C_m(n) >= wanted; None: over a thousand million."""
    few, many = 0, MOST
    if expected(pi, many, least) < wanted:
        return None
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if expected(pi, middle, least) >= wanted else (middle + 1, many)
    return many


def reached(traffic: Iterable[tuple[float, ArrayLike]], least: int) -> Floats:
    """(K,) chance that the canary has seen each cell `least` times, given the traffic and a random assignment.

    traffic: shares of the canary, in (0, 1), and (K,) requests of both arms by cell that had them. A cell's count
    is a sum of binomials, whatever the traffic was: a season that sends other requests than the reference's is no
    sign of a broken assignment.
    """
    from scipy.special import bdtr

    chances = np.ones((0, least))
    for share, both in traffic:
        total, at = np.asarray(both, dtype=np.float64)[:, None], np.arange(least)
        below = np.diff(bdtr(np.minimum(at, total), total, share), axis=1, prepend=0.0)
        if not len(chances):
            chances = below
            continue
        summed = np.zeros_like(chances)
        for more in range(least):
            summed[:, more:] += below[:, more : more + 1] * chances[:, : least - more]
        chances = summed
    result: Floats = np.clip(1 - chances.sum(axis=1), 0.0, 1.0)
    return result


def lowest(pi: Floats, reached: Floats, alpha: float, seed: int = 0) -> float:
    """The alpha-quantile of C_m where cell k is covered with chance reached[k], each by itself; by simulation.

    A few cells carry much of pi, so a normal approximation is off in the tail. Cells of a multinomial lean against
    each other, which makes this quantile cautious for it.
    """
    drawn = np.random.default_rng(seed).random((DRAWS, len(pi))) < reached
    return float(np.quantile(drawn @ pi, alpha, method="lower"))


def worst_failure(pi: Floats, seen: ArrayLike, failed: int, least: int, alpha: float) -> float:
    """Sum of pi_k UCB_k: the share of traffic that could fail for all the canary has shown; 1 for uncovered cells.

    UCB: Clopper-Pearson, one-sided at 1 - alpha. seen: (K,) answered requests by cell. A request that failed left no
    features behind: the `failed` ones are put, one by one, where they weigh most (the bound is concave in them).
    """
    from scipy.special import betaincinv

    answered = np.asarray(seen, dtype=np.float64)
    enough = answered >= least
    left_out = float(pi[~enough].sum())
    if failed > PLACED or not enough.any():
        return 1.0
    weight, good = pi[enough], answered[enough]
    bad = np.zeros_like(good)

    def bound(wrong: Floats) -> Floats:
        limit: Floats = betaincinv(wrong + 1, good, 1 - alpha)
        return limit

    for _ in range(failed):
        bad[np.argmax(weight * (bound(bad + 1) - bound(bad)))] += 1
    return left_out + float(weight @ bound(bad))
