"""The retrain gate: nothing unproven gets a version, and too little data is said first."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.decision import Decision
from assets.retrain.gates import judge, loss_bound
from assets.retrain.settings import TrainingSettings
from assets.verdict import Verdict

AS_OF = datetime(2013, 2, 1, tzinfo=UTC)
NAMES = ("schema", "floor", "champion", "slices", "calibration", "parity")


def holdout(rows: int = 4000, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Seven days of rows, and the true probability of each."""
    rng = np.random.default_rng(seed)
    chance = rng.beta(2, 5, rows)
    frame = pd.DataFrame(
        {
            "event_time": pd.to_datetime("2013-01-25", utc=True)
            + pd.to_timedelta(np.arange(rows) * 7 / rows, unit="D"),
            "origin": rng.choice(["EWR", "JFK"], rows),
            "late": (rng.random(rows) < chance).astype(float),
        }
    )
    return frame, chance


def decide(
    frame: pd.DataFrame, candidate: np.ndarray, champion: np.ndarray | None = None, parity: float = 1e-7, **change: Any
) -> Decision:
    bounds = TrainingSettings(**{"slices": ("origin",), **change})
    return judge("flights", frame, "late", candidate, champion, bounds, parity, AS_OF, {"snapshot": "abc"})


def verdicts(decision: Decision) -> dict[str, Verdict]:
    return {item.name: item.verdict for item in decision.evidence}


def test_a_good_candidate_passes_every_gate_with_or_without_a_champion() -> None:
    frame, chance = holdout()
    for champion in (None, chance, np.full(len(frame), frame["late"].mean())):
        decision = decide(frame, chance, champion)
        assert verdicts(decision) == dict.fromkeys(NAMES, Verdict.PASS)
        assert decision.inputs == {"snapshot": "abc"}


def test_a_candidate_identical_to_the_champion_passes_without_a_nan() -> None:
    frame, chance = holdout()
    item = decide(frame, chance, chance.copy()).evidence[2]
    assert (item.name, item.statistic, item.verdict) == ("champion", 0.0, Verdict.PASS)


@pytest.mark.parametrize("rows", [0, 1, 499])
def test_too_few_rows_are_said_first_with_the_number_needed(rows: int) -> None:
    frame, chance = holdout(rows)
    decision = decide(frame, chance)
    assert verdicts(decision) == {"floor": Verdict.INCONCLUSIVE}
    assert "500 are needed" in decision.why


def test_a_single_outcome_decides_nothing() -> None:
    frame, chance = holdout()
    decision = decide(frame.assign(late=0.0), chance)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "rarer outcome has 0" in decision.why


def test_guessing_fails_the_floor() -> None:
    frame, _ = holdout()
    guess = np.random.default_rng(1).permutation(frame["late"].to_numpy()) * 0.2 + 0.2
    assert verdicts(decide(frame, guess))["floor"] is Verdict.FAIL


def test_losing_to_the_champion_fails_beyond_the_margin_only() -> None:
    frame, chance = holdout()
    worse = np.clip(chance + np.random.default_rng(2).normal(0, 0.12, len(chance)), 0, 1)
    lost = decide(frame, worse, chance)
    assert verdicts(lost)["champion"] is Verdict.FAIL
    assert verdicts(decide(frame, worse, chance, max_loss_increase=0.1))["champion"] is Verdict.PASS
    assert "against the champion" in lost.why


def test_a_slice_that_becomes_worse_fails_though_the_whole_improves() -> None:
    frame, chance = holdout()
    champion = np.full(len(frame), frame["late"].mean())
    hurt = (frame["origin"] == "JFK").to_numpy() & (np.arange(len(frame)) % 4 == 0)
    frame = frame.assign(origin=np.where(hurt, "LGA", frame["origin"]))
    candidate = np.where(hurt, 1 - chance, chance)
    decision = decide(frame, candidate, champion, max_loss_increase=0.05)
    assert verdicts(decision)["slices"] is Verdict.FAIL
    assert "origin=LGA" in decision.why


def test_small_slices_are_named_and_not_judged() -> None:
    frame, chance = holdout()
    frame = frame.assign(origin=frame["origin"].where(np.arange(len(frame)) >= 50, None))
    item = decide(frame, chance, chance).evidence[3]
    assert item.verdict is Verdict.PASS
    assert "origin=(missing)" in item.why
    only_small = decide(frame, chance, chance, min_slice_rows=3999)
    assert verdicts(only_small)["slices"] is Verdict.INCONCLUSIVE


