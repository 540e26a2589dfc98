"""Whether what leads a search was measured often enough to be believed.

The best of many noisy measurements is mostly a lucky one: of nine configurations that serve alike on a machine with
10 % of noise, one seems to beat the default by more than the noise in one search of four. Measured again it falls
back. So what leads is measured again beside the default, by turns, before it is chosen: one search in seventy is then
misled (tests/unit/profile/test_confirm.py), at the cost of three trials in those searches that something leads.
"""

from collections import Counter
from collections.abc import Sequence

from assets.profile.points import Point
from assets.profile.settings import Setting

# Measurements of the leader and of the default each; a search has made two of the default as its A/A control.
MEASUREMENTS = 3


def believed(points: Sequence[Point], leader: Setting, default: Setting) -> bool:
    """Whether both were measured often enough to compare them."""
    seen = Counter(point.config for point in points)
    return min(seen[leader], seen[default]) >= MEASUREMENTS


def missing(points: Sequence[Point], leader: Setting, default: Setting) -> list[Setting]:
    """What to measure once more, by turns, so that a machine that slows down does so for both.

    None when another one was measured again before: it led by luck, and who follows it on the same noise does too.

    >>> a, b = Setting(1, 0), Setting(2, 0)
    >>> [config.instances for config in missing([Point(*c[:2], 4, 1.0, 1.0, "") for c in (a, b, a)], b, a)]
    [2, 1, 2]
    """
    seen = Counter(point.config for point in points)
    if any(count > 1 for config, count in seen.items() if config not in (leader, default)):
        return []
    left: list[Setting] = []
    while min(seen[leader], seen[default]) < MEASUREMENTS:
        left.append(leader if seen[leader] < seen[default] else default)
        seen[left[-1]] += 1
    return left
