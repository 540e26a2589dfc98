"""The drift gate in the stories its users tell."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from assets.decision import Decision, Evidence
from assets.drift.judge import judge
from assets.drift.labels import auc
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings
from assets.verdict import Verdict

Draw = Callable[..., pd.DataFrame]
START = datetime(2030, 1, 1, tzinfo=UTC)
FEATURES = ("temp", "hour", "carrier")
PASS, INCONCLUSIVE, ERROR, FAIL = Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.FAIL


def decide(
    reference: Reference,
    rows: pd.DataFrame,
    first: float = 0,
    last: float = 7,
    previous: Mapping[str, Any] | None = None,
    labelled: pd.DataFrame | None = None,
    **changed: Any,
) -> Decision:
    """Judge days [first, last) of `rows`; its labels too unless others are given."""
    start, end = START + timedelta(days=first), START + timedelta(days=last)
    labels = rows if labelled is None else labelled
    return judge(
        "m", reference, rows, labels, previous, DriftSettings(**changed), start, end, end, {"reference": "r"}
    )  # fmt: skip


def found(decision: Decision, name: str) -> Evidence:
    return next(item for item in decision.evidence if item.name == name)


def verdicts(decision: Decision) -> dict[str, Verdict]:
    return {item.name: item.verdict for item in decision.evidence if item.decides}


def read(decision: Decision) -> dict[str, Any]:
    """Details as the next window gets them: from JSON."""
    details: dict[str, Any] = json.loads(decision.to_json())["details"]
    return details


def test_a_quiet_week_passes_with_four_pieces_of_evidence(reference: Reference, draw: Draw) -> None:
    decision = decide(reference, draw(0, 7))
    assert [item.name for item in decision.evidence if item.decides] == ["inputs", "harm", "schema", "freshness"]
    assert [item.name for item in decision.evidence if not item.decides] == ["estimate", "joint", "rise", "labels"]
    assert decision.verdict is PASS, decision.why
    details = read(decision)
    assert len(details["days"]) == 7
    assert {item["feature"] for item in details["features"]} == {*FEATURES, "answer"}
    assert details["brier"] == pytest.approx(details["harm"]["mean_loss"])
    assert 0.6 < details["auc"] < 1


def test_moved_inputs_fail_and_are_named(reference: Reference, draw: Draw) -> None:
    decision = decide(reference, draw(0, 7, shift=0.8))
    assert found(decision, "inputs").verdict is FAIL
    why = found(decision, "inputs").why
    assert why.startswith("2 of the last 3 days above the alarm level .")
    assert "temp ." in why
    assert "carrier" not in why
    assert found(decision, "harm").verdict is PASS  # benign: the loss did not move


def test_one_odd_day_is_no_alarm(reference: Reference, draw: Draw) -> None:
    rows = pd.concat([draw(0, 3), draw(3, 1, shift=1.5), draw(4, 3)])
    decision = decide(reference, rows)
    assert [day["alarm"] for day in decision.details["days"]].count(True) == 1
    assert found(decision, "inputs").verdict is PASS


def test_concept_drift_without_input_drift_is_harm(reference: Reference, draw: Draw) -> None:
    previous, verdict = None, {}
    for week in range(0, 21, 7):
        decision = decide(reference, draw(week, 7, miss=0.8), week, week + 7, previous)
        previous, verdict = read(decision), verdicts(decision)
        if verdict["harm"] is FAIL:
            break
    assert verdict == {"inputs": PASS, "harm": FAIL, "schema": PASS, "freshness": PASS}
    assert "mean loss" in found(decision, "harm").why
    assert previous is not None
    assert previous["harm"]["alarms"] == 1


@pytest.mark.parametrize("unit", ["block", "request"])
def test_weeks_one_after_another_equal_one_long_call(reference: Reference, draw: Draw, unit: str) -> None:
    rows = pd.concat([draw(0, 9), draw(9, 5, shift=0.9, miss=0.5), draw(14, 7, miss=0.4)])
    long = read(decide(reference, rows, 0, 21, harm_unit=unit))
    previous, days, traces = None, [], []
    for first, last in [(0, 7), (7, 8), (8, 14), (14, 21)]:
        previous = read(decide(reference, rows, first, last, previous, harm_unit=unit))
        days += previous["days"]
        traces += previous["harm"]["days"]
    assert previous is not None
    assert days == long["days"]
    assert traces == long["harm"]["days"]
    for name in ("history", "pending", "hits", "active"):
        assert previous[name] == long[name]
    for name in ("log_r", "sum_w", "n", "labels", "blocks", "alarms", "pooled_sum", "pooled_n", "pooled_w"):
        assert previous["harm"][name] == long["harm"][name]
    assert any(day["active"] for day in days)
    assert {trace["weight"] for trace in traces} == {0.1, 1.0}


def test_the_weight_of_harm_is_fixed_by_the_day_before(reference: Reference, draw: Draw) -> None:
    details = decide(reference, pd.concat([draw(0, 3), draw(3, 4, shift=1.5)])).details
    active = [day["active"] for day in details["days"]]
    assert active == [False] * 4 + [True] * 3
    assert [trace["weight"] for trace in details["harm"]["days"]] == [0.1] * 5 + [1.0] * 2


def test_the_same_inputs_give_the_same_record_in_any_order_of_rows(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    assert decide(reference, rows).digest == decide(reference, rows.sample(frac=1, random_state=3)).digest


def test_eight_rows_are_inconclusive_with_the_number_needed(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7).iloc[::180]
    decision = decide(reference, rows)
    assert len(rows) == 8
    assert verdicts(decision) == dict.fromkeys(("inputs", "harm", "schema"), INCONCLUSIVE) | {"freshness": PASS}
    assert found(decision, "inputs").why == "8 requests of the 200 needed"
    assert "of the 200 needed" in found(decision, "harm").why


def test_no_traffic_is_said_and_never_passes(reference: Reference, draw: Draw) -> None:
    for silence in (draw(0, 1).iloc[:0], pd.DataFrame(), draw(40, 1)):
        decision = decide(reference, silence)
        assert decision.verdict is ERROR
        assert PASS not in verdicts(decision).values()
        assert found(decision, "freshness").why.startswith("NO DATA")
        assert json.loads(decision.to_json())["details"]["rows"] == 0


def test_a_log_that_stopped_is_an_error(reference: Reference, draw: Draw) -> None:
    freshness = found(decide(reference, draw(0, 4)), "freshness")
    assert freshness.verdict is ERROR
    assert freshness.statistic == pytest.approx(72.1, abs=0.1)


def test_a_silent_day_proves_nothing_unless_it_may_be_silent(reference: Reference, draw: Draw) -> None:
    rows = pd.concat([draw(0, 3), draw(4, 3)])
    assert found(decide(reference, rows), "freshness").verdict is INCONCLUSIVE
    assert "1 of 7 days without a request" in found(decide(reference, rows), "freshness").why
    assert found(decide(reference, rows, max_quiet_blocks=1), "freshness").verdict is PASS


def test_columns_that_do_not_fit_are_an_error_and_nothing_is_guessed(reference: Reference, draw: Draw) -> None:
    for broken, words in (
        (draw(0, 7).drop(columns="temp"), "missing: temp"),
        (draw(0, 7).assign(temp="warm"), "temp should be float but holds str ('warm')"),
        (draw(0, 7).assign(temp="1.5"), "temp should be float but holds numbers as strings"),
        (draw(0, 7).assign(carrier=7), "carrier should be string but holds int64"),
    ):
        decision = decide(reference, broken)
        assert found(decision, "schema").verdict is ERROR
        assert words in found(decision, "schema").why
        assert found(decision, "inputs").verdict is INCONCLUSIVE


def test_an_all_null_feature_is_an_error_and_moves_the_inputs(reference: Reference, draw: Draw) -> None:
    for null in (np.nan, None):
        decision = decide(reference, draw(0, 7).assign(temp=null))
        assert found(decision, "schema").verdict is ERROR
        assert "temp" in found(decision, "schema").why
        assert found(decision, "inputs").verdict is FAIL


def test_infinite_and_constant_features_are_judged_without_a_warning(reference: Reference, draw: Draw) -> None:
    with np.errstate(all="raise"):
        infinite = decide(reference, draw(0, 7).assign(temp=np.inf))
        constant = decide(reference, draw(0, 7).assign(temp=0.0))
    assert found(infinite, "inputs").verdict is found(constant, "inputs").verdict is FAIL


def test_a_new_category_fails_the_schema_and_an_extra_column_is_only_said(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    rows.loc[rows.index % 10 == 0, "carrier"] = "ZZ"
    schema = found(decide(reference, rows.assign(extra=1)), "schema")
    assert schema.verdict is FAIL
    assert "carrier .1 (limit .05)" in schema.why
    schema = found(decide(reference, draw(0, 7).assign(extra=1)), "schema")
    assert schema.verdict is PASS
    assert "not used by the model: extra" in schema.why


def test_fields_of_names_may_meet_new_names(draw: Draw) -> None:
    rng = np.random.default_rng(0)

    def named(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(tail=[f"N{n}" for n in rng.zipf(1.3, len(rows)) % 100_000])

    features = {"temp": "float", "tail": "string"}
    reference = build_reference(named(draw(-30, 30)), features, {"temp": 1.0}, DriftSettings(), 0.24)
    schema = found(decide(reference, named(draw(0, 7))), "schema")
    assert schema.statistic is not None
    assert schema.statistic > 0.05
    assert schema.verdict is PASS


def test_warming_up_is_said(draw: Draw) -> None:
    short = build_reference(draw(-10, 10), {"temp": "float"}, {}, DriftSettings(), 0.24)
    inputs = found(decide(short, draw(0, 7)), "inputs")
    assert inputs.verdict is INCONCLUSIVE
    assert inputs.why.startswith("warming up: 16 past days of the 19")
    longer = decide(short, draw(0, 14), 0, 14)
    assert found(longer, "inputs").verdict is PASS


def test_a_history_that_holds_a_drift_recovers_as_it_leaves(draw: Draw) -> None:
    rows = pd.concat([draw(-30, 24), draw(-6, 6, shift=2.0)])
    reference = build_reference(rows, {"temp": "float"}, {}, DriftSettings(history_cap=30), 0.24)
    assert max(reference.history) > 0.3
    levels = [d["threshold"] for d in decide(reference, draw(0, 40), 0, 40, history_cap=30).details["days"]]
    assert levels[0] > 0.3
    assert levels[-1] < 0.3


def test_days_of_few_rows_keep_the_same_alarm_rate(reference: Reference, draw: Draw) -> None:
    decision = decide(reference, draw(0, 100, rows=60, seed=5), 0, 100)  # the reference has 200 a day
    alarms = sum(day["alarm"] for day in decision.details["days"])
    assert alarms <= 12  # 3.2 expected; without the correction for size almost all 100


def test_a_sample_of_the_same_rows_gets_the_same_verdict(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7, rows=20_000)
    for every in (1, 10, 100):  # 200 a day in the last
        assert found(decide(reference, rows.iloc[::every]), "inputs").verdict is PASS
    moved = draw(0, 7, rows=20_000, shift=0.5)
    for every in (1, 10, 100):
        assert found(decide(reference, moved.iloc[::every]), "inputs").verdict is FAIL


def test_a_trivial_shift_of_many_rows_is_no_alarm(reference: Reference, draw: Draw) -> None:
    decision = decide(reference, draw(0, 3, rows=100_000, shift=0.02), 0, 3)
    assert found(decision, "inputs").verdict is PASS


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


def test_only_the_past_of_the_same_reference_is_carried(reference: Reference, draw: Draw) -> None:
    first = read(decide(reference, draw(0, 7)))
    other = build_reference(draw(-30, 30, seed=8), reference.features, {}, DriftSettings(), 0.24)
    assert decide(other, draw(7, 7), 7, 14, first).details["harm"]["blocks"] == 7
    assert decide(reference, draw(7, 7), 7, 14, first).details["harm"]["blocks"] == 14
    assert decide(reference, draw(7, 7), 7, 14, first, harm_unit="request").details["harm"]["blocks"] == 7


def test_a_decision_is_not_carried_into_its_own_window(reference: Reference, draw: Draw) -> None:
    first = read(decide(reference, draw(0, 7)))
    with pytest.raises(ValueError, match="count twice"):
        decide(reference, draw(0, 7), previous=first)
    with pytest.raises(ValueError, match="is empty"):
        decide(reference, draw(0, 7), 7, 7)


def test_a_change_of_the_clock_makes_no_gap(reference: Reference, draw: Draw) -> None:
    zone = ZoneInfo("America/New_York")
    start, end = datetime(2030, 3, 8, tzinfo=zone), datetime(2030, 3, 12, tzinfo=zone)  # 23 h on the 10th
    rows = draw(66, 5)
    rows["event_time"] = rows["event_time"].dt.tz_convert(zone)
    decision = judge("m", reference, rows, rows, None, DriftSettings(), start, end, end, {})
    assert found(decision, "freshness").verdict is PASS
    assert [day["rows"] for day in decision.details["days"]][:3] == [200, 200, 200]
    assert sum(day["rows"] for day in decision.details["days"]) == decision.details["rows"]


def test_a_window_shorter_than_its_block_says_so(reference: Reference, draw: Draw) -> None:
    inputs = found(decide(reference, draw(0, 1, rows=5000), 0, 0.5), "inputs")
    assert inputs.verdict is INCONCLUSIVE
    assert "set drift.block to the cadence" in inputs.why


def test_times_without_a_zone_are_utc(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    naive = rows.assign(event_time=rows["event_time"].dt.tz_localize(None))
    assert decide(reference, naive).details["days"] == decide(reference, rows).details["days"]


def test_auc_equals_sklearn() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    label, answer = rng.integers(0, 2, 500).astype(float), rng.uniform(size=500).round(2)
    assert auc(label, answer) == pytest.approx(roc_auc_score(label, answer), abs=1e-12)
    assert auc(np.ones(3), np.ones(3)) is None
