"""Labels late, twice, missing, of chances and of numbers, as the drift gate counts them."""

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from assets.drift.judge import judge
from assets.drift.labels import auc
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings
from assets.verdict import Verdict
from tests.drift_cases import FAIL, INCONCLUSIVE, PASS, START, Draw, decide, found, read


def test_labels_count_once_in_order_and_only_as_known(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    whole = decide(reference, rows).details["harm"]
    assert whole["window_labels"] < len(rows)  # those of the last hours are not known yet
    doubled = decide(reference, rows, labelled=pd.concat([rows, rows.iloc[:300]])).details["harm"]
    assert doubled["window_labels"] == whole["window_labels"]
    assert doubled["log_r"] == whole["log_r"]
    early = judge("m", reference, rows, rows, None, DriftSettings(), START, START + timedelta(days=7),
                  START + timedelta(days=2), {})  # fmt: skip
    assert early.details["harm"]["window_labels"] == (rows["known_at"] <= START + timedelta(days=2)).sum()


def test_late_labels_count_when_they_become_known(reference: Reference, draw: Draw) -> None:
    late = draw(0, 7).assign(known_at=START + timedelta(days=9))
    first = decide(reference, late)
    assert found(first, "harm").verdict is INCONCLUSIVE
    second = decide(reference, draw(7, 7), 7, 14, read(first), labelled=late)
    assert second.details["harm"]["labels"] == len(late)
    assert second.details["harm"]["n"] == 1  # delivered at once: one observation


def test_unusable_labels_are_left_out(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    rows.loc[rows.index[:100], "label"] = np.nan
    rows.loc[rows.index[100:150], "answer"] = np.nan
    rows.loc[rows.index[150:160], "known_at"] = pd.NaT
    assert (
        decide(reference, rows).details["harm"]["window_labels"]
        == (rows["known_at"] <= START + timedelta(7)).sum() - 150
    )


def numbers(rows: pd.DataFrame, off: float) -> pd.DataFrame:
    """The same rows of a model that answers numbers, off by so much on average."""
    answer = 3000 + 500 * rows["temp"].astype(float)
    errors = np.random.default_rng(3).exponential(off, len(rows))
    return rows.assign(answer=answer, label=answer + errors)


@pytest.mark.parametrize(("off", "verdict"), [(50.0, PASS), (150.0, FAIL)])
def test_a_model_of_numbers_is_harmed_when_its_errors_grow_by_the_reference_s_measure(
    reference: Reference, draw: Draw, off: float, verdict: Verdict
) -> None:
    past = numbers(draw(-30, 30, seed=9), 50)
    built = build_reference(past, reference.features, {}, DriftSettings(), loss_bound=0.3, loss_scale=200.0)
    decision = decide(Reference.from_bytes(built.to_bytes()), numbers(draw(0, 14), off), 0, 14)
    assert found(decision, "harm").verdict is verdict, found(decision, "harm").why
    assert read(decision)["absolute_error"] == pytest.approx(off, rel=0.1)
    assert found(decision, "inputs").verdict is PASS


def test_a_model_of_numbers_has_no_estimate_and_says_why(reference: Reference, draw: Draw) -> None:
    past = numbers(draw(-30, 30, seed=9), 50)
    built = build_reference(past, reference.features, {}, DriftSettings(), loss_bound=0.3, loss_scale=200.0)
    decision = decide(built, numbers(draw(0, 7), 50))
    assert found(decision, "estimate").verdict is PASS
    assert "only chances say how often they err" in found(decision, "estimate").why
    assert decision.details["estimated"] is None


def test_silence_after_enough_labels_is_no_pass(reference: Reference, draw: Draw) -> None:
    first = decide(reference, draw(0, 7))
    second = decide(reference, draw(7, 7), 7, 14, read(first), labelled=draw(7, 7).iloc[:0])
    assert found(second, "harm").verdict is INCONCLUSIVE


def test_auc_equals_sklearn() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    label, answer = rng.integers(0, 2, 500).astype(float), rng.uniform(size=500).round(2)
    assert auc(label, answer) == pytest.approx(roc_auc_score(label, answer), abs=1e-12)
    assert auc(np.ones(3), np.ones(3)) is None
