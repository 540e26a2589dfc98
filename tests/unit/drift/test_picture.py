"""Pictures stay small enough to be shown, and draw whatever a decision holds."""

import base64
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from assets.drift.judge import judge
from assets.drift.picture import figure, sparkline
from assets.drift.reference import Reference
from assets.drift.settings import DriftSettings


def svg(markdown: str) -> ET.Element:
    return ET.fromstring(base64.b64decode(markdown.split("base64,")[1].rstrip(")")))


@pytest.mark.parametrize("values", [[], [0.1], [None, 0.0], [0.123456789] * 400, [0.0, None, 1.0]])
@pytest.mark.parametrize("threshold", [None, 0.081])
def test_a_sparkline_is_valid_and_shown_inline(values: list[float | None], threshold: float | None) -> None:
    markdown = sparkline(values, threshold)
    assert markdown.startswith("![drift](data:image/svg+xml;base64,")
    assert len(markdown) < 1000
    paths = svg(markdown).findall("{http://www.w3.org/2000/svg}path")
    assert len(paths) == (threshold is not None)


def test_a_sparkline_turns_red_above_the_level() -> None:
    colours = [svg(sparkline([0.1, last], 0.2))[0].get("stroke") for last in (0.1, 0.3)]
    assert colours == ["#36c", "#c33"]


def test_the_figure_draws_a_week_and_an_empty_one(reference: Reference, draw: Callable[..., pd.DataFrame]) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    for rows in (draw(0, 7, shift=1.0), draw(0, 7).iloc[:0]):
        decision = judge("m", reference, rows, rows, None, DriftSettings(), start, start + timedelta(7),
                         start + timedelta(7), {})  # fmt: skip
        assert figure(decision.details).startswith(b"\x89PNG")
    assert figure({}).startswith(b"\x89PNG")
