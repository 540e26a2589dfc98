import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.shadow.judge import judge
from assets.shadow.picture import figure, sparkline
from assets.shadow.settings import ShadowSettings
from assets.verdict import Verdict

START = datetime(2013, 3, 1, tzinfo=UTC)
AS_OF = START + timedelta(days=15)
RULES = ("superiority", "non_inferiority", "expected_gain")


def requests(days: int = 14, a_day: int = 200, skill: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """The challenger knows the truth to the degree `skill`; the champion knows the mean."""
    rng = np.random.default_rng(seed)
    n = days * a_day
    truth = rng.uniform(0.05, 0.75, n)
    times = pd.to_datetime(
        [
            START + timedelta(days=float(day), hours=float(hour))
            for day, hour in zip(np.repeat(np.arange(days), a_day), rng.uniform(0, 24, n), strict=True)
        ],
        utc=True,
    )
    return pd.DataFrame(
        {
            "key": np.arange(n).astype(str),
            "event_time": times,
            "known_at": times + timedelta(hours=2),
            "label": (rng.random(n) < truth).astype(float),
            "champion": np.full(n, 0.4),
            "challenger": np.clip(0.4 + skill * (truth - 0.4), 0, 1),
        }
    )


def settings(**changes: Any) -> ShadowSettings:
    return ShadowSettings.model_validate({"rule": "superiority", "days": 14, **changes})


def finite_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False)


@pytest.mark.parametrize("rule", RULES)
def test_a_challenger_that_knows_more_passes(rule: str) -> None:
    decision = judge("m", requests(), settings(rule=rule), AS_OF, {"champion": "3"})
    assert decision.verdict is Verdict.PASS
    assert [item.name for item in decision.evidence] == ["labels", "gain"]
    assert decision.gate == "shadow"
    assert "retraining pays" in decision.why


@pytest.mark.parametrize("rule", RULES)
def test_a_challenger_that_knows_less_fails(rule: str) -> None:
    decision = judge("m", requests(skill=-1.0), settings(rule=rule), AS_OF, {})
    assert decision.verdict is Verdict.FAIL


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("loss", ["log_loss", "brier"])
def test_an_identical_challenger_decides_nothing(rule: str, loss: str) -> None:
    pairs = requests().assign(challenger=0.4)
    decision = judge("m", pairs, settings(rule=rule, loss=loss), AS_OF, {})
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "nan" not in decision.to_json().decode().lower().replace("nance", "")
    assert "nothing varies" in decision.why


def test_too_few_labels_are_said_before_anything_else() -> None:
    decision = judge("m", requests(a_day=10), settings(), AS_OF, {})
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert [item.name for item in decision.evidence] == ["labels"]
    assert "60 labels and 0 blocks more are needed" in decision.why
    assert "smallest gain that could be found now is" in decision.why


def test_less_than_a_week_of_blocks_decides_nothing() -> None:
    decision = judge("m", requests(days=6), settings(), AS_OF, {})
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "0 labels and 1 blocks more are needed" in decision.why


@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_any_request_is_no_error(rows: int) -> None:
    decision = judge("m", requests()[:rows], settings(), AS_OF, {})
    assert decision.verdict is Verdict.INCONCLUSIVE
    finite_json(decision.to_dict())


def test_an_undecided_gate_says_what_is_missing() -> None:
    decision = judge("m", from_differences(slight_gain(), 100), settings(loss="brier"), AS_OF, {})
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "labels) more would decide" in decision.why
    assert "smallest gain that could be found now is" in decision.why


def test_the_minimum_detectable_gain_is_found_about_four_times_in_five() -> None:
    rng = np.random.default_rng(8)
    days, a_day, found = 14, 100, 0
    runs = 120
    for _ in range(runs):
        d = rng.normal(0, 0.05, days)
        sample = judge("m", from_differences(d + 0.057, a_day), settings(loss="brier"), AS_OF, {})
        found += sample.verdict is Verdict.PASS
    detectable = [
        judge("m", from_differences(rng.normal(0, 0.05, days), a_day), settings(loss="brier"), AS_OF, {}).details[
            "detectable_gain"
        ]
        for _ in range(40)
    ]
    assert np.mean(detectable) == pytest.approx(0.057, rel=0.15)
    assert 0.65 < found / runs < 0.95


def slight_gain() -> Any:
    """Fourteen days, mean .02, spread about .05."""
    return 0.02 + 0.05 * np.cos(np.arange(14) * 2.4)


def from_differences(by_day: Any, a_day: int) -> pd.DataFrame:
    """Requests whose Brier difference is exactly the given one on each day: label 0, champion's square minus d."""
    n = len(by_day) * a_day
    d = np.repeat(by_day, a_day)
    times = pd.to_datetime([START + timedelta(hours=24 * i / a_day) for i in range(n)], utc=True)
    return pd.DataFrame(
        {
            "key": np.arange(n).astype(str),
            "event_time": times,
            "known_at": times,
            "label": 0.0,
            "champion": np.sqrt(0.5),
            "challenger": np.sqrt(np.clip(0.5 - d, 0, 1)),
        }
    )


def test_young_requests_do_not_count_yet() -> None:
    decision = judge("m", requests(), settings(maturity_hours=72), AS_OF, {})
    assert decision.details["counts"]["not_mature"] > 350
    assert decision.details["blocks"] == 12


def test_a_label_from_the_future_is_not_used() -> None:
    pairs = requests()
    pairs.loc[:99, "known_at"] = AS_OF + timedelta(seconds=1)
    decision = judge("m", pairs, settings(), AS_OF, {})
    assert decision.details["counts"]["missing_labels"] == 100
    assert decision.details["counts"]["labels"] == len(pairs) - 100


