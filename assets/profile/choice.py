"""Which measured configuration serves best within the latency objective, and whether its gain is more than noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from assets.decision import Decision, Evidence
from assets.profile.confirm import believed
from assets.profile.objective import cost_per_million, excess, latency, limits, nearest_limit, told, value
from assets.profile.points import Failed, Point, merged, noise_band, repeated
from assets.profile.settings import ProfileSettings, Setting
from assets.verdict import Verdict

MIN_POINTS = 2


def choose(
    model: str,
    points: Sequence[Point],
    settings: ProfileSettings,
    as_of: datetime,
    inputs: Mapping[str, str],
    failed: Sequence[Failed] = (),
) -> Decision:
    """PASS with `details.choice`, or FAIL when nothing measured keeps to the latency objective.

    points: as measured; one configuration, the default where it can be served, stands in them twice, an A/A control:
    the two differ by noise alone, so a smaller gain than theirs is no gain. Another than the default is chosen only
    when both were measured again (`assets.profile.confirm`). failed: what could not be served.
    """
    details: dict[str, Any] = {
        "points": [asdict(point) for point in points],
        "infeasible": [{**item.config._asdict(), "reason": item.reason} for item in failed],
        "objective": settings.objective,
    }
    # What could be served once and not again can't be served.
    broken = {item.config for item in failed}
    points = [point for point in points if point.config not in broken]
    why, evidence, more = _unknown(points, failed) or _judged(points, failed, settings)
    return Decision(model, "profile", as_of, why, evidence, inputs, details | more)


Judged = tuple[str, tuple[Evidence, ...], dict[str, Any]]


def _unknown(points: Sequence[Point], failed: Sequence[Failed]) -> Judged | None:
    """Why there is nothing to choose from; None when there is."""
    if failed and not points:
        why = "no configuration can be served here: " + "; ".join(f"{item.config}: {item.reason}" for item in failed)
        return why, (Evidence("latency", Verdict.FAIL, why),), {}
    if len(points) < MIN_POINTS or not repeated(points):
        why = (
            f"{len(points)} measurements, none of them repeated: "
            f"needed are {MIN_POINTS}, one configuration among them twice, to know the noise"
        )
        return why, (Evidence("noise", Verdict.INCONCLUSIVE, why, float(min(len(points), 1)), 2.0),), {}
    return None


def _judged(points: Sequence[Point], failed: Sequence[Failed], settings: ProfileSettings) -> Judged:
    band = noise_band(points)
    least = max(band, settings.min_gain)
    noise = Evidence("noise", Verdict.PASS, _noise(band, least, settings), band, settings.quiet_band)
    candidates = merged(points)
    within = _within(candidates, settings)
    if not within:
        nearest = min(candidates, key=lambda point: excess(point, settings))
        why = (
            f"no configuration keeps {limits(settings)}: nearest is {nearest} "
            f"with {latency(nearest, settings)}: make the model smaller or the objective wider"
        )
        missed = Evidence("latency", Verdict.FAIL, why, *nearest_limit(nearest, settings))
        return why, (missed, noise), {"band": band, "nearest": asdict(nearest)}
    chosen, reason = _best(within, least, settings)
    start = _default(within, settings)
    if start and chosen is not start and not believed(points, chosen.config, start.config):
        reason = f"the default at {told(start, settings)}: {chosen} led by {_gain(chosen, start, settings):.1%}, "
        chosen, reason = start, reason + "but was not measured often enough beside it"
    elif chosen is start:
        reason += _fallen(points, start.config)
    if failed:
        reason += f"; {len(failed)} could not be served"
    why = f"{chosen}: {latency(chosen, settings)} at {chosen.throughput_per_s:.0f}/s"
    kept = Evidence("latency", Verdict.PASS, why, *nearest_limit(chosen, settings))
    choice, quiet = choice_of_point(chosen, settings), band <= settings.quiet_band
    more = {"band": band, "quiet": quiet, "choice": choice, "reason": reason}
    return f"{chosen}: {reason}", (kept, noise), more


def _fallen(points: Sequence[Point], default: Setting) -> str:
    """What became of a configuration that led and was measured again, '' without one."""
    groups = [group for group in repeated(points) if group[0].config != default]
    return "".join(
        f"; {first} seemed best at {first.throughput_per_s:.0f}/s, and "
        f"{', '.join(f'{point.throughput_per_s:.0f}/s' for point in again)} when measured again"
        for first, *again in groups
    )


def pick(points: Sequence[Point], settings: ProfileSettings) -> Point | None:
    """What leads within the limits, believed or not; None when nothing is, or nothing was measured twice."""
    within = _within(merged(points), settings)
    if not within or not repeated(points):
        return None
    return _best(within, max(noise_band(points), settings.min_gain), settings)[0]


def challenger(points: Sequence[Point], settings: ProfileSettings) -> Setting | None:
    """What leads the default; None while nothing does, and where the default is not within the limits."""
    leader, start = pick(points, settings), _default(_within(merged(points), settings), settings)
    return leader.config if leader and start and leader.config != start.config else None


def _within(points: Sequence[Point], settings: ProfileSettings) -> list[Point]:
    return [point for point in points if excess(point, settings) <= 1]


def _default(within: Sequence[Point], settings: ProfileSettings) -> Point | None:
    return next((point for point in within if point.config == settings.candidates[0]), None)


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


def _noise(band: float, least: float, settings: ProfileSettings) -> str:
    why = f"measured again, the same configuration differed by {band:.1%}: a gain up to {least:.1%} counts as none"
    if band > settings.quiet_band:
        why += f"; the machine was not quiet (more than {settings.quiet_band:.0%}), so nothing measured is kept"
    return why


def _best(within: Sequence[Point], least: float, settings: ProfileSettings) -> tuple[Point, str]:
    """The best value; what lies within `least` of it ties, and ties go to fewer instances, then the smaller delay."""
    top = max(within, key=lambda point: value(point, settings))
    ties = [point for point in within if value(point, settings) * (1 + least) >= value(top, settings)]
    best = min(ties, key=lambda point: point.config)
    start = _default(within, settings)
    if start is None:
        return best, f"the best within the objective at {told(best, settings)}; the default is not within it"
    if best is start:
        return start, f"the default at {told(start, settings)}: none beats it by more than {least:.1%}"
    gain = _gain(best, start, settings)
    if gain <= least:
        return start, f"the default at {told(start, settings)}: {best} gains {gain:.1%}, no more than {least:.1%}"
    return best, f"{told(best, settings)}, {gain:.1%} more than the default, beyond the {least:.1%} of noise"


def _gain(point: Point, base: Point, settings: ProfileSettings) -> float:
    worth = value(base, settings)
    return value(point, settings) / worth - 1 if worth else math.inf


def choice_of_point(chosen: Point, settings: ProfileSettings) -> dict[str, Any]:
    """What the record and the package keep of the chosen one."""
    return {
        **chosen.config._asdict(),
        "max_queue_size": settings.max_queue_size,
        "throughput_per_s": chosen.throughput_per_s,
        "p99_latency_ms": chosen.p99_latency_ms,
        "p95_latency_ms": chosen.p95_latency_ms,
        "cost_per_million": cost_per_million(chosen, settings),
    }
