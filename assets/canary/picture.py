"""What people look at: the e-processes after each look, against their bounds, rung by rung."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 240, 48
GUARDS = {"errors": "#c00", "slow": "#c70", "sample_ratio": "#07a", "business": "#808"}
PROOFS = {"errors_safe": "#c00", "slow_safe": "#c70", "business_safe": "#808"}


def drawn(colours: Mapping[str, str], path: Mapping[str, Any]) -> dict[str, str]:
    """Of these curves those that the record has: the spec may ask for no business outcome."""
    return {name: colour for name, colour in colours.items() if name in path}


def sparkline(details: Mapping[str, Any]) -> str:
    """Markdown of one small SVG (< 1000 characters): each guard's evidence of harm as a share of its bound.

    details: of a Decision. The line on top is the bound: what touches it rolls back.
    """
    path, bounds = details["path"], details["log_e"]
    if not path["requests"]:
        return "_no request yet_"
    lines = []
    for name, colour in drawn(GUARDS, path).items():
        bound = float(bounds[name]["bound"])
        share = [min(max(value / bound, 0.0), 1.1) for value in _thinned(path[name], 16)]
        step = WIDTH / max(len(share) - 1, 1)
        points = " ".join(f"{step * i:.0f},{HEIGHT - 4 - (HEIGHT - 12) * y:.0f}" for i, y in enumerate(share))
        lines.append(f'<path d="M{points}" stroke="{colour}"/>')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" fill="none">'
        f'<path d="M0,8H{WIDTH}" stroke="#000"/>{"".join(lines)}</svg>'
    )
    return f"![guards](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def figure(details: Mapping[str, Any]) -> bytes:
    """PNG: above, evidence of harm, which must stay below its bounds; below, proof of harmlessness, which must pass."""
    from matplotlib.figure import Figure

    path, bounds = details["path"], details["log_e"]
    canvas = Figure(figsize=(8, 5.5), layout="constrained")
    above, below = canvas.subplots(2, 1, sharex=True)
    for axes, curves, title in ((above, GUARDS, "harm: log E"), (below, PROOFS, "harmless: log E")):
        for name, colour in drawn(curves, path).items():
            bound = float(bounds[name]["bound"])
            # Far below its start a curve says no more than that it is far below.
            axes.plot(path["requests"], [max(y, -2 * bound) for y in path[name]], color=colour, label=name)
            axes.axhline(bound, color=colour, linewidth=0.8, linestyle="--")
        for at, percent in rung_starts(path["requests"], path["percent"]):
            axes.axvline(at, color="#ccc", linewidth=0.8)
            axes.annotate(f"{percent} %", (at, 1), xycoords=("data", "axes fraction"), va="top", fontsize="x-small")
        axes.set_ylabel(title)
        axes.legend(loc="best", fontsize="small")
    below.set_xlabel("requests, both pools together")
    rollout = details["rollout"]
    above.set_title(f"{rollout['model']} version {rollout['version']}: {rollout['phase']}")
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _thinned(values: Sequence[float], at_most: int) -> list[float]:
    step = max(-(-len(values) // at_most), 1)
    return list(values)[::-1][::step][::-1]


def rung_starts(requests: Sequence[int], percents: Sequence[int]) -> list[tuple[int, int]]:
    """(requests seen before, percent) where each rung began."""
    found = []
    for index, percent in enumerate(percents):
        if index == 0 or percent != percents[index - 1]:
            found.append((requests[index - 1] if index else 0, percent))
    return found
