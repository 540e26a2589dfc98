"""Where a person would rather look than read."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, MOST_POINTS = 160, 32, 30


def sparkline(values: Sequence[float | None], threshold: float | None) -> str:
    """Markdown image of one aggregate a block against the alarm level, under 1000 characters.

    Dagster shows longer markdown as a link only, so it is a hand-written SVG of whole pixels; the newest 30 points.
    """
    points = [value for value in values if value is not None][-MOST_POINTS:]
    top = max([*points, threshold or 0.0, 1e-9]) * 1.1
    step = WIDTH / max(len(points) - 1, 1)
    where = [(round(i * step), round(HEIGHT - value / top * HEIGHT)) for i, value in enumerate(points)]
    line = " ".join(f"{x},{y}" for x, y in where)
    over = bool(points) and threshold is not None and points[-1] > threshold
    colour = "#c33" if over else "#36c"
    parts = [f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2'/>"]
    if where:
        parts.append(f"<circle cx='{where[-1][0]}' cy='{where[-1][1]}' r='3' fill='{colour}'/>")
    if threshold is not None:
        y = round(HEIGHT - threshold / top * HEIGHT)
        parts.append(f"<path d='M0 {y}H{WIDTH}' stroke='#999' stroke-dasharray='4'/>")
    size = f"viewBox='-4 -4 {WIDTH + 8} {HEIGHT + 8}' width='{WIDTH + 8}'"
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{''.join(parts)}</svg>"
    return f"![drift](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def figure(details: Mapping[str, Any]) -> bytes:
    """PNG of a drift decision's details: aggregates against the level, distance of each feature, loss against bound."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(11, 3.6), layout="constrained")
    inputs, features, loss = chart.subplots(1, 3)
    _draw_inputs(inputs, details.get("days", []))
    _draw_features(features, details.get("features", []))
    _draw_loss(loss, details.get("harm", {}))
    buffer = io.BytesIO()
    chart.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _ticks(axes: Any, days: Sequence[Mapping[str, Any]]) -> None:
    every = max(1, len(days) // 7)
    places = range(0, len(days), every)
    axes.set_xticks(list(places), [days[i]["day"][5:10] for i in places], rotation=45)


def _draw_inputs(axes: Any, days: Sequence[Mapping[str, Any]]) -> None:
    axes.set_title("Inputs: weighted distance")
    seen = [(i, day) for i, day in enumerate(days) if day["aggregate"] is not None]
    colours = ["#c33" if day["alarm"] else "#36c" for _, day in seen]
    axes.bar([i for i, _ in seen], [day["aggregate"] for _, day in seen], color=colours, width=0.7)
    level = [(i, day["threshold"]) for i, day in seen if day["threshold"] is not None]
    if level:
        axes.step([i for i, _ in level], [y for _, y in level], "k--", where="mid", label="alarm level")
        axes.legend(loc="lower left", framealpha=0.9)
    _ticks(axes, days)


def _draw_features(axes: Any, features: Sequence[Mapping[str, Any]]) -> None:
    axes.set_title("Features: distance (red: named)")
    shown = list(features[:12])[::-1]
    colours = ["#c33" if item["named"] else "#36c" for item in shown]
    axes.barh(
        [f"{item['feature']} ({item['weight']:.0%})" for item in shown], [i["distance"] for i in shown], color=colours
    )
    axes.tick_params(axis="y", labelsize=8)


def _draw_loss(axes: Any, harm: Mapping[str, Any]) -> None:
    axes.set_title("Harm: mean loss by day known")
    days = harm.get("days", [])
    seen = [(i, day) for i, day in enumerate(days) if day["mean_loss"] is not None]
    axes.plot([i for i, _ in seen], [day["mean_loss"] for _, day in seen], "o-", color="#36c")
    alarms = [(i, day) for i, day in seen if day["alarm"]]
    axes.plot([i for i, _ in alarms], [day["mean_loss"] for _, day in alarms], "o", color="#c33", markersize=9)
    if harm.get("bound") is not None:
        axes.axhline(harm["bound"], color="k", linestyle="--", label="bound")
        axes.legend(loc="lower left", framealpha=0.9)
    _ticks(axes, days)
