"""What an agent does next, for every situation it can meet."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reconcile import (
    Confirm,
    Install,
    Loaded,
    Reload,
    Remove,
    pause_s,
    plan,
)
from resources.errors import ModelNotReady, PackageRefused
from resources.pools import Assignment
from resources.probe import largest_difference, probe_request

OLD, NEW = Assignment(1, "k1", "old"), Assignment(2, "k2", "new")
SERVED = Loaded(1, "old", ready=True)
LOST = Loaded(1, "old", ready=False)
UNTRUSTED = Loaded(0, "", ready=True)


@pytest.mark.parametrize(
    ("situation", "desired", "loaded", "reported", "steps"),
    [
        ("nothing to do", {"m": OLD}, {"m": SERVED}, {"m": "old"}, []),
        ("a first version", {"m": OLD}, {}, {}, [Install("m", OLD)]),
        ("another version", {"m": NEW}, {"m": SERVED}, {"m": "old"}, [Install("m", NEW)]),
        ("Triton restarted", {"m": OLD}, {"m": LOST}, {"m": "old"}, [Reload("m")]),
        ("restarted amid a change", {"m": NEW}, {"m": LOST}, {"m": "old"}, [Reload("m"), Install("m", NEW)]),
        ("cleared", {}, {"m": SERVED}, {"m": "old"}, [Remove("m")]),
        ("cleared and lost", {}, {"m": LOST}, {}, [Remove("m")]),
        ("the agent is new", {"m": OLD}, {"m": SERVED}, {}, [Confirm("m")]),
        ("back to what serves", {"m": OLD}, {"m": SERVED}, {"m": "new"}, [Confirm("m")]),
        ("loaded by somebody else", {"m": OLD}, {"m": UNTRUSTED}, {}, [Install("m", OLD)]),
        ("the store never answered", None, {"m": LOST, "n": SERVED}, {}, [Reload("m"), Confirm("n")]),
        ("the store never answered, untrusted", None, {"m": UNTRUSTED}, {}, []),
        (
            "serving comes back before changes, changes before removals",
            {"b": NEW, "c": OLD},
            {"a": SERVED, "b": SERVED, "c": LOST},
            {"a": "old", "b": "old"},
            [Reload("c"), Install("b", NEW), Remove("a")],
        ),
    ],
)
def test_each_situation_has_its_steps(
    situation: str, desired: dict[str, Assignment] | None, loaded: dict[str, Loaded], reported: Any, steps: list[Any]
) -> None:
    assert plan(desired, loaded, reported) == steps, situation


ASSIGNMENTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from([OLD, NEW]))
LOADED = st.dictionaries(st.sampled_from("abc"), st.sampled_from([SERVED, LOST, UNTRUSTED, Loaded(2, "new", True)]))


@given(ASSIGNMENTS, LOADED, st.sets(st.sampled_from("abc")))
def test_resting_models_are_left_alone(desired: Any, loaded: Any, resting: set[str]) -> None:
    assert not {step.model for step in plan(desired, loaded, {}, resting)} & resting


@given(ASSIGNMENTS, LOADED)
def test_what_is_desired_is_never_removed_and_one_pass_of_good_steps_settles_everything(
    desired: Any, loaded: Any
) -> None:
    after, reported = dict(loaded), {}
    for step in plan(desired, loaded, {}):
        match step:
            case Remove(model):
                assert model not in desired
                del after[model]
            case Install(model, assignment):
                after[model] = Loaded(assignment.version, assignment.digest, ready=True)
                reported[model] = assignment.digest
            case Reload(model) | Confirm(model):
                after[model] = Loaded(after[model].version, after[model].digest, ready=True)
                reported[model] = after[model].digest
    assert {model: state.digest for model, state in after.items()} == {m: a.digest for m, a in desired.items()}
    assert plan(desired, after, reported) == []


def test_pauses_grow_to_a_minute() -> None:
    assert [pause_s(failures) for failures in (1, 2, 3, 6, 500)] == [2, 4, 8, 60, 60]


PROBE = {
    "inputs": {"x": {"datatype": "FP32", "shape": [2, 1], "data": [1.0, 2.0]}},
    "outputs": {"y": {"datatype": "FP32", "shape": [2, 1], "data": [0.25, 0.5]}},
    "tolerance": 1e-3,
}


def answer(data: list[Any], version: str = "7", name: str = "y", shape: tuple[int, int] = (2, 1)) -> dict[str, Any]:
    return {"model_version": version, "outputs": [{"name": name, "shape": list(shape), "data": data}]}


def test_a_probe_becomes_an_inference_request() -> None:
    assert probe_request(PROBE) == {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1.0, 2.0]}]}


@pytest.mark.parametrize(
    "change", [{"outputs": {}}, {"inputs": {}}, {"outputs": {"y": {"shape": [0, 1], "data": []}}}, {"tolerance": None}]
)
def test_a_probe_that_proves_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PackageRefused, match=r"probe\.json"):
        probe_request(PROBE | change)


def test_answers_within_the_tolerance_pass_with_their_largest_difference() -> None:
    assert largest_difference(PROBE, answer([0.25, 0.5005]), 7) == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("given_answer", "told"),
    [
        (answer([0.25, 0.6]), "differ from ONNX Runtime's by 0.1"),
        (answer([0.25, math.nan]), "differ from ONNX Runtime's by inf"),
        (answer([0.25, 0.5], version="6"), "version 6 answered in place of 7"),
        (answer([0.25, 0.5], name="z"), "output 'y' is missing"),
        (answer([0.25], shape=(1, 1)), "has shape"),
    ],
)
def test_any_other_answer_is_named(given_answer: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelNotReady, match=told):
        largest_difference(PROBE, given_answer, 7)


def test_an_expected_nan_must_be_answered_with_nan() -> None:
    probe = PROBE | {"outputs": {"y": {"datatype": "FP32", "shape": [2, 1], "data": [0.25, math.nan]}}}
    assert largest_difference(probe, answer([0.25, math.nan]), 7) == 0
