"""Pictures a person looks at instead of numbers."""

import numpy as np
import pytest

from assets.retrain.picture import figures, importance_figure

PNG = b"\x89PNG\r\n"
LABELS = (np.random.default_rng(0).random(500) < 0.4).astype(float)
SCORES = np.clip(LABELS * 0.2 + np.random.default_rng(1).random(500) * 0.8, 0, 1)


SLICES = [
    {"slice": "origin=EWR", "rows": 300, "loss": 0.2, "increase": 0.01, "noise": 0.02},
    {"slice": "origin=JFK", "rows": 200, "loss": 0.1, "increase": -0.01, "noise": 0.03},
]


def test_every_figure_is_a_png_under_its_name() -> None:
    drawn = figures(LABELS, SCORES, SCORES**2, SLICES) | importance_figure({"hour": 0.7, "temp": 0.3})
    assert list(drawn) == [f"plots/{name}.png" for name in ("roc", "calibration", "slices", "importance")]
    assert all(body.startswith(PNG) for body in drawn.values())


def test_slices_without_a_champion_are_drawn_by_their_loss() -> None:
    alone = [row | {"increase": float("nan"), "noise": float("inf")} for row in SLICES]
    first, second = (figures(LABELS, SCORES, None, table)["plots/slices.png"] for table in (alone, SLICES))
    assert first.startswith(PNG)
    assert first != second


def test_the_same_numbers_draw_the_same_bytes() -> None:
    assert figures(LABELS, SCORES, None) == figures(LABELS.copy(), SCORES.copy(), None)
    assert figures(LABELS, SCORES, None) != figures(LABELS, SCORES, SCORES**2)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_hold_out_too_small_to_judge_can_still_be_drawn(rows: int) -> None:
    assert all(body.startswith(PNG) for body in figures(LABELS[:rows], SCORES[:rows], None).values())


def test_numbers_are_drawn_against_their_labels() -> None:
    labels = np.random.default_rng(2).normal(3000, 400, 500)
    ((name, body),) = figures(labels, labels + 50, labels - 90, task="regression").items()
    assert (name, body[:6]) == ("plots/answers.png", PNG)