def test_many_slices_seldom_fail_by_chance() -> None:
    """Both models are equally good everywhere: of 60 gates over 40 slices chance may fail a few, not most."""
    failures = 0
    for seed in range(60):
        frame, chance = holdout(10_000, seed)
        rng = np.random.default_rng(seed + 1000)
        frame = frame.assign(origin=rng.integers(0, 40, len(frame)).astype(str))
        one, other = (np.clip(chance + rng.normal(0, 0.2, len(chance)), 0, 1) for _ in range(2))
        decision = decide(
            frame, one, other, max_slice_loss_increase=0.0, max_loss_increase=1.0, max_calibration_error=1.0
        )
        failures += verdicts(decision)["slices"] is Verdict.FAIL
    assert failures <= 9  # P(Binomial(60, .05) > 9) < .001


def test_probabilities_far_from_the_frequencies_fail() -> None:
    frame, chance = holdout()
    assert verdicts(decide(frame, chance**4))["calibration"] is Verdict.FAIL


def test_a_week_that_no_model_foresaw_is_not_held_against_a_better_candidate() -> None:
    frame, chance = holdout()
    storm = frame.assign(late=(np.random.default_rng(4).random(len(frame)) < chance + 0.25).astype(float))
    assert verdicts(decide(storm, chance))["calibration"] is Verdict.FAIL
    assert verdicts(decide(storm, chance, chance * 0.9))["calibration"] is Verdict.PASS
    assert verdicts(decide(storm, chance, chance * 1.1))["calibration"] is Verdict.FAIL


@pytest.mark.parametrize("difference", [2e-5, 1.0, float("nan"), float("inf")])
def test_an_onnx_that_answers_otherwise_fails(difference: float) -> None:
    frame, chance = holdout()
    assert verdicts(decide(frame, chance, parity=difference))["parity"] is Verdict.FAIL


@pytest.mark.parametrize("flaw", [np.nan, -0.1, 1.1, np.inf])
def test_answers_that_are_no_probabilities_fail_and_end_the_gate(flaw: float) -> None:
    frame, chance = holdout()
    broken = np.where(np.arange(len(chance)) == 5, flaw, chance)
    assert verdicts(decide(frame, broken)) == {"schema": Verdict.FAIL}
    # The champion's fault is not the candidate's.
    assert verdicts(decide(frame, chance, broken)) == {"schema": Verdict.ERROR}


def test_a_hold_out_that_is_not_what_was_asked_for_is_an_error() -> None:
    frame, chance = holdout()
    assert verdicts(decide(frame, chance, slices=("airport",))) == {"schema": Verdict.ERROR}
    assert verdicts(decide(frame.assign(late=frame["late"] + 1), chance)) == {"schema": Verdict.ERROR}
    assert verdicts(decide(frame, chance[:-1])) == {"schema": Verdict.FAIL}


def test_the_same_rows_are_the_same_decision() -> None:
    frame, chance = holdout()
    assert decide(frame, chance, chance**1.1).digest == decide(frame.copy(), chance.copy(), chance**1.1).digest


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(1, 10))
def test_the_loss_bound_lies_between_the_mean_and_one(values: list[float], days: int) -> None:
    losses, day = np.array(values), np.arange(len(values)) % days
    means = pd.Series(losses).groupby(day).mean()
    assert means.mean() - 1e-12 <= loss_bound(losses, day) <= 1.0


def test_the_loss_bound_holds_as_often_as_it_says_though_days_differ() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(1000):
        level = rng.normal(0.2, 0.03, 7)
        losses = np.repeat(level, 200) + rng.uniform(-0.1, 0.1, 1400)
        held += loss_bound(losses, np.repeat(np.arange(7), 200)) >= 0.2
    assert 930 <= held <= 970


def test_one_day_bounds_nothing() -> None:
    assert loss_bound(np.array([0.1, 0.2]), np.array([1, 1])) == 1.0


def amounts(off: float, rows: int = 4000) -> tuple[pd.DataFrame, np.ndarray]:
    """Labels of some thousand, and answers that miss them by so much."""
    rng = np.random.default_rng(1)
    frame, _ = holdout(rows)
    frame["late"] = rng.normal(3000, 400, rows)
    return frame, frame["late"].to_numpy() + rng.normal(0, off, rows)


def decide_number(off: float, champion: float | None = None, **change: Any) -> Decision:
    frame, answers = amounts(off)
    theirs = None if champion is None else amounts(champion)[1]
    bounds = TrainingSettings(**{"slices": ("origin",), **change})
    return judge("m", frame, "late", answers, theirs, bounds, 1e-7, AS_OF, {}, task="regression")


