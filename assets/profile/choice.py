"""Which measured configuration serves best within the latency objective, and whether its gain is more than noise."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from statistics import fmean
from typing import Any

from assets.decision import Decision, Evidence
from assets.profile.settings import ProfileSettings
from assets.verdict import Verdict

MIN_POINTS = 2


@dataclass(frozen=True, slots=True)
class Point:
    """One measured configuration. throughput_per_s: requests; source: the name under which it was measured."""

    instances: int
    max_queue_delay_us: int
    concurrency: int
    throughput_per_s: float
    p99_latency_ms: float
    source: str

    @property
    def config(self) -> tuple[int, int]:
        return self.instances, self.max_queue_delay_us

    def __str__(self) -> str:
        return f"{self.instances} instance{'s' * (self.instances > 1)} with a delay of {self.max_queue_delay_us} µs"


def choose(
    model: str, points: Sequence[Point], settings: ProfileSettings, as_of: datetime, inputs: Mapping[str, str]
) -> Decision:
    """PASS with `details.choice`, or FAIL when nothing measured keeps to the latency objective.

    points: as measured; the default configuration (first instances, first delay) stands in them twice, an A/A
    control: the two differ by noise alone, so a smaller gain than theirs is no gain.
    """
    default = (settings.instances[0], settings.queue_delays_us[0])
    repeats = [point for point in points if point.config == default]
    details: dict[str, Any] = {"points": [asdict(point) for point in points]}

    def decided(why: str, *evidence: Evidence, **more: Any) -> Decision:
        return Decision(model, "profile", as_of, why, evidence, inputs, details | more)

    if len(points) < MIN_POINTS or len(repeats) < 2:
        why = (
            f"{len(points)} measurements, {len(repeats)} of the default: "
            f"needed are {MIN_POINTS}, the default among them twice, to know the noise"
        )
        return decided(why, Evidence("noise", Verdict.INCONCLUSIVE, why, float(len(repeats)), 2.0))
    band = noise_band(repeats)
    least = max(band, settings.min_gain)
    noise = Evidence(
        "noise",
        Verdict.PASS,
        f"the same configuration measured twice differed by {band:.1%}: a gain up to {least:.1%} counts as none",
        band,
    )
    candidates = merged(points)
    within = [point for point in candidates if point.p99_latency_ms <= settings.p99_latency_ms]
    if not within:
        nearest = min(candidates, key=lambda point: point.p99_latency_ms)
        why = (
            f"no configuration keeps 99 % of requests below {settings.p99_latency_ms:g} ms: nearest is {nearest} "
            f"with {nearest.p99_latency_ms:.2f} ms: make the model smaller or the objective wider"
        )
        latency = Evidence("latency", Verdict.FAIL, why, nearest.p99_latency_ms, settings.p99_latency_ms)
        return decided(why, latency, noise, band=band, nearest=asdict(nearest))
    chosen, reason = _best(within, default, least)
    latency = Evidence(
        "latency",
        Verdict.PASS,
        f"{chosen}: 99 % of requests below {chosen.p99_latency_ms:.2f} ms at {chosen.throughput_per_s:.0f}/s",
        chosen.p99_latency_ms,
        settings.p99_latency_ms,
    )
    return decided(f"{chosen}: {reason}", latency, noise, band=band, choice=_choice(chosen, settings), reason=reason)


def answered(decision: Decision, difference: float | None, tolerance: float) -> Decision:
    """The decision with what the chosen configuration answered beside ONNX Runtime, FAIL beyond the tolerance.

    difference: the largest of a probability, inf when the configuration did not answer; None when nothing was chosen.
    """
    if difference is None:
        return decision
    verdict = Verdict.PASS if difference <= tolerance else Verdict.FAIL
    why = f"under the chosen configuration answers differ from ONNX Runtime's by {difference:.2g} at most"
    if verdict is Verdict.FAIL:
        why += f", allowed is {tolerance:g}: the package would be refused by every replica"
    evidence = Evidence("answers", verdict, why, difference, tolerance)
    return replace(
        decision,
        why=why if verdict is Verdict.FAIL else decision.why,
        evidence=(*decision.evidence, evidence),
    )


def noise_band(repeats: Sequence[Point]) -> float:
    """Relative difference in throughput between measurements of one configuration.

    >>> noise_band([Point(1, 0, 4, 900.0, 2.0, "a"), Point(1, 0, 4, 1100.0, 2.0, "b")])
    0.2
    """
    rates = [point.throughput_per_s for point in repeats]
    return (max(rates) - min(rates)) / fmean(rates) if fmean(rates) > 0 else 1.0


def merged(points: Sequence[Point]) -> list[Point]:
    """One point a configuration; what was measured more than once counts with its means."""
    groups: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        groups.setdefault(point.config, []).append(point)
    return [
        replace(
            group[0],
            throughput_per_s=fmean(point.throughput_per_s for point in group),
            p99_latency_ms=fmean(point.p99_latency_ms for point in group),
            source=", ".join(point.source for point in group),
        )
        for group in groups.values()
    ]


def _best(within: Sequence[Point], default: tuple[int, int], least: float) -> tuple[Point, str]:
    """Best throughput; what lies within `least` of it ties, and ties go to fewer instances, then the smaller delay."""
    top = max(within, key=lambda point: point.throughput_per_s)
    ties = [point for point in within if point.throughput_per_s * (1 + least) >= top.throughput_per_s]
    best = min(ties, key=lambda point: point.config)
    start = next((point for point in within if point.config == default), None)
    if start is None:
        return best, f"the best within the objective at {best.throughput_per_s:.0f}/s; the default is not within it"
    if best.config == default:
        return start, f"the default at {start.throughput_per_s:.0f}/s: none beats it by more than {least:.1%}"
    gain = best.throughput_per_s / start.throughput_per_s - 1 if start.throughput_per_s else float("inf")
    if gain <= least:
        return (
            start,
            f"the default at {start.throughput_per_s:.0f}/s: {best} gains {gain:.1%}, no more than {least:.1%}",
        )
    return best, f"{best.throughput_per_s:.0f}/s, {gain:.1%} more than the default, beyond the {least:.1%} of noise"


def _choice(chosen: Point, settings: ProfileSettings) -> dict[str, Any]:
    return {
        "instances": chosen.instances,
        "max_queue_delay_us": chosen.max_queue_delay_us,
        "max_batch_size": settings.max_batch_size,
        "max_queue_size": settings.max_queue_size,
        "intra_op_threads": settings.intra_op_threads,
        "throughput_per_s": chosen.throughput_per_s,
        "p99_latency_ms": chosen.p99_latency_ms,
    }
