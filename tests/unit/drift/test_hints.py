"""Hints warn and never decide; the champion's answers are one more weighted feature."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.decision import Decision, Evidence
from assets.drift.aggregate import ANSWER
from assets.drift.judge import judge
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings
from assets.verdict import Verdict

Draw = Callable[..., pd.DataFrame]
START = datetime(2030, 1, 1, tzinfo=UTC)
FEATURES = {"temp": "float", "hour": "int", "carrier": "string"}
PASS, INCONCLUSIVE, FAIL = Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL


def decide(reference: Reference, rows: pd.DataFrame, first: int = 0, last: int = 7, **more: Any) -> Decision:
    start, end = START + timedelta(days=first), START + timedelta(days=last)
    previous, labelled = more.get("previous"), more.get("labelled", rows)
    return judge("m", reference, rows, labelled, previous, DriftSettings(), start, end, end, {}, more.get("recent"))


def hint(decision: Decision, name: str) -> Evidence:
    found = next(item for item in decision.evidence if item.name == name)
    assert not found.decides
    return found


def test_a_hint_changes_no_verdict_and_says_so_in_the_record() -> None:
    warned = Evidence("joint", FAIL, "w", decides=False)
    decision = Decision("m", "drift", START, "w", (Evidence("inputs", PASS, "w"), warned))
    assert decision.verdict is PASS
    record = json.loads(decision.to_json())["evidence"]
    assert [item.get("decides", True) for item in record] == [True, False]
    assert Decision("m", "drift", START, "w", (warned,)).verdict is INCONCLUSIVE  # hints alone judge nothing


def test_an_estimate_warns_before_labels_come_and_is_blind_to_concept_drift(reference: Reference, draw: Draw) -> None:
    assert hint(decide(reference, draw(0, 7)), "estimate").verdict is PASS
    unsure = draw(0, 7).assign(answer=0.5)
    strict = build_reference(draw(-30, 30, seed=9), FEATURES, {}, DriftSettings(answer_weight=0), 0.2)
    decision = decide(strict, unsure, labelled=unsure.iloc[:0])
    early = hint(decision, "estimate")
    assert early.verdict is INCONCLUSIVE
    assert early.why.startswith("early warning: mean loss .25")
    assert early.statistic == pytest.approx(0.25)
    concept = [hint(decide(reference, draw(0, 7, miss=miss)), "estimate") for miss in (0.25, 0.9)]
    assert concept[0] == concept[1]
    assert "blind to concept drift" in concept[0].why


def test_no_answer_is_no_estimate(reference: Reference, draw: Draw) -> None:
    for silent in (draw(0, 7).drop(columns="answer"), draw(0, 7).assign(answer=np.nan)):
        decision = decide(reference, silent, labelled=draw(0, 7))
        assert "estimate" not in [item.name for item in decision.evidence]
        assert decision.verdict is PASS


def test_a_rise_beyond_the_accepted_loss_is_dated_and_decides_nothing(reference: Reference, draw: Draw) -> None:
    rows = pd.concat([draw(0, 5, rows=400), draw(5, 2, rows=400, miss=0.5)])
    decision = decide(reference, rows)
    risen = hint(decision, "rise")
    assert risen.verdict is INCONCLUSIVE
    assert risen.statistic is not None
    assert risen.statistic > 0.25 == risen.threshold
    assert "2030-01-07" in risen.why  # labels come after 20 hours
    assert decision.verdict is PASS


def test_a_rise_that_ended_or_stays_small_is_no_hint(reference: Reference, draw: Draw) -> None:
    assert hint(decide(reference, draw(0, 7, rows=400)), "rise").why.startswith("no rise")
    over = pd.concat([draw(0, 2, rows=400), draw(2, 1, rows=400, miss=0.6), draw(3, 4, rows=400)])
    assert "fell again" in hint(decide(reference, over), "rise").why
    small = pd.concat([draw(0, 4, rows=1000, miss=0.05), draw(4, 3, rows=1000, miss=0.2)])
    assert "stays below the .25 accepted" in hint(decide(reference, small), "rise").why
    for rows in (over, small):
        assert hint(decide(reference, rows), "rise").verdict is PASS


def test_the_window_of_losses_goes_on_in_the_next_record(reference: Reference, draw: Draw) -> None:
    rows = pd.concat([draw(0, 7), draw(7, 7, miss=0.5)])
    long = decide(reference, rows, 0, 14)
    first = decide(reference, rows, 0, 7)
    second = decide(reference, rows, 7, 14, previous=json.loads(first.to_json())["details"])
    assert second.details["adwin"]["state"] == long.details["adwin"]["state"]
    assert first.details["adwin"]["changes"] + second.details["adwin"]["changes"] == long.details["adwin"]["changes"]
    assert long.details["adwin"]["changes"]
    old = {name: value for name, value in first.details.items() if name != "adwin"}
    assert decide(reference, rows, 7, 14, previous=old).details["adwin"]["state"]["seen"] < 1500


def test_labels_that_come_for_some_requests_only_are_said(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    assert hint(decide(reference, rows), "labels").verdict is PASS
    accepted = decide(reference, rows, labelled=rows[rows["answer"] > 0.5])
    assert hint(accepted, "labels").verdict is INCONCLUSIVE
    assert hint(accepted, "labels").statistic == pytest.approx(0.5, abs=0.05)
    thinned = decide(reference, rows, labelled=rows.iloc[::3])
    assert hint(thinned, "labels").verdict is PASS
    late = decide(reference, rows, labelled=draw(-7, 7).assign(known_at=START + timedelta(days=1)))
    assert "labels" not in [item.name for item in late.evidence]


def test_features_that_move_together_are_a_hint(draw: Draw) -> None:
    def wide(rows: pd.DataFrame, correlation: float) -> pd.DataFrame:
        rng = np.random.default_rng(len(rows))
        other = rng.normal(size=len(rows))
        return rows.assign(wind=correlation * rows["temp"] + (1 - correlation**2) ** 0.5 * other)

    features = FEATURES | {"wind": "float"}
    reference = build_reference(wide(draw(-40, 40), 0.0), features, {}, DriftSettings(), 0.24)
    moved, still = (decide(reference, wide(draw(0, 7), correlation)) for correlation in (0.8, 0.0))
    assert hint(moved, "joint").verdict is INCONCLUSIVE
    assert "whole rows tell this window from the reference" in hint(moved, "joint").why
    assert moved.verdict is PASS
    assert hint(still, "joint").verdict is PASS
    few = decide(reference, wide(draw(0, 2), 0.8), 0, 2)
    assert hint(few, "joint").verdict is INCONCLUSIVE
    assert few.details["joint"] is None
    for correlation, verdict in ((0.8, INCONCLUSIVE), (0.0, PASS)):  # a day is judged with those before it
        lately = wide(draw(0, 7), correlation)
        daily = decide(reference, lately, 6, 7, recent=lately)
        assert hint(daily, "joint").verdict is verdict
        assert daily.details["joint"] is not None
        assert daily.details["rows"] == 200
        alone = decide(reference, lately, 6, 7)
        assert [daily.details[name] for name in ("features", "days")] == [
            alone.details[name] for name in ("features", "days")
        ]


def test_answers_that_move_alone_are_drift(draw: Draw) -> None:
    settings = DriftSettings(answer_weight=0.5)
    reference = build_reference(draw(-30, 30, seed=9), FEATURES, {}, settings, 0.24)
    moved = draw(0, 7)
    moved["answer"] = moved["answer"] / 2
    decision = decide(reference, moved)
    inputs = next(item for item in decision.evidence if item.name == "inputs")
    assert inputs.verdict is FAIL
    assert "answer .5" in inputs.why
    assert next(item for item in decision.evidence if item.name == "schema").verdict is PASS


def test_the_answers_share_their_weight_with_the_features(draw: Draw) -> None:
    settings = DriftSettings(answer_weight=0.2)
    reference = build_reference(draw(-30, 30), FEATURES, {"temp": 3.0, "hour": 1.0}, settings, 0.24)
    assert reference.weights == pytest.approx({"temp": 0.6, "hour": 0.2, "carrier": 0.0, ANSWER: 0.2})
    assert reference.without_answers().weights == pytest.approx({"temp": 0.75, "hour": 0.25, "carrier": 0.0})
    assert list(reference.columns) == [*FEATURES, ANSWER]
    shown = build_reference(draw(-30, 30), FEATURES, {}, DriftSettings(answer_weight=0), 0.24)
    features = {item["feature"]: item for item in decide(shown, draw(0, 7)).details["features"]}
    assert features[ANSWER]["weight"] == 0


def test_a_reference_of_before_answers_samples_and_tags_still_judges(draw: Draw) -> None:
    settings = DriftSettings(joint_rows=0)
    old = build_reference(draw(-30, 30).drop(columns="answer"), FEATURES, {}, settings, 0.24).to_bytes()
    with np.load(io.BytesIO(old)) as archive:
        names = set(archive.files)
        meta = json.loads(archive["meta"].tobytes())
    assert names == {"meta", *(f"counts/{n}" for n in FEATURES), "values/temp", "values/hour"}
    assert not {"tagged", "sample"} & set(meta)
    decision = decide(Reference.from_bytes(old), draw(0, 7))
    assert decision.verdict is PASS
    assert [item.name for item in decision.evidence if not item.decides] == ["estimate", "rise", "labels"]


def test_a_reference_with_all_of_them_survives_its_bytes(draw: Draw) -> None:
    settings = DriftSettings(calendar={"odd": ("2029-12-11", "2029-12-25")})
    built = build_reference(draw(-30, 30), FEATURES, {}, settings, 0.24)
    read = Reference.from_bytes(built.to_bytes())
    assert read.digest == built.digest
    assert len(read.tagged["odd"]) == 2
    assert len(read.history) == 28
    assert read.sample is not None
    assert built.sample is not None
    assert len(read.sample.block) == 2000
    assert decide(read, draw(0, 7)).digest == decide(built, draw(0, 7)).digest
    shuffled = draw(-30, 30).sample(frac=1, random_state=1)
    assert build_reference(shuffled, FEATURES, {}, settings, 0.24).digest == built.digest
