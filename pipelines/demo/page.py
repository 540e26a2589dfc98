"""The demo's page: one self-contained HTML file with the table and the pictures."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }
h1 { font-size: 1.5rem }
h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100%; font-size: 13px }
td, th { border-bottom: 1px solid #d9e0e6; padding: .35rem .5rem; text-align: left; vertical-align: top }
td:first-child { white-space: nowrap }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
img { max-width: 100% }
.PASS { color: #1a7f4b } .FAIL { color: #b3261e } .INCONCLUSIVE { color: #6b7785 } .ERROR { color: #b26a00 }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem }
.tile { background: #f2f5f8; border-radius: 8px; padding: .7rem 1.1rem }
.tile b { display: block; font-size: 1.3rem }
"""


def page(result: Mapping[str, Any]) -> str:
    """HTML of a demo result (the values of its JSON)."""
    tiles = [
        ("promoted", len(result["promotions"])),
        ("recorded no", len(result["refusals"])),
        ("failed requests", result["failed_requests"]),
        ("alarm to promoted", _seconds(result["seconds"].get("alarm_to_promoted"))),
        ("published to loaded", _seconds(result["seconds"].get("published_to_loaded"))),
        ("stack up", _seconds(result["seconds"].get("up"))),
        ("memory", f"{result['rss_mb'] / 1000:.1f} GB"),
    ]
    boxes = "".join(f'<div class="tile"><b>{html.escape(str(value))}</b>{name}</div>' for name, value in tiles)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>trimtab demo</title><style>{STYLE}</style>'
        f"<h1>trimtab: {html.escape(result['model'])}, {result['from'][:10]} to {result['through'][:10]}</h1>"
        f'<div class="tiles">{boxes}</div>'
        f"<h2>Loss and order, week by week</h2>{_image(_weeks_figure(result['weeks']))}"
        f"<h2>Weeks</h2>{_weeks(result['weeks'])}"
        f"<h2>Loops</h2>{_loops(result['loops'])}"
        f"<h2>Recorded no</h2>{_refusals(result['refusals'])}</html>"
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _image(png: bytes) -> str:
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def _weeks(weeks: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for week in weeks:
        verdicts = " ".join(f'<span class="{v}">{gate} {v}</span>' for gate, v in week["verdicts"].items())
        rows.append(
            f"<tr><td>{week['start'][:10]}</td><td>{verdicts}<br>{html.escape(week['reason'])}</td>"
            f'<td class="n">{week["champion"]}</td>'
            f'<td class="n">{_pair(week["auc_static"], week["auc_managed"], 3)}</td>'
            f'<td class="n">{_pair(week["brier_static"], week["brier_managed"], 4)}</td>'
            f'<td class="n">{week["served"]}</td><td class="n">{week["failed"]}</td></tr>'
        )
    names = ("week", "verdicts", "champion", "AUC static → managed", "Brier static → managed", "served", "failed")
    head = "".join(f"<th>{name}" for name in names)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _pair(static: float | None, managed: float | None, digits: int) -> str:
    return " → ".join("–" if value is None else f"{value:.{digits}f}" for value in (static, managed))


def _loops(loops: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{loop['as_of'][:10]}</td><td>{html.escape(loop['trigger'])}</td><td>{html.escape(loop['outcome'])}</td>"
        f'<td class="n">{_seconds(loop["seconds"])}</td>'
        f"<td>{html.escape(', '.join(f'{name} {value:.1f} s' for name, value in loop['phases'].items()))}</td></tr>"
        for loop in loops
    )
    return f"<table><tr><th>week<th>trigger<th>outcome<th>alarm to end<th>phases</tr>{rows}</table>"


def _refusals(items: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f'<tr><td>{item["as_of"][:10]}</td><td class="{item["verdict"]}">{item["gate"]} {item["verdict"]}</td>'
        f"<td>{html.escape(item['why'])}</td></tr>"
        for item in items
    )
    return f"<table><tr><th>as of<th>gate<th>why</tr>{rows}</table>"


def _weeks_figure(weeks: Sequence[Mapping[str, Any]]) -> bytes:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 3.4), constrained_layout=True)
    x = list(range(len(weeks)))
    for axis, name, title in zip(
        axes, ("auc", "brier"), ("AUC (higher is better)", "Brier (lower is better)"), strict=True
    ):
        for kind, colour in (("static", "#9aa7b3"), ("managed", "#1a6fb0")):
            values = [float("nan") if week[f"{name}_{kind}"] is None else week[f"{name}_{kind}"] for week in weeks]
            axis.plot(
                x, values, marker="o", markersize=3, color=colour, label="never retrained" if kind == "static" else kind
            )
        changes = [i for i in x[1:] if weeks[i]["champion"] != weeks[i - 1]["champion"]]
        for i in changes:
            axis.axvline(i - 0.5, color="#1a7f4b", linewidth=0.8, linestyle=":")
        step = max(1, len(weeks) // 8)
        axis.set_xticks(x[::step], [week["start"][5:10] for week in weeks][::step])
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    pyplot.close(figure)
    return buffer.getvalue()
