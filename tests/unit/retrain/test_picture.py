"""Pictures and the scorecard a person reads instead of numbers."""

from datetime import UTC, datetime

import numpy as np
import pytest

from assets.decision import Decision, Evidence
from assets.retrain.picture import figures, importance_figure, scorecard
from assets.verdict import Verdict

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


def test_the_scorecard_sets_candidate_beside_champion() -> None:
    evidence = (
        Evidence("schema", Verdict.PASS, "", 0.0, 0.0),
        Evidence("floor", Verdict.PASS, "", 0.7, 0.55),
        Evidence("champion", Verdict.FAIL, "", 0.03, 0.002),
        Evidence("parity", Verdict.PASS, "", 1e-7, 1e-5),
    )
    details = {
        "candidate": {"auc": 0.7, "loss": 0.2, "calibration_error": 0.05},
        "champion": {"auc": 0.72, "loss": 0.17, "calibration_error": 0.04},
    }
    table = scorecard(Decision("m", "retrain", datetime(2013, 2, 1, tzinfo=UTC), "", evidence, {}, details))
    assert "| AUC | 0.7200 | 0.7000 | -0.0200 | ✅ |" in table
    assert "| Brier loss | 0.1700 | 0.2000 | +0.0300 | ❌ |" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_gate_that_ended_early_has_a_scorecard_of_dashes() -> None:
    early = Evidence("floor", Verdict.INCONCLUSIVE, "too few")
    table = scorecard(Decision("m", "retrain", datetime(2013, 2, 1, tzinfo=UTC), "", (early,)))
    assert "| AUC | – | – | – | ❔ |" in table
