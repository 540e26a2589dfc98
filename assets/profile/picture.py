"""What people look at: throughput against tail latency, one mark a configuration, the chosen one filled."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from assets.profile.points import Point
from assets.profile.settings import ProfileSettings, Setting

WIDTH, HEIGHT, MOST_POINTS = 200, 60, 12


def scatter(details: Mapping[str, Any], settings: ProfileSettings) -> str | None:
    """Markdown of one small SVG (< 1000 characters, or the asset page would fold it away). details: of a Decision."""
    points = list(details["points"])
    if not points:
        return None
    chosen = _chosen(details)
    points.sort(key=lambda point: _config(point) == chosen)
    points = points[-MOST_POINTS:]
    across, up, limit = _axes(points, settings)

    def place(point: Mapping[str, Any]) -> tuple[int, int]:
        x, y = point["throughput_per_s"] / across, point["p99_latency_ms"] / up
        return round(WIDTH * x), round(HEIGHT * (1 - y))

    path = "".join(f"M{x - 2} {y}h4" for x, y in (place(p) for p in points if _config(p) != chosen))
    marks = [place(p) for p in points if _config(p) == chosen]
    circles = "".join(f"<circle cx='{x}' cy='{y}' r='4' fill='#36c'/>" for x, y in marks)
    line = f"<path d='M0 {round(HEIGHT * (1 - limit / up))}H{WIDTH}' stroke='#c00'/>" if limit else ""
    size = f"viewBox='0 -4 {WIDTH + 4} {HEIGHT + 8}' width='{WIDTH + 4}'"
    drawn = f"<path d='{path}' stroke='#888' stroke-width='4'/>" if path else ""
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{line}{drawn}{circles}</svg>"
    return f"![requests/s against p99](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def table(points: Sequence[Point]) -> str:
    """Markdown, a row a measurement."""
    rows = [
        f"| {p.instances} | {p.max_queue_delay_us} | {p.intra_op_threads} | {p.max_batch_size} | {p.concurrency} "
        f"| {p.throughput_per_s:.0f} | {p.p95_latency_ms:.2f} | {p.p99_latency_ms:.2f} |"
        for p in points
    ]
    names = ("instances", "delay µs", "threads", "batch", "clients", "requests/s", "p95 ms", "p99 ms")
    head = [f"| {' | '.join(names)} |", "| ---: " * len(names) + "|"]
    return "\n".join([*head, *rows])


def figure(details: Mapping[str, Any], settings: ProfileSettings) -> bytes:
    """PNG: requests a second against the 99th percentile, each measurement named, the limit, the chosen one."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8, 4.5), layout="constrained")
    axes = canvas.subplots()
    chosen = _chosen(details)
    for point in details["points"]:
        config, at = _config(point), (point["throughput_per_s"], point["p99_latency_ms"])
        axes.scatter(*at, s=60, color="#3366cc" if config == chosen else "#aaaaaa")
        axes.annotate(config.name, at, xytext=(5, 5), textcoords="offset points", fontsize="small")
    if settings.p99_latency_ms is not None:
        axes.axhline(settings.p99_latency_ms, color="#cc0000", linewidth=1, label="p99 limit")
        axes.legend(loc="best", fontsize="small")
    failed = len(details["infeasible"])
    axes.set_title(f"{len(details['points'])} measurements, {failed} configurations that could not be served")
    axes.set_xlabel("requests a second")
    axes.set_ylabel("p99 latency, ms")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _axes(points: Sequence[Mapping[str, Any]], settings: ProfileSettings) -> tuple[float, float, float]:
    """Ends of both axes, and the limit where it can be drawn: one far above all points would flatten them."""
    across = max(point["throughput_per_s"] for point in points) or 1.0
    slowest = max(point["p99_latency_ms"] for point in points) or 1.0
    limit = settings.p99_latency_ms or 0.0
    limit = limit if limit <= 3 * slowest else 0.0
    return across, max(slowest, limit) * 1.1, limit


def _config(point: Mapping[str, Any]) -> Setting:
    return Setting(*(point[field] for field in Setting._fields))


def _chosen(details: Mapping[str, Any]) -> Setting | None:
    choice = details.get("choice")
    return _config(choice) if choice else None
