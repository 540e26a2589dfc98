"""What other models showed on the same device: the order of a search, and when it may end. Never a measurement.

Only ratios to the default configuration are taken over from a past profile, for between models of one device these
keep while rates do not. A search ends early only when this model's own measurements agree with what was expected.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from assets.profile.cache import Profile
from assets.profile.choice import challenger, pick
from assets.profile.confirm import missing
from assets.profile.objective import value
from assets.profile.points import Failed, Point, merged, noise_band, repeated
from assets.profile.settings import ProfileSettings, Setting

# One past model may be an exception; two that agree with a third are the device.
MIN_PAST = 2
SPREADS = 3.0


@dataclass(frozen=True, slots=True)
class Expected:
    """Natural logarithms of value over the default's: mean of past models, their spread, how many."""

    mean: float
    spread: float
    models: int


def usable(past: Sequence[Profile], place: Mapping[str, str]) -> list[Profile]:
    """Past profiles that still hold: same device, driver, threads and Triton. The rest has expired."""
    return [profile for profile in past if dict(profile.place) == dict(place)]


def expectations(past: Sequence[Profile], settings: ProfileSettings) -> dict[Setting, Expected]:
    """What each configuration is expected to be worth beside the default, of those that past models measured."""
    found: dict[Setting, list[float]] = {}
    for profile in past:
        for config, ratio in ratios(profile.points, settings).items():
            found.setdefault(config, []).append(math.log(ratio))
    return {
        config: Expected(fmean(logs), stdev(logs) if len(logs) > 1 else 0.0, len(logs))
        for config, logs in found.items()
    }


def ratios(points: Sequence[Point], settings: ProfileSettings) -> dict[Setting, float]:
    """Value of each configuration over the default's; empty where the default was not measured."""
    values = {point.config: value(point, settings) for point in merged(points)}
    base = values.get(settings.candidates[0], 0.0)
    return {config: worth / base for config, worth in values.items() if worth > 0} if base > 0 else {}


def ordered(past: Sequence[Profile], settings: ProfileSettings) -> list[Setting]:
    """The search space in the order of trying: the default, then the most promising; in the spec's order if unknown.

    What no past model could be served with comes last, yet it comes: this one may.
    """
    known = expectations(past, settings)
    broken = {item.config for profile in past for item in profile.failed} - set(known)
    first, *others = settings.candidates
    return [first, *sorted(others, key=lambda c: (c in broken, -known[c].mean if c in known else 0.0))]


def plan(
    settings: ProfileSettings,
    past: Sequence[Profile],
    points: Sequence[Point],
    failed: Sequence[Failed],
    earlier: int = 0,
) -> list[Setting]:
    """What is still to measure, next first; empty when enough is known.

    past: usable profiles of this device. One configuration is measured twice as the A/A control: the default, or the
    best so far when that can't be served. On an unseen device the repeat comes last, so that the noise is that of the
    whole search; on a known one it comes third, so that the search can end there. earlier: how many of the points come
    from a sweep that was interrupted: its control is measured once more, so that the noise is that of both. When the
    search is over and another than the default leads, both are measured again.
    """
    return _search(settings, past, points, failed, earlier) or _again(settings, points, failed)


def _again(settings: ProfileSettings, points: Sequence[Point], failed: Sequence[Failed]) -> list[Setting]:
    broken = {item.config for item in failed}
    served = [point for point in points if point.config not in broken]
    leader = challenger(served, settings)
    return missing(served, leader, settings.candidates[0]) if leader else []


def _search(
    settings: ProfileSettings, past: Sequence[Profile], points: Sequence[Point], failed: Sequence[Failed], earlier: int
) -> list[Setting]:
    left = _left(settings, past, points, failed)
    control = next((group[0].config for group in repeated(points[:earlier])), None)
    broken = {item.config for item in failed}
    if control is None or control in broken or any(point.config == control for point in points[earlier:]):
        return left
    return [*left, control]


def _left(
    settings: ProfileSettings, past: Sequence[Profile], points: Sequence[Point], failed: Sequence[Failed]
) -> list[Setting]:
    broken = {item.config for item in failed}
    order = [config for config in ordered(past, settings) if config not in broken]
    if not order:
        return []
    seen = Counter(point.config for point in points)
    left = [config for config in order if not seen[config]]
    if enough(settings, past, points, left):
        return []
    sequence = list(order)
    known = len(past) >= MIN_PAST
    sequence.insert(2 if known else len(sequence), _control(settings, order, points))
    for config in seen.elements():
        if config in sequence:
            sequence.remove(config)
    if any(seen[config] > 1 for config in order):
        return [config for config in sequence if not seen[config]]
    return sequence


def _control(settings: ProfileSettings, order: Sequence[Setting], points: Sequence[Point]) -> Setting:
    if settings.candidates[0] in order:
        return settings.candidates[0]
    served = [point for point in points if point.config in order]
    return max(served, key=lambda point: value(point, settings)).config if served else order[0]


def enough(
    settings: ProfileSettings, past: Sequence[Profile], points: Sequence[Point], left: Sequence[Setting]
) -> bool:
    """Whether nothing of what is left is expected to beat the choice so far by more than the noise.

    Not before the A/A control is there and quiet, a configuration beside the default agrees with past models within
    the noise, and every one that is left was measured with enough of them.
    """
    if not left or not repeated(points):
        return False
    chosen, band = pick(points, settings), noise_band(points)
    least = math.log1p(max(band, settings.min_gain))
    found, known = ratios(points, settings), expectations(past, settings)
    compared = [config for config in found if config in known and config != settings.candidates[0]]
    if chosen is None or band > settings.quiet_band or not compared:
        return False
    if any(abs(math.log(found[config]) - known[config].mean) > least for config in compared):
        return False
    best = math.log(found[chosen.config])
    return all(
        config in known and known[config].models >= MIN_PAST and _at_most(known[config], band) <= best + least
        for config in left
    )


def _at_most(expected: Expected, band: float) -> float:
    """How much it may be worth for this model: models differ, and past figures carried noise as well."""
    return expected.mean + SPREADS * max(expected.spread, band / 2)


def guess(past: Sequence[Profile], settings: ProfileSettings) -> Setting | None:
    """The configuration that past models of a device speak for, cheapest of those that tie; None without any."""
    known = expectations(past, settings)
    worth = {config: known[config].mean for config in settings.candidates if config in known}
    if not worth:
        return None
    return min(config for config, mean in worth.items() if mean + math.log1p(settings.min_gain) >= max(worth.values()))
