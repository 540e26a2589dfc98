"""What is best, and what is allowed: value and latency of a point beside the spec's objective."""

from assets.profile.points import Point
from assets.profile.settings import ProfileSettings


def value(point: Point, settings: ProfileSettings) -> float:
    """What is to be largest: requests a second, or requests for one unit of money.

    >>> paid = ProfileSettings(objective="cost", instance_hour_price=3.6)
    >>> value(Point(2, 0, 4, 1000.0, 2.0, "a"), paid)
    500000.0
    """
    if settings.objective == "throughput":
        return point.throughput_per_s
    price_per_s = point.instances * float(settings.instance_hour_price or 0) / 3600
    return point.throughput_per_s / price_per_s


def cost_per_million(point: Point, settings: ProfileSettings) -> float | None:
    """What a million requests cost at full load; None without a price."""
    if settings.instance_hour_price is None or point.throughput_per_s <= 0:
        return None
    return 1e6 / point.throughput_per_s * point.instances * settings.instance_hour_price / 3600


def excess(point: Point, settings: ProfileSettings) -> float:
    """Latency as a share of its limit, the worst of the limits: up to 1 is within."""
    pairs = ((point.p99_latency_ms, settings.p99_latency_ms), (point.p95_latency_ms, settings.p95_latency_ms))
    return max(latency / limit for latency, limit in pairs if limit is not None)


def nearest_limit(point: Point, settings: ProfileSettings) -> tuple[float, float]:
    """Latency and limit of the percentile that is nearest to its limit, or furthest beyond."""
    pairs = ((point.p99_latency_ms, settings.p99_latency_ms), (point.p95_latency_ms, settings.p95_latency_ms))
    known = [(latency, limit) for latency, limit in pairs if limit is not None]
    return max(known, key=lambda pair: pair[0] / pair[1])


def limits(settings: ProfileSettings) -> str:
    pairs = ((99, settings.p99_latency_ms), (95, settings.p95_latency_ms))
    return " and ".join(f"{share} % of requests below {limit:g} ms" for share, limit in pairs if limit is not None)


def latency(point: Point, settings: ProfileSettings) -> str:
    pairs = (
        (99, point.p99_latency_ms, settings.p99_latency_ms),
        (95, point.p95_latency_ms, settings.p95_latency_ms),
    )
    told = (f"{share} % of requests below {latency:.2f} ms" for share, latency, limit in pairs if limit is not None)
    return " and ".join(told)


def told(point: Point, settings: ProfileSettings) -> str:
    """The value as people say it; for cost the gain is in requests for the same money."""
    rate = f"{point.throughput_per_s:.0f}/s"
    if settings.objective == "throughput":
        return rate
    cost = cost_per_million(point, settings)
    return f"{rate}, {cost:.4g} a million requests" if cost is not None else rate
