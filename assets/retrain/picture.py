"""The gate for people: curves, importance, and a scorecard."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assets.decision import Decision
from assets.retrain.measures import auc, calibration, roc
from assets.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = {Verdict.PASS: "✅", Verdict.INCONCLUSIVE: "❔", Verdict.ERROR: "⚠️", Verdict.FAIL: "❌"}
CANDIDATE, CHAMPION = "#0b6e99", "#9a9a9a"


def figures(
    labels: np.ndarray,
    candidate: np.ndarray,
    champion: np.ndarray | None,
    slices: Sequence[Mapping[str, Any]] = (),
) -> dict[str, bytes]:
    """PNG bytes by file name: plots/roc.png, plots/calibration.png and, with slices, plots/slices.png.

    slices: the table of a retrain decision.
    """
    lines = [("candidate", candidate, CANDIDATE)]
    if champion is not None:
        lines.insert(0, ("champion", champion, CHAMPION))
    drawn = {"plots/roc.png": _png(_roc, labels, lines), "plots/calibration.png": _png(_calibration, labels, lines)}
    if slices:
        drawn["plots/slices.png"] = _png(_slices, slices)
    return drawn


def importance_figure(weights: Mapping[str, float]) -> dict[str, bytes]:
    """PNG bytes of plots/importance.png."""
    return {"plots/importance.png": _png(_importance, weights)}


def scorecard(decision: Decision) -> str:
    """A GFM table of a retrain decision: champion, candidate, delta, gate."""
    details = decision.details
    candidate: Mapping[str, Any] = details.get("candidate", {})
    champion: Mapping[str, Any] = details.get("champion", {})
    marks = {item.name: MARKS[item.verdict] for item in decision.evidence}
    rows = ["| | champion | candidate | delta | gate |", "| --- | ---: | ---: | ---: | :---: |"]
    for title, key, gate in (("AUC", "auc", "floor"), ("Brier loss", "loss", "champion")):
        rows.append(_row(title, champion.get(key), candidate.get(key), marks.get(gate, "–")))
    gap = "calibration_error"
    rows.append(_row("Calibration gap", champion.get(gap), candidate.get(gap), marks.get("calibration", "–")))
    for item in decision.evidence:
        if item.name in ("slices", "parity", "schema"):
            value = "–" if item.statistic is None else f"{item.statistic:.2g}"
            rows.append(f"| {item.name} | – | {value} | – | {marks[item.name]} |")
    return "\n".join(rows)


def _row(title: str, champion: float | None, candidate: float | None, mark: str) -> str:
    def cell(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    delta = None if champion is None or candidate is None else candidate - champion
    return f"| {title} | {cell(champion, '.4f')} | {cell(candidate, '.4f')} | {cell(delta, '+.4f')} | {mark} |"


def _png(draw: Any, *arguments: Any) -> bytes:
    # Not pyplot: its global state is shared by the threads of a code server.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    draw(axes, *arguments)
    axes.spines[["top", "right"]].set_visible(False)
    sink = io.BytesIO()
    figure.savefig(sink, format="png", metadata={"Software": None})
    return sink.getvalue()


def _roc(axes: "Axes", labels: np.ndarray, lines: list[tuple[str, np.ndarray, str]]) -> None:
    for name, scores, colour in lines:
        area = auc(labels, scores)
        if np.isfinite(area):
            axes.plot(*roc(labels, scores), color=colour, label=f"{name}, AUC {area:.3f}")
    axes.plot([0, 1], [0, 1], color="#cccccc", linestyle=":")
    axes.set(title="ROC on the hold-out", xlabel="false alarms", ylabel="hits", xlim=(0, 1), ylim=(0, 1))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", frameon=False)


def _calibration(axes: "Axes", labels: np.ndarray, lines: list[tuple[str, np.ndarray, str]]) -> None:
    for name, scores, colour in lines:
        table = calibration(labels, scores)
        axes.plot(table["probability"], table["frequency"], "o-", color=colour, label=name)
    axes.plot([0, 1], [0, 1], color="#cccccc", linestyle=":")
    axes.set(title="Calibration on the hold-out", xlabel="probability", ylabel="frequency", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", frameon=False)


def _importance(axes: "Axes", weights: Mapping[str, float]) -> None:
    ordered = sorted(weights.items(), key=lambda item: item[1])
    axes.barh([name for name, _ in ordered], [weight for _, weight in ordered], color=CANDIDATE)
    axes.set(title="What the answers rest on", xlabel="share of permutation importance")


def _slices(axes: "Axes", table: Sequence[Mapping[str, Any]]) -> None:
    """The slices of most rows: a long list is read in the record."""
    shown = sorted(table, key=lambda row: -row["rows"])[:20]
    names = [f"{row['slice']} ({row['rows']})" for row in shown]
    compared = all(np.isfinite(row["increase"]) for row in shown)
    values = [row["increase"] if compared else row["loss"] for row in shown]
    axes.barh(names, values, color=CANDIDATE)
    noise = [row["noise"] for row in shown]
    if compared and np.all(np.isfinite(noise)):
        # Beyond this mark a slice has become worse by more than chance explains.
        axes.plot(noise, names, "|", color="#c0392b", markersize=12, label="chance explains up to here")
        axes.legend(loc="lower right", frameon=False)
    axes.invert_yaxis()
    axes.set(title="Loss by slice", xlabel="change of loss against the champion" if compared else "mean loss")
