"""The gate for people: curves and importance."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assets.retrain.measures import auc, calibration, roc
from assets.task import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CANDIDATE, CHAMPION = "#0b6e99", "#9a9a9a"


def figures(
    labels: np.ndarray,
    candidate: np.ndarray,
    champion: np.ndarray | None,
    slices: Sequence[Mapping[str, Any]] = (),
    task: Task = "binary",
) -> dict[str, bytes]:
    """PNG bytes by file name: plots/roc.png and plots/calibration.png (answers.png of numbers), slices.png.

    slices: the table of a retrain decision.
    """
    lines = [("candidate", candidate, CANDIDATE)]
    if champion is not None:
        lines.insert(0, ("champion", champion, CHAMPION))
    if task == "regression":
        drawn = {"plots/answers.png": _png(_numbers, labels, lines)}
    else:
        drawn = {"plots/roc.png": _png(_roc, labels, lines), "plots/calibration.png": _png(_calibration, labels, lines)}
    if slices:
        drawn["plots/slices.png"] = _png(_slices, slices)
    return drawn


def importance_figure(weights: Mapping[str, float]) -> dict[str, bytes]:
    """PNG bytes of plots/importance.png."""
    return {"plots/importance.png": _png(_importance, weights)}


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


def _numbers(axes: "Axes", labels: np.ndarray, lines: list[tuple[str, np.ndarray, str]]) -> None:
    """Means of equal parts of the rows in order of answer: a good model's lie on the diagonal, far apart."""
    for name, scores, colour in lines:
        table = calibration(labels, scores)
        error = float(np.abs(scores - labels).mean())
        axes.plot(table["probability"], table["frequency"], "o-", color=colour, label=f"{name}, off by {error:.4g}")
    ends = [float(labels.min()), float(labels.max())]
    axes.plot(ends, ends, color="#cccccc", linestyle=":")
    axes.set(title="Answers on the hold-out", xlabel="mean answer", ylabel="mean label")
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
