"""The guard of the business outcome: what counts, how often it is wrong, and what it finds."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binomtest

from assets.canary.evidence import evidence, safe
from assets.canary.guards import Guards, last, trace
from assets.canary.looks import Look
from assets.canary.outcomes import Known, Span, extended, fresh, known, together
from assets.canary.settings import CanarySettings, OutcomeSettings
from assets.decision import Evidence
from assets.verdict import Verdict

AT = datetime(2026, 1, 1, tzinfo=UTC)
POOLS = ("green", "blue")
LOSSES = OutcomeSettings(event="label_1")
SALES = OutcomeSettings(event="label_1", harm="fewer")


def at(seconds: float) -> pd.Timestamp:
    return pd.Timestamp(AT + timedelta(seconds=seconds))


def span(share: float, start: float, end: float) -> Span:
    return Span(share, at(start).to_pydatetime(), at(end).to_pydatetime())


def log(*rows: tuple[str, float, str, str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Access and answers of requests: key, second, pool, unit, answer."""
    frame = pd.DataFrame(rows, columns=["key", "at", "pool", "unit", "answer"])
    frame = frame.assign(request_id=[f"r{n}" for n in range(len(frame))], row=0)
    frame["seen_at"] = frame["event_time"] = pd.to_datetime([at(second) for second in frame["at"]], utc=True)
    return (
        frame[["request_id", "pool", "unit", "seen_at", "event_time"]],
        frame[["request_id", "row", "key", "answer"]],
    )


def labels(*rows: tuple[str, float, float]) -> pd.DataFrame:
    """Labels of keys, and the second in which each became known."""
    frame = pd.DataFrame(rows, columns=["key", "label", "known_at"])
    return frame.assign(known_at=pd.to_datetime([at(second) for second in frame["known_at"]], utc=True))


def found(guards: Guards, asked: OutcomeSettings) -> Evidence:
    items = evidence(guards, CanarySettings(outcome=asked))
    return {item.name: item for item in items}["business"]


def told(*outcomes: Known) -> Guards:
    return Guards().update(Look(0.5, 10, 0, 0, 10, 0, 0, 1.0, outcomes=outcomes))


def test_a_request_counts_at_the_share_it_was_assigned_with_and_only_once_its_label_is_known() -> None:
    access, answers = log(
        ("a", 1, "green", "", 0.9),
        ("b", 2, "blue", "", 0.9),
        ("c", 11, "green", "", 0.2),
        ("d", 12, "blue", "", 0.2),
        ("e", 13, "blue", "", 0.2),
        ("f", 25, "green", "", 0.9),
    )
    spans = (span(0.1, 0, 5), span(0.5, 10, 20))
    late = labels(("a", 1, 30), ("b", 0, 30), ("c", 1, 30), ("d", 1, 30), ("f", 1, 30))
    assert known(access, answers, late, spans, POOLS, LOSSES) == (Known(0.1, 1, 1, 1, 0), Known(0.5, 1, 1, 1, 1))
    none = known(access, answers, late[:0], spans, POOLS, LOSSES)
    assert none == (Known(0.1, 0, 0, 0, 0), Known(0.5, 0, 0, 0, 0))


def test_requests_without_a_share_that_compares_count_nowhere() -> None:
    access, answers = log(("a", 1, "green", "", 0.9), ("b", 7, "green", "", 0.9), ("c", 40, "green", "", 0.9))
    spans = (span(0.1, 5, 9), span(0.5, 10, 20))
    everything = labels(("a", 1, 50), ("b", 1, 50), ("c", 1, 50))
    assert known(access, answers, everything, spans, POOLS, LOSSES) == (Known(0.1, 1, 1, 0, 0), Known(0.5, 0, 0, 0, 0))


def test_a_key_counts_at_its_first_request_and_a_label_from_before_it_is_no_outcome() -> None:
    access, answers = log(
        ("a", 1, "green", "", 0.9), ("a", 2, "blue", "", 0.9), ("a", 3, "green", "", 0.9), ("b", 4, "green", "", 0.9)
    )
    told = labels(("a", 1, 5), ("b", 1, 3))
    assert known(access, answers, told, (span(0.5, 0, 9),), POOLS, LOSSES) == (Known(0.5, 1, 1, 0, 0),)


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        (OutcomeSettings(event="label_1"), (1, 1)),
        (OutcomeSettings(event="label_0"), (1, 0)),
        (OutcomeSettings(event="wrong"), (1, 1)),
        (OutcomeSettings(event="wrong", wrong_by=0.85), (0, 1)),
    ],
)
def test_the_event_is_a_label_or_an_answer_that_is_far_from_it(asked: OutcomeSettings, events: tuple[int, int]) -> None:
    access, answers = log(("a", 1, "green", "", 0.9), ("b", 2, "green", "", 0.8), ("c", 3, "blue", "", 0.1))
    everything = labels(("a", 1, 5), ("b", 0, 5), ("c", 1, 5))
    (part,) = known(access, answers, everything, (span(0.5, 0, 9),), POOLS, asked)
    assert (part.canary, part.baseline) == (2, 1)
    assert (part.canary_events, part.baseline_events) == events


