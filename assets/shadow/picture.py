"""What people look at: the gain after each block, between its bounds, against what was asked."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WIDTH, HEIGHT = 240, 48


def sparkline(details: Mapping[str, Any]) -> str:
    """Markdown of one small SVG (< 1000 characters, or the asset page would fold it away). details: of a Decision."""
    path = _decided(details, at_most=16)
    if not path:
        return "_no two blocks yet_"
    threshold = float(details["threshold"])
    values = [float(point[key]) for point in path for key in ("lower", "upper")] + [threshold]
    low, high = min(values), max(values)

    def at(index: int, value: float) -> str:
        x = WIDTH * index / max(len(path) - 1, 1)
        return f"{x:.0f},{HEIGHT - 2 - (HEIGHT - 4) * (value - low) / ((high - low) or 1):.0f}"

    band = [at(i, p["upper"]) for i, p in enumerate(path)] + [
        at(i, path[i]["lower"]) for i in reversed(range(len(path)))
    ]
    mean = [at(i, p["mean"]) for i, p in enumerate(path)]
    asked = f"M{at(0, threshold)}H{WIDTH}"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<path d="M{" ".join(band)}Z" fill="#bcd"/><path d="M{" ".join(mean)}" fill="none" stroke="#036"/>'
        f'<path d="{asked}" stroke="#c00"/></svg>'
    )
    return f"![gain](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def figure(details: Mapping[str, Any]) -> bytes:
    """PNG: the confidence sequence over labels, against the gain asked for, and the labels of each block."""
    from matplotlib.figure import Figure

    path = list(details["path"])
    labels = np.cumsum([point["labels"] for point in path])
    decided = [(total, point) for total, point in zip(labels, path, strict=True) if point["lower"] is not None]
    canvas = Figure(figsize=(8, 4.5), layout="constrained")
    above, below = canvas.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    at = [total for total, _ in decided]
    lower, upper = ([float(point[key]) for _, point in decided] for key in ("lower", "upper"))
    above.fill_between(at, lower, upper, color="#bbccdd", label="bounds")
    above.plot(at, [point["mean"] for _, point in decided], color="#003366", label="mean gain")
    above.axhline(float(details["threshold"]), color="#cc0000", linewidth=1, label="asked for")
    smallest = details.get("detectable_gain")
    if smallest is not None:
        above.axhline(float(smallest), color="#888888", linewidth=1, linestyle=":", label="smallest to be found")
    above.set_ylabel(f"gain a request ({details['settings']['loss']})")
    above.set_title(f"Shadow: {details['settings']['rule']}, {details['counts']['labels']} labels")
    above.legend(loc="best", fontsize="small")
    widths = [max(point["labels"], 1) for point in path]
    below.bar(labels, widths, width=[-width for width in widths], align="edge", color="#8899aa", edgecolor="white")
    below.set_ylabel(f"labels of {details['settings']['block']}")
    below.set_xlabel("labels")
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _decided(details: Mapping[str, Any], at_most: int) -> Sequence[Mapping[str, Any]]:
    """Blocks that have bounds, thinned evenly to `at_most`, the last one always among them."""
    path = [point for point in details["path"] if point["lower"] is not None]
    step = max(-(-len(path) // at_most), 1)
    return path[::-1][::step][::-1]