def test_a_number_is_gated_on_the_error_it_saves_and_against_the_champion() -> None:
    good = decide_number(100, champion=105)
    assert verdicts(good) == dict.fromkeys(NAMES, Verdict.PASS)
    assert good.details["candidate"]["skill"] == pytest.approx(0.75, abs=0.02)
    assert good.details["candidate"]["absolute_error"] == pytest.approx(80, rel=0.05)
    assert "only chances can be held to frequencies" in good.evidence[4].why
    assert verdicts(decide_number(395))["floor"] is Verdict.FAIL
    worse = decide_number(130, champion=100)
    assert verdicts(worse)["champion"] is Verdict.FAIL
    assert verdicts(worse)["slices"] is Verdict.FAIL


def test_the_unit_of_a_number_changes_no_verdict() -> None:
    frame, answers = amounts(110)
    _, theirs = amounts(100)
    bounds = TrainingSettings(slices=("origin",))
    said = []
    for unit in (1.0, 1e-6, 1e6):
        rows = frame.assign(late=frame["late"] * unit)
        scores = (answers * unit, theirs * unit)
        said.append(judge("m", rows, "late", *scores, bounds, 0.0, AS_OF, {}, task="regression"))
    assert len({tuple(verdicts(decision).items()) for decision in said}) == 1
    assert said[1].evidence[1].statistic == pytest.approx(said[2].evidence[1].statistic)


def test_numbers_that_cannot_be_judged_say_so() -> None:
    frame, answers = amounts(100)
    alike = judge(
        "m", frame.assign(late=7.0), "late", answers, None, TrainingSettings(), 0.0, AS_OF, {}, task="regression"
    )
    assert verdicts(alike) == {"floor": Verdict.INCONCLUSIVE}
    answers[3] = np.nan
    broken = judge("m", frame, "late", answers, None, TrainingSettings(), 0.0, AS_OF, {}, task="regression")
    assert "1 answers that are no numbers" in broken.why
    assert broken.verdict is Verdict.FAIL


def remembering(frame: pd.DataFrame, chance: np.ndarray, until: datetime) -> np.ndarray:
    """A champion that knows by heart what it was fitted on, and guesses at the rest."""
    seen = (frame["event_time"] <= pd.Timestamp(until)).to_numpy()
    return np.where(seen, np.clip(frame["late"], 0.02, 0.98), np.roll(chance, 1))


def against(frame: pd.DataFrame, candidate: np.ndarray, champion: np.ndarray, until: datetime) -> Decision:
    bounds = TrainingSettings(slices=("origin",))
    return judge("flights", frame, "late", candidate, champion, bounds, 0.0, AS_OF, {}, seen_until=until)


@pytest.mark.parametrize("days", [1, 3, 5])
def test_a_champion_is_compared_on_rows_that_it_was_not_fitted_on(days: int) -> None:
    frame, chance = holdout()
    until = AS_OF - timedelta(days=days)
    champion = remembering(frame, chance, until)
    assert verdicts(decide(frame, chance, champion))["champion"] is Verdict.FAIL  # as if it had not seen them
    decision = against(frame, chance, champion, until)
    assert verdicts(decision) == dict.fromkeys(NAMES, Verdict.PASS)
    rows = int((frame["event_time"] > pd.Timestamp(until)).sum())
    assert f"Compared on the {rows} rows after the champion's own." in decision.why
    assert sum(row["rows"] for row in decision.details["slices"]) == rows


def test_rows_that_the_champion_has_seen_prove_nothing_against_a_candidate_but_may_speak_for_it() -> None:
    frame, chance = holdout()
    until = AS_OF - timedelta(hours=1)
    losing = against(frame, chance, remembering(frame, chance, until), until)
    assert verdicts(losing)["champion"] is Verdict.INCONCLUSIVE
    assert losing.verdict is Verdict.INCONCLUSIVE
    assert "The champion was fitted on 39" in losing.why
    assert "when enough rows after the champion's fit have their labels" in losing.why
    holding = against(frame, chance, np.full(len(frame), 0.5), until)
    assert holding.verdict is Verdict.PASS


def test_a_hold_out_that_is_new_to_both_is_compared_as_ever() -> None:
    frame, chance = holdout()
    worse = np.full(len(frame), 0.5)
    for until in (AS_OF - timedelta(days=30), AS_OF - timedelta(days=7, seconds=1)):
        assert against(frame, worse, chance, until) == against(frame, worse, chance, datetime(2000, 1, 1, tzinfo=UTC))
        assert verdicts(against(frame, worse, chance, until))["champion"] is Verdict.FAIL