def test_a_request_seen_twice_counts_once_by_its_last_known_label() -> None:
    pairs = requests()
    corrected = pairs.assign(label=1 - pairs["label"], known_at=pairs["known_at"] + timedelta(hours=1))
    once = judge("m", corrected, settings(), AS_OF, {})
    twice = judge("m", pd.concat([corrected, pairs]), settings(), AS_OF, {})
    assert twice.details["counts"]["duplicates"] == len(pairs)
    assert twice.details["mean_gain"] == once.details["mean_gain"]


def test_order_of_rows_changes_nothing() -> None:
    pairs = requests()
    shuffled = pairs.sample(frac=1, random_state=2)
    assert judge("m", pairs, settings(), AS_OF, {}).to_json() == judge("m", shuffled, settings(), AS_OF, {}).to_json()


def test_labels_missing_for_many_requests_decide_nothing() -> None:
    pairs = requests()
    pairs.loc[pairs.index[::3], "label"] = np.nan
    decision = judge("m", pairs, settings(), AS_OF, {})
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "33%" in decision.why


def test_a_score_that_is_no_number_is_an_error() -> None:
    pairs = requests()
    pairs.loc[5, "challenger"] = np.nan
    decision = judge("m", pairs, settings(), AS_OF, {})
    assert decision.verdict is Verdict.ERROR
    assert "1 of 2800 requests have no score" in decision.why


@pytest.mark.parametrize(
    ("column", "value", "message"), [("label", 2.0, "label = 2.0"), ("champion", 1.5, "score = 1.5")]
)
def test_values_out_of_range_are_named(column: str, value: float, message: str) -> None:
    pairs = requests()
    pairs.loc[7, column] = value
    with pytest.raises(ValueError, match=message):
        judge("m", pairs, settings(), AS_OF, {})


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match="challenger"):
        judge("m", requests().drop(columns="challenger"), settings(), AS_OF, {})


def test_one_confident_mistake_does_not_decide() -> None:
    """A heavy tail: the challenger gains a little everywhere and is once certain and wrong."""
    pairs = requests()
    pairs.loc[0, ["label", "challenger"]] = [1.0, 0.0]
    assert judge("m", pairs, settings(), AS_OF, {}).verdict is Verdict.PASS


def test_betting_is_slower_than_the_confidence_sequence_and_never_the_other_way_round() -> None:
    betting = judge("m", requests(), settings(method="betting"), AS_OF, {})
    assert betting.verdict is Verdict.INCONCLUSIVE
    assert betting.details["log_wealth"] > 0
    sure = from_differences(np.full(60, 0.45) + np.linspace(0, 0.01, 60), 10)
    as_of = START + timedelta(days=62)
    assert judge("m", sure, settings(method="betting", loss="brier"), as_of, {}).verdict is Verdict.PASS


def test_expected_gain_says_yes_where_superiority_waits() -> None:
    pairs = from_differences(slight_gain(), 100)
    careful = judge("m", pairs, settings(loss="brier"), AS_OF, {})
    eager = judge("m", pairs, settings(loss="brier", rule="expected_gain"), AS_OF, {})
    assert careful.verdict is Verdict.INCONCLUSIVE
    assert eager.verdict is Verdict.PASS


def test_a_gain_smaller_than_the_cost_is_no_reason_to_retrain() -> None:
    decision = judge("m", requests(), settings(min_gain=0.5), AS_OF, {})
    assert decision.verdict is Verdict.FAIL


def test_requests_of_one_day_count_for_less_than_independent_ones() -> None:
    rng = np.random.default_rng(9)
    shared = judge("m", from_differences(rng.normal(0.02, 0.1, 14), 100), settings(loss="brier"), AS_OF, {})
    assert shared.details["effective_labels"] < 100


def test_a_block_begins_in_the_quiet_of_night_if_asked() -> None:
    pairs = requests()
    moved = judge("m", pairs, settings(block_offset_hours=5), AS_OF, {})
    assert moved.details["blocks"] == 15
    assert moved.details["path"][0]["block"].hour == 5


def test_the_change_to_summer_time_makes_no_longer_day() -> None:
    pairs = requests()
    pairs["event_time"] = pairs["event_time"].dt.tz_convert("America/New_York")
    assert judge("m", pairs, settings(), AS_OF, {}).details["blocks"] == 14


def test_the_window_is_mature_at_its_end() -> None:
    start, end = settings(days=7, maturity_hours=12).window(AS_OF)
    assert (end, end - start) == (AS_OF - timedelta(hours=12), timedelta(days=7))


def test_a_window_too_short_for_its_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="days = 6 holds 6 blocks of D"):
        settings(days=6)


def test_the_picture_is_small_enough_to_be_shown_inline() -> None:
    details = judge("m", requests(days=60), settings(), START + timedelta(days=62), {}).to_dict()["details"]
    markdown = sparkline(details)
    assert len(markdown) < 1000
    assert base64.b64decode(markdown.split("base64,")[1][:-1]).startswith(b"<svg")
    assert figure(details).startswith(b"\x89PNG")


@pytest.mark.parametrize("rows", [0, 1, 250])
def test_a_picture_of_almost_nothing_is_a_sentence(rows: int) -> None:
    details = judge("m", requests()[:rows], settings(), AS_OF, {}).details
    assert len(sparkline(details)) < 1000
    assert figure(details).startswith(b"\x89PNG")