def test_of_a_user_the_event_that_is_known_first_stands_for_all() -> None:
    access, answers = log(
        ("a", 1, "green", "u", 0.9), ("b", 2, "green", "u", 0.9), ("c", 3, "green", "", 0.9), ("d", 4, "green", "", 0.9)
    )
    spans = (span(0.1, 0, 1.5), span(0.5, 1.5, 9))
    early = labels(("b", 1, 5), ("c", 1, 5), ("d", 1, 5))
    once = known(access, answers, early, spans, POOLS, LOSSES)
    assert once == (Known(0.1, 0, 0, 0, 0), Known(0.5, 3, 3, 0, 0))
    more = pd.concat([early, labels(("a", 1, 8))])
    assert known(access, answers, more, spans, POOLS, LOSSES) == (Known(0.1, 1, 0, 0, 0), Known(0.5, 3, 3, 0, 0))


def test_a_span_that_goes_on_grows_and_a_gap_begins_another() -> None:
    spans = extended(extended((), span(0.1, 0, 1)), span(0.1, 1, 2))
    assert spans == (span(0.1, 0, 2),)
    assert extended(spans, span(0.1, 3, 4)) == (span(0.1, 0, 2), span(0.1, 3, 4))
    assert extended(spans, span(0.5, 2, 3)) == (span(0.1, 0, 2), span(0.5, 2, 3))


