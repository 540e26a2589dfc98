"""One page a rollout: rungs, e-processes against their bounds, coverage against expectation, latency, split, events.

Plain HTML with pictures drawn as SVG: it is written every few looks while the rollout runs, so it has to be cheap.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from assets.canary.forecast import expected_seconds
from assets.canary.picture import GUARDS, PROOFS, drawn, rung_starts
from assets.canary.rollout import Rollout
from assets.decision import Decision

WIDTH, HEIGHT, LEFT, TOP = 720, 170, 56, 14
# Points of a curve: more would not show.
MOST_POINTS = 200
REFRESH_S = 3
COLOURS = {"PASS": "#087", "INCONCLUSIVE": "#777", "ERROR": "#b60", "FAIL": "#c00"}
STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:.5em 0 1.5em}td,th{padding:.2em .8em .2em 0;text-align:left;"
    "vertical-align:top}th{font-weight:600;border-bottom:1px solid #999}td.n,th.n{text-align:right}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin:1.6em 0 .2em}svg text{font:11px system-ui,sans-serif}"
)

Curve = tuple[str, str, Sequence[float]]  # name, colour, y


def page(rollout: Rollout, decision: Decision, latency: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """decision: of this rollout as it stands; latency: by pool, requests and percentiles in milliseconds."""
    details = decision.to_dict()["details"]
    word = "taken back" if rollout.reverted_at else rollout.phase.value.replace("_", " ").lower()
    title = f"{rollout.model} version {rollout.version}: {word}"
    refresh = "" if rollout.ended else f'<meta http-equiv="refresh" content="{REFRESH_S}">'
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(decision.why)}{_ahead(rollout)}</p>",
        _section("Evidence", _evidence(decision)),
        _section("Harm: log E, rolled back where a curve meets its bound", _logs(details, GUARDS)),
        _section("Harmlessness: log E, promoted once both curves pass their bounds", _logs(details, PROOFS)),
        _section("Rungs and split", _rungs(details["rungs"])),
        _section("Coverage of the feature space", _coverage(details["coverage"])),
        _section("Business outcome, of requests whose label is known", _outcomes(details["outcomes"])),
        _section("Latency, as clients saw it", _latency(latency or {}, rollout)),
        _section("Events", _table(("", ""), [(f"{at:%H:%M:%S}", text) for at, text in rollout.diary])),
    ]
    head = f'<meta charset="utf-8">{refresh}<title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(parts)}</body></html>"


def _ahead(rollout: Rollout) -> str:
    seconds = expected_seconds(rollout)
    return "" if seconds is None else f"; promoted in about {seconds:.0f} s, if it is harmless"


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Numbers stand to the right. A cell that is a tuple is (text, colour)."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{names}</tr>{lines}</table>" if rows else "<p>nothing yet</p>"


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return f'<td style="color:{value[1]}">{escape(value[0])}</td>'
    if isinstance(value, int | float):
        return f'<td class="n">{value:.4g}</td>' if isinstance(value, float) else f'<td class="n">{value}</td>'
    return f"<td>{escape('–' if value is None else str(value))}</td>"


def _evidence(decision: Decision) -> str:
    rows = [
        (item.name, (item.verdict.name, COLOURS[item.verdict.name]), item.statistic, item.threshold, item.why)
        for item in decision.evidence
    ]
    return _table(("", "verdict", "statistic", "threshold", ""), rows)


def _rungs(rungs: Sequence[Mapping[str, Any]]) -> str:
    head = ("rung", "seconds", "challenger's requests", "observed split", "errors", "slow", "champion's errors", "slow")
    rows = []
    for rung in rungs:
        mine, theirs = rung["challenger"], rung["champion"]
        total = mine["requests"] + theirs["requests"]
        split = f"{mine['requests'] / total:.2%} of {total}" if total else "no request"
        counts = mine["errors"], mine["slow"], theirs["errors"], theirs["slow"]
        rows.append((f"{rung['percent']} %", float(rung["seconds"]), mine["requests"], split, *counts))
    return _table(head, rows)


def _latency(latency: Mapping[str, Mapping[str, float]], rollout: Rollout) -> str:
    names = {rollout.challenger_pool: "challenger", rollout.champion_pool: "champion"}
    rows = [
        (f"{names.get(pool, 'other')} ({pool})", *(found[name] for name in ("requests", "p50", "p95", "p99")))
        for pool, found in latency.items()
    ]
    slow = f"<p>A request is slow above {rollout.slow_ms:.4g} ms.</p>"
    return _table(("", "requests", "p50 ms", "p95 ms", "p99 ms"), rows) + slow


def _coverage(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "<p>The spec asks for none.</p>"
    rows = [
        (f"{point['percent']} %", point["requests"], f"{point['covered']:.1%}", f"{point['expected']:.1%}")
        for point in found["curve"]
    ]
    head = ("after the rung", "challenger's requests", f"C_{found['least']}", "expected by the reference")
    most = max(found["hours"], default=0)
    hours = "".join(
        f'<rect x="{LEFT + 24 * hour}" y="{60 - 44 * count / most:.0f}" width="20" height="{44 * count / most:.0f}" '
        f'fill="#07a"/><text x="{LEFT + 24 * hour + 3}" y="74">{hour}</text>'
        for hour, count in enumerate(found["hours"])
        if most
    )
    bars = f'<svg width="{WIDTH}" height="80">{hours}</svg><p>Challenger requests by hour of day (UTC)</p>'
    return _table(head, rows) + (bars if most else "")


def _outcomes(found: Sequence[Mapping[str, Any]] | None) -> str:
    if found is None:
        return "<p>The spec asks for none.</p>"
    head = ("assigned at", "challenger's labels", "events", "champion's labels", "events")
    columns = ("canary", "canary_events", "baseline", "baseline_events")
    return _table(head, [(f"{100 * part['share']:.0f} %", *(part[name] for name in columns)) for part in found])


def _logs(details: Mapping[str, Any], colours: Mapping[str, str]) -> str:
    path, bounds = details["path"], details["log_e"]
    if not path["requests"]:
        return "<p>no request yet</p>"
    colours = drawn(colours, path)
    limits = {name: float(bounds[name]["bound"]) for name in colours}
    # Far below its start a curve says no more than that it is far below.
    curves = [(name, colour, [max(y, -2 * limits[name]) for y in path[name]]) for name, colour in colours.items()]
    return chart(path["requests"], curves, limits, rung_starts(path["requests"], path["percent"]))


def chart(
    x: Sequence[float], curves: Sequence[Curve], bounds: Mapping[str, float], marks: Sequence[tuple[float, int]]
) -> str:
    """SVG: curves over x, a dashed bound for each, and where each rung began."""
    values = [y for _, _, ys in curves for y in ys] + list(bounds.values()) + [0.0]
    low, high = min(values), max(values)
    span, end = (high - low) or 1.0, max(max(x), 1)

    def across(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 8) * value / end, 1)

    def down(value: float) -> float:
        return round(TOP + (HEIGHT - 2 * TOP - 14) * (high - value) / span, 1)

    parts = [f'<text x="0" y="{down(y) + 4}">{y:.3g}</text>' for y in sorted({low, 0.0, high})]
    for at, percent in marks:
        parts.append(f'<path d="M{across(at)},{TOP}V{HEIGHT - 28}" stroke="#ccc"/>')
        parts.append(f'<text x="{across(at) + 2}" y="{HEIGHT - 16}">{percent} %</text>')
    every = max(-(-len(x) // MOST_POINTS), 1)
    for place, (name, colour, ys) in enumerate(curves):
        kept = list(zip(x, ys, strict=True))[::-1][::every][::-1]
        line = " ".join(f"{across(a)},{down(b)}" for a, b in [(0, 0.0), *kept])
        bound = down(bounds[name])
        parts.append(f'<polyline points="{line}" stroke="{colour}" fill="none"/>')
        parts.append(f'<path d="M{LEFT},{bound}H{WIDTH}" stroke="{colour}" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{LEFT + 130 * place}" y="{HEIGHT - 2}" fill="{colour}">{escape(name)}</text>')
    parts.append(f'<text x="{WIDTH - 130}" y="{HEIGHT - 2}">{end:.0f} requests</text>')
    return f'<svg width="{WIDTH}" height="{HEIGHT}">{"".join(parts)}</svg>'
