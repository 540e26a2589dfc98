"""What was measured of a configuration, and what the same one measured twice says about the noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from assets.profile.settings import Setting


@dataclass(frozen=True, slots=True)
class Point:
    """One measured configuration. throughput_per_s: requests; source: the name under which it was measured."""

    instances: int
    max_queue_delay_us: int
    concurrency: int
    throughput_per_s: float
    p99_latency_ms: float
    source: str
    intra_op_threads: int = 1
    max_batch_size: int = 64
    # Unknown is beyond every limit: what was not measured keeps to none.
    p95_latency_ms: float = math.inf

    @property
    def config(self) -> Setting:
        return Setting(self.instances, self.max_queue_delay_us, self.intra_op_threads, self.max_batch_size)

    def __str__(self) -> str:
        return str(self.config)


@dataclass(frozen=True, slots=True)
class Failed:
    """One configuration that could not be served where it was tried, and why."""

    config: Setting
    reason: str


def noise_band(points: Sequence[Point]) -> float:
    """Relative difference in throughput between measurements of one configuration; the largest of those repeated.

    >>> noise_band([Point(1, 0, 4, 900.0, 2.0, "a"), Point(1, 0, 4, 1100.0, 2.0, "b"), Point(2, 0, 4, 9.0, 2.0, "c")])
    0.2
    """
    return max((_spread(group) for group in repeated(points)), default=1.0)


def _spread(group: Sequence[Point]) -> float:
    rates = [point.throughput_per_s for point in group]
    return (max(rates) - min(rates)) / fmean(rates) if fmean(rates) > 0 else 1.0


def repeated(points: Sequence[Point]) -> list[list[Point]]:
    """The A/A controls: what was measured more than once."""
    return [group for group in _groups(points).values() if len(group) > 1]


def _groups(points: Sequence[Point]) -> dict[Setting, list[Point]]:
    groups: dict[Setting, list[Point]] = {}
    for point in points:
        groups.setdefault(point.config, []).append(point)
    return groups


def merged(points: Sequence[Point]) -> list[Point]:
    """One point a configuration; what was measured more than once counts with its means."""
    return [
        replace(
            group[0],
            throughput_per_s=fmean(point.throughput_per_s for point in group),
            p99_latency_ms=fmean(point.p99_latency_ms for point in group),
            p95_latency_ms=fmean(point.p95_latency_ms for point in group),
            source=", ".join(point.source for point in group),
        )
        for group in _groups(points).values()
    ]
