"""Out of memory, taken away, or wrong: told apart by what is known, and only the second is tried again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.retrain.ending import NO_MEMORY, RESTARTS, TAKEN_AWAY, Cause, Ending, cause_of, explained


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        # The pod, as Kubernetes tells it.
        ({"code": 137, "reason": "OOMKilled"}, Cause.OOM),
        ({"reason": "Evicted"}, Cause.PREEMPTED),
        ({"code": 137, "reason": "PreemptionByScheduler"}, Cause.PREEMPTED),
        ({"code": 143, "reason": "Preempting"}, Cause.PREEMPTED),
        ({"code": 1, "reason": "Error"}, Cause.BUG),
        ({"code": 137, "reason": "Error"}, Cause.PREEMPTED),
        # The child, as Python's subprocess and a shell tell it.
        ({"code": -9, "oom_kills": 1}, Cause.OOM),
        ({"code": 137, "oom_kills": 1}, Cause.OOM),
        ({"code": -9}, Cause.PREEMPTED),
        ({"code": -15}, Cause.PREEMPTED),
        ({"code": -11, "said": "Segmentation fault"}, Cause.BUG),
        ({"code": -6, "said": "terminate called after throwing an instance of 'std::bad_alloc'"}, Cause.OOM),
        ({"code": -6, "said": "Assertion failed"}, Cause.BUG),
        ({"code": 1, "error": "MemoryError: Unable to allocate 8.00 GiB for an array"}, Cause.OOM),
        ({"code": 1, "error": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"}, Cause.OOM),
        ({"code": 1, "error": "KeyError: 'temp'"}, Cause.BUG),
        # Another process of the container was ended for want of memory; this one failed by itself.
        ({"code": 1, "error": "KeyError: 'temp'", "oom_kills": 1}, Cause.BUG),
        ({}, Cause.BUG),
    ],
)
def test_the_cause_is_found_from_what_is_known(known: dict[str, Any], cause: Cause) -> None:
    assert cause_of(Ending(**known)) is cause


ENDINGS = st.builds(
    Ending,
    code=st.none() | st.integers(-64, 255),
    reason=st.sampled_from(["", "Error", "OOMKilled", "Completed", *sorted(TAKEN_AWAY)]),
    error=st.sampled_from(["", "ValueError: x", *NO_MEMORY]),
    said=st.text(max_size=20),
    oom_kills=st.integers(0, 3),
)


@given(ENDINGS)
def test_every_ending_has_one_cause_and_only_what_was_taken_away_is_started_again(ending: Ending) -> None:
    cause = cause_of(ending)
    assert RESTARTS[cause] == (1 if cause is Cause.PREEMPTED else 0)
    assert explained(ending, 4)


@given(ENDINGS)
def test_what_the_cluster_calls_out_of_memory_is_never_tried_again(ending: Ending) -> None:
    assert RESTARTS[cause_of(Ending(ending.code, "OOMKilled", ending.error, ending.said))] == 0


def test_out_of_memory_says_what_was_asked_for_and_where_to_ask_for_more() -> None:
    said = explained(Ending(code=1, error="MemoryError: "), memory_gib=0.5)
    assert "0.5 GiB of resources.retrain.memory_gib" in said
    assert "not tried again" in said


def test_a_fit_that_was_taken_away_twice_is_told_from_one_that_starts_again() -> None:
    ending = Ending(code=-9)
    assert "started again, once" in explained(ending, 4, again=True)
    assert "a second time (by signal 9)" in explained(ending, 4, again=False)
