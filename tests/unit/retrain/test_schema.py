"""Clients of the champion reach the candidate, or somebody accepted by name that they do not."""

import numpy as np
import pytest

from assets.decision import Decision
from assets.retrain.gates import judge
from assets.retrain.schema import SchemaChange, schema_change
from assets.retrain.settings import TrainingSettings
from assets.verdict import Verdict

from .test_gates import AS_OF, holdout, verdicts

CHAMPION = {"carrier": "string", "hour": "int", "temp": "float"}


def decide(change: SchemaChange | None, *, champion: bool = True) -> Decision:
    frame, chance = holdout()
    return judge(
        "flights", frame, "late", chance, chance if champion else None, TrainingSettings(), 1e-7, AS_OF, {}, change
    )


def test_the_same_inputs_in_another_order_are_no_change() -> None:
    change = schema_change(CHAMPION, dict(reversed(CHAMPION.items())))
    assert change.names == ()
    assert decide(change).verdict is Verdict.PASS
    assert "schema" not in decide(change).details


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ({**CHAMPION, "wind": "float"}, "asks for wind"),
        ({"carrier": "string", "hour": "int"}, "no longer takes temp"),
        ({**CHAMPION, "hour": "float"}, "takes in another type hour"),
    ],
)
def test_other_inputs_than_the_champions_fail_until_they_are_accepted(candidate: dict[str, str], said: str) -> None:
    decision = decide(schema_change(CHAMPION, candidate))
    assert verdicts(decision) == {"schema": Verdict.FAIL}
    assert said in decision.why
    assert "training.accept_schema or by the run tag trimtab/accept_schema" in decision.why


def test_a_change_accepted_by_name_passes_and_the_record_says_who_accepted_what() -> None:
    candidate = {"carrier": "string", "hour": "int", "wind": "float"}
    change = schema_change(CHAMPION, candidate, accepted=["temp"], tag="wind, ")
    assert not change.comparable
    decision = decide(change, champion=False)
    assert decision.verdict is Verdict.PASS
    found = {item.name: item.why for item in decision.evidence}
    assert "accepted by run tag trimtab/accept_schema and training.accept_schema" in found["schema"]
    assert "cannot answer these rows" in found["champion"]
    assert decision.to_dict()["details"]["schema"] == {
        "added": ["wind"],
        "removed": ["temp"],
        "retyped": [],
        "accepted": ["wind", "temp"],
        "by": "run tag trimtab/accept_schema and training.accept_schema",
    }


def test_accepting_one_change_accepts_no_other() -> None:
    change = schema_change(CHAMPION, {**CHAMPION, "wind": "float", "rain": "float"}, tag="wind")
    assert change.open == ("rain",)
    assert verdicts(decide(change))["schema"] is Verdict.FAIL


def test_an_input_more_leaves_the_champion_comparable() -> None:
    change = schema_change(CHAMPION, {**CHAMPION, "wind": "float"}, accepted=["wind"])
    assert change.comparable
    assert verdicts(decide(change)) == dict.fromkeys(
        ("schema", "floor", "champion", "slices", "calibration", "parity"), Verdict.PASS
    )


def test_without_a_champion_any_inputs_will_do() -> None:
    assert decide(None, champion=False).verdict is Verdict.PASS


def test_answers_that_are_no_probabilities_fail_before_inputs_are_looked_at() -> None:
    frame, chance = holdout()
    change = schema_change(CHAMPION, {"wind": "float"})
    decision = judge("m", frame, "late", chance + 1, None, TrainingSettings(), 0, AS_OF, {}, change)
    assert "no probabilities" in decision.why
    assert np.all(chance <= 1)