counts = st.integers(0, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
parts = st.builds(lambda s, c, b: Known(s, *c, *b), st.sampled_from([0.1, 0.25, 0.5]), counts, counts)


@settings(deadline=None, max_examples=60)
@given(st.lists(parts, max_size=8), st.integers(0, 8))
def test_what_was_counted_and_what_is_fresh_are_all_that_is_known(told: list[Known], cut: int) -> None:
    before, everything = together(told[:cut]), together(told)
    both = {part.share: part for part in together((*before, *fresh(everything, before)))}
    for part in everything:
        if part.canary or part.baseline:
            assert both[part.share] == part
    assert fresh(everything, everything) == ()


def test_the_guard_names_that_it_had_no_outcome_and_holds_nothing_back_unless_asked_to() -> None:
    for required in (False, True):
        item = found(Guards().update(Look(0.5, 2000, 0, 0, 2000, 0, 0, 1.0)), replaced(LOSSES, required=required))
        assert item.verdict is Verdict.INCONCLUSIVE
        assert item.decides is required
        assert "of none of 4000 requests the outcome is known" in item.why
    seen = Guards().update(Look(0.5, 2000, 0, 0, 2000, 0, 0, 1.0))
    assert safe(seen, CanarySettings(outcome=LOSSES))
    assert not safe(seen, CanarySettings(outcome=replaced(LOSSES, required=True)))
    assert "asks for none" in found(seen, OutcomeSettings()).why


def replaced(asked: OutcomeSettings, **changes: Any) -> OutcomeSettings:
    return OutcomeSettings.model_validate(asked.model_dump() | changes)


def test_harm_is_more_losses_or_fewer_sales() -> None:
    more, fewer = Known(0.5, 1000, 200, 1000, 100), Known(0.5, 1000, 100, 1000, 200)
    assert found(told(more), LOSSES).verdict is Verdict.FAIL
    assert found(told(fewer), LOSSES).verdict is not Verdict.FAIL
    assert found(told(fewer), SALES).verdict is Verdict.FAIL
    assert found(told(more), SALES).verdict is not Verdict.FAIL


@pytest.mark.parametrize("asked", [LOSSES, SALES])
def test_equal_outcomes_are_proven_no_worse_and_then_a_required_proof_lets_pass(asked: OutcomeSettings) -> None:
    guards = told(Known(0.5, 9000, 3000, 9000, 3000)).update(Look(0.5, 2000, 0, 0, 2000, 0, 0, 1.0))
    item = found(guards, asked)
    assert (item.verdict, item.decides) == (Verdict.PASS, True), item.why
    assert safe(guards, CanarySettings(outcome=replaced(asked, required=True)))


def test_outcomes_survive_json_and_merging_of_looks() -> None:
    guards = Guards.begin(CanarySettings())
    for number in range(400):
        part = Known((0.1, 0.5)[number % 2], 4, number % 3, 5, number % 2)
        guards = guards.update(Look(0.5, 10, 0, 0, 10, 0, 0, 1.0, outcomes=(part,)))
    assert sum(part.canary for part in guards.outcomes) == 1600
    again = Guards.from_dict(json.loads(json.dumps(guards.to_dict(), allow_nan=False)))
    assert again == guards
    sums = Guards(tuple(guards.by_share().values()))
    asked = CanarySettings(outcome=LOSSES)
    assert last(sums, asked)["business"] == pytest.approx(last(guards, asked)["business"])


def test_a_look_of_before_has_no_outcomes() -> None:
    kept = {"looks": [[0.5, 10, 0, 0, 10, 0, 0, 1.0, 0.1, None]]}
    assert Guards.from_dict(kept).outcomes == ()


def drifting(rng: np.random.Generator, ratio: float, asked: OutcomeSettings, looks: int = 60) -> int | None:
    """Challenger requests with a known outcome until the guard fires; None when it does not.

    A ramp from 5 to 50 % while the rate of events doubles; labels come up to 20 looks late, in any order.
    """
    settings = CanarySettings(outcome=asked)
    waiting: list[list[Known]] = [[] for _ in range(looks + 20)]
    for number in range(looks):
        share = (0.05, 0.1, 0.25, 0.5)[number * 4 // looks]
        rate = 0.05 * (1 + number / looks)
        mine = rng.binomial(200, share)
        for canary, requests, chance in ((True, mine, rate * ratio), (False, 200 - mine, rate)):
            due = rng.integers(0, 20, requests)
            bad = rng.random(requests) < chance
            for late, (n, k) in enumerate(
                zip(*(np.bincount(due[which], minlength=20).tolist() for which in (due >= 0, bad)), strict=True)
            ):
                if n:
                    waiting[number + late].append(Known(share, n, k, 0, 0) if canary else Known(share, 0, 0, n, k))
    guards = Guards(tuple(Look(0.5, 0, 0, 0, 0, 0, 0, 1.0, outcomes=together(arrived)) for arrived in waiting))
    # At every look, for the guard looks at each.
    fired = np.flatnonzero(trace(guards, settings)["business"] >= np.log(1 / asked.alpha))
    if not len(fired):
        return None
    return sum(part.canary for look in guards.looks[: fired[0] + 1] for part in look.outcomes)


@pytest.mark.parametrize("asked", [LOSSES, SALES])
def test_equal_challengers_are_rolled_back_no_more_often_than_allowed(asked: OutcomeSettings) -> None:
    """However late the labels, whatever the ramp, while the base rate doubles; a look at every arrival."""
    rng, runs = np.random.default_rng(21), 200
    fired = sum(drifting(rng, 1.0, asked) is not None for _ in range(runs))
    assert binomtest(fired, runs, asked.alpha, "greater").pvalue > 1e-3


def test_all_guards_together_roll_back_at_most_one_of_twenty_equal_challengers() -> None:
    rng, settings, runs, fired = np.random.default_rng(22), CanarySettings(outcome=LOSSES), 200, 0
    for _ in range(runs):
        guards = Guards.begin(settings)
        for number in range(40):
            share = (0.05, 0.1, 0.25, 0.5)[number // 10]
            arms = [int(rng.binomial(200, share))]
            arms.append(200 - arms[0])
            errors, slow, bad = ([int(rng.binomial(n, rate)) for n in arms] for rate in (0.01, 0.02, 0.1))
            part = Known(share, arms[0], bad[0], arms[1], bad[1])
            guards = guards.update(
                Look(share, arms[0], errors[0], slow[0], arms[1], errors[1], slow[1], 1.0, outcomes=(part,))
            )
            if any(item.verdict is Verdict.FAIL for item in evidence(guards, settings, forecast=False)):
                fired += 1
                break
    assert binomtest(fired, runs, 0.05, "greater").pvalue > 1e-3


def test_twice_the_losses_are_found_within_four_hundred_challenger_requests_on_average() -> None:
    rng = np.random.default_rng(23)
    requests = [drifting(rng, 2.0, LOSSES) for _ in range(40)]
    assert all(requests), requests
    assert np.mean([n for n in requests if n]) < 400


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValidationError, match="name the event"):
        OutcomeSettings(required=True)
    with pytest.raises(ValidationError, match="favoured requests have a share of their own"):
        CanarySettings.model_validate({"outcome": {"event": "wrong"}, "coverage": {"cells": 9, "need_percent": 40}})
    with pytest.raises(ValueError, match="events are among the requests"):
        Known(0.5, 1, 2, 0, 0)
    assert replace(Known(0.5, 2, 1, 0, 0), canary_events=2).canary_events == 2
