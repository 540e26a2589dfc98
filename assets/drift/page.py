"""The Evidently report of a window: a page for people, beside the verdict and never instead of it.

Importing Evidently takes seconds of a core, so the page is drawn in a process of its own (`python -m
assets.drift.page FOLDER`), at the lowest priority: an alarm starts a loop, and that goes first.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from assets.drift.aggregate import Marginal
from assets.drift.categorical import Categorical
from assets.drift.reference import Reference

# Evidently's own scripts take 4.2 MB of a page; columns are left out until the page is below the limit.
MOST_BYTES = 5_000_000
MOST_ROWS = 5_000
COLUMNS_AT_FIRST = 60
LOWEST_PRIORITY = 19
REFERENCE, WINDOW, PAGE = "reference.npz", "window.parquet", "page.html"


def page(reference: bytes, window: pd.DataFrame, record: Mapping[str, Any], timeout_s: float = 300) -> bytes:
    """HTML below 5 MB that needs no network. reference: as stored; window: features; record: of the decision.

    `ValueError` when the window has no rows; `RuntimeError` with its last words when Evidently fails.
    """
    if window.empty:
        raise ValueError("a window without a request has no report: there is nothing to draw")
    with TemporaryDirectory(prefix="trimtab-page-") as name:
        folder = Path(name)
        (folder / REFERENCE).write_bytes(reference)
        sampled(window).to_parquet(folder / WINDOW)
        command = [sys.executable, "-m", "assets.drift.page", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise RuntimeError(f"Evidently drew no page: {done.stderr[-1000:]}")
        html = (folder / PAGE).read_text()
    return html.replace("<body>", f"<body>{banner(record)}", 1).encode()


def banner(record: Mapping[str, Any]) -> str:
    """What was decided. The tests on the page are Evidently's own, and decide nothing."""
    named = [item["feature"] for item in record["details"].get("features", []) if item["named"]]
    said = f"{record['model']}, as of {record['as_of'][:16]}: {record['verdict']}: {record['why']}"
    features = f"Named features: {', '.join(named) or 'none'}."
    return (
        '<div style="font:16px sans-serif;padding:12px;border-bottom:1px solid #999">'
        f"<b>{escape(said)}</b><br>{escape(features)} The tests below are Evidently's, on a sample; the verdict above "
        "comes from trimtab's record alone.</div>"
    )


def sampled(frame: pd.DataFrame) -> pd.DataFrame:
    """At most MOST_ROWS rows, evenly spaced: the same frame is the same sample."""
    if len(frame) <= MOST_ROWS:
        return frame
    return frame.iloc[np.linspace(0, len(frame) - 1, MOST_ROWS).round().astype(int)]


def drawn_from(reference: Reference) -> pd.DataFrame:
    """Rows with the reference's distribution of each feature by itself: its quantiles, nulls in their share."""
    rows = min(reference.rows, MOST_ROWS)
    return pd.DataFrame({name: _quantiles(marginal, rows) for name, marginal in reference.marginals.items()})


def _quantiles(marginal: Marginal, rows: int) -> "pd.Series[Any]":
    known = round((1 - marginal.null_share) * rows)
    if isinstance(marginal, Categorical):
        values, totals = np.array(marginal.names, dtype=object), np.cumsum(marginal.counts)
    else:
        values, totals = marginal.values, marginal.counts
    if not known or not len(values):
        return pd.Series([None] * rows, dtype=object)
    ranks = (np.arange(known) + 0.5) / known * totals[-1]
    found = values[np.searchsorted(totals, ranks)]
    return pd.Series([*found, *[None] * (rows - known)], dtype=values.dtype)


def draw(reference: Reference, window: pd.DataFrame, columns: list[str]) -> str:
    """The report over some columns. Those without a value on either side have no distribution and stay out."""
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    present = [name for name in columns if name in window]
    sides = [_typed(frame[present], reference.features) for frame in (window, drawn_from(reference))]
    usable = [name for name in present if all(frame[name].notna().any() for frame in sides)]
    if not usable:
        return "<html><body><p>No feature has values in the reference and in the window.</p></body></html>"
    words = [name for name in usable if reference.features[name] == "string"]
    numbers = [name for name in usable if name not in words]
    definition = DataDefinition(numerical_columns=numbers, categorical_columns=words)
    sides = [Dataset.from_pandas(frame[usable], data_definition=definition) for frame in sides]
    return str(Report([DataDriftPreset()]).run(*sides).get_html_str(as_iframe=False))


def _typed(frame: pd.DataFrame, features: Mapping[str, str]) -> pd.DataFrame:
    """Numbers as numbers, those without an end as missing: no histogram holds them."""
    numbers = [str(name) for name in frame if features[str(name)] != "string"]
    plain = {name: pd.to_numeric(frame[name], errors="coerce").astype(float) for name in numbers}
    return frame.assign(**{name: column.where(np.isfinite(column)) for name, column in plain.items()})


def main(folder: Path) -> None:
    """Read reference and window from the folder, leave the page there."""
    reference = Reference.from_bytes((folder / REFERENCE).read_bytes())
    window = pd.read_parquet(folder / WINDOW)
    heaviest = sorted(reference.features, key=lambda name: -reference.weights[name])
    count = min(COLUMNS_AT_FIRST, len(heaviest))
    html = draw(reference, window, heaviest[:count])
    while len(html.encode()) > MOST_BYTES - 10_000 and count > 1:
        count //= 2
        html = draw(reference, window, heaviest[:count])
    (folder / PAGE).write_text(html)


if __name__ == "__main__":
    os.nice(LOWEST_PRIORITY)
    main(Path(sys.argv[1]))
