"""What becomes of every request: failed, unlabelled, labelled late, twice, or anew."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.shadow.judge import judge
from assets.shadow.missing import compare
from assets.shadow.settings import ShadowSettings
from assets.verdict import Verdict

START = datetime(2013, 3, 1, tzinfo=UTC)
AS_OF = START + timedelta(days=15)
DAYS, A_DAY = 14, 200


def requests(seed: int = 0) -> pd.DataFrame:
    """The challenger knows the truth, the champion the half of it."""
    rng = np.random.default_rng(seed)
    n = DAYS * A_DAY
    truth = rng.uniform(0.05, 0.75, n)
    times = pd.to_datetime([START + timedelta(hours=24 * i / A_DAY) for i in range(n)], utc=True)
    return pd.DataFrame(
        {
            "key": np.arange(n).astype(str),
            "event_time": times,
            "known_at": times + timedelta(hours=2),
            "label": (rng.random(n) < truth).astype(float),
            "champion": 0.4 + 0.5 * (truth - 0.4),
            "challenger": truth,
            "failed": False,
        }
    )


def decided(pairs: pd.DataFrame, **changes: Any) -> Any:
    return judge("m", pairs, ShadowSettings.model_validate(changes), AS_OF, {})


def nameless(pairs: pd.DataFrame, rows: int) -> pd.DataFrame:
    """The same requests, the first of each day failed: no key of the client, no label, no score."""
    failed = pairs.copy()
    at = failed.index[np.arange(len(pairs)) % A_DAY < rows // DAYS]
    failed.loc[at, ["label", "champion", "challenger"]] = np.nan
    failed.loc[at, "known_at"] = pd.NaT
    failed.loc[at, "failed"] = True
    return failed


def test_a_failed_request_is_an_outcome_that_gains_nothing() -> None:
    whole, half = decided(requests()), decided(nameless(requests(), DAYS * A_DAY // 2))
    assert half.details["counts"]["failed"] == DAYS * A_DAY // 2
    assert half.details["counts"]["labels"] == DAYS * A_DAY // 2
    assert half.details["counts"]["missing_labels"] == 0
    assert half.details["mean_gain"] == pytest.approx(whole.details["mean_gain"] / 2, rel=0.3)
    assert f"{DAYS * A_DAY // 2} requests failed" in half.evidence[0].why
    assert half.details["failed_loss"] == pytest.approx(-np.log(0.01))


def test_a_champion_that_fails_where_the_challenger_answers_is_charged_for_it() -> None:
    pairs = requests()
    pairs.loc[pairs.index[::10], "failed"] = True
    pairs.loc[pairs.index[::10], "champion"] = np.nan
    dear = decided(pairs, failed_loss=50.0)
    cheap = decided(pairs, failed_loss=1.0)
    assert dear.details["mean_gain"] - cheap.details["mean_gain"] == pytest.approx(49 / 10)


def test_a_challenger_that_answers_an_unlabelled_failure_is_not_praised_for_it() -> None:
    pairs = nameless(requests(), 140)
    answered = pairs.assign(challenger=pairs["challenger"].fillna(0.5))
    assert decided(answered).details["mean_gain"] == decided(pairs).details["mean_gain"]


def test_a_regression_without_a_price_of_failure_still_counts_them() -> None:
    decision = decided(nameless(requests(), 140), task="regression", loss="squared")
    assert decision.details["counts"]["failed"] == 140
    assert decision.details["failed_loss"] is None or np.isnan(decision.details["failed_loss"])
    assert "NaN" not in decision.to_json().decode()


def test_labels_that_came_after_maturity_are_counted() -> None:
    pairs = requests()
    pairs.loc[pairs.index[:300], "known_at"] += timedelta(hours=48)
    decision = decided(pairs)
    assert decision.details["counts"]["late_labels"] == 300
    assert decision.details["counts"]["labels"] == len(pairs)


def test_labels_that_were_corrected_or_repeated_are_counted() -> None:
    pairs = requests().assign(reports=1, corrected=False)
    pairs.loc[pairs.index[:7], "reports"] = 3
    pairs.loc[pairs.index[:2], "corrected"] = True
    counts = decided(pairs).details["counts"]
    assert (counts["repeated_labels"], counts["corrected_labels"]) == (14, 2)


def test_rows_of_one_key_that_disagree_are_a_correction_and_the_later_one_counts() -> None:
    pairs = requests()
    later = pairs[:5].assign(label=1 - pairs["label"][:5], known_at=pairs["known_at"][:5] + timedelta(hours=1))
    counts = decided(pd.concat([later, pairs])).details["counts"]
    assert (counts["duplicates"], counts["corrected_labels"], counts["labels"]) == (5, 5, len(pairs))


def test_labels_missing_by_chance_are_counted_and_raise_no_warning() -> None:
    pairs = requests()
    gone = np.random.default_rng(1).random(len(pairs)) < 0.1
    pairs.loc[gone, "label"] = np.nan
    decision = decided(pairs)
    assert decision.details["counts"]["missing_labels"] == gone.sum()
    assert decision.details["missing"]["apart"] is False
    assert "warning" not in decision.why


def test_labels_missing_by_what_was_answered_are_warned_of() -> None:
    """Only the sure ones stay without a label: the labelled no longer speak for them."""
    pairs = requests()
    gone = pairs["champion"] > pairs["champion"].quantile(0.9)
    pairs.loc[gone, "label"] = np.nan
    decision = decided(pairs)
    assert decision.verdict is Verdict.PASS
    assert decision.details["missing"]["apart"] is True
    assert "warning: labels are not missing at random" in decision.why
    assert "not missing at random" in decision.evidence[0].why


def test_few_requests_without_a_label_tell_nothing() -> None:
    assert compare(np.linspace(0, 1, 1000), np.ones(29)) is None


def test_chance_alone_seldom_looks_like_missing_not_at_random() -> None:
    rng = np.random.default_rng(3)
    warned = sum(found.apart for _ in range(400) if (found := compare(rng.random(2000), rng.random(300))) is not None)
    assert warned <= 4  # .1 % of 400


def test_rows_of_one_instant_add_up_alike_in_any_order() -> None:
    pairs = requests()
    pairs["event_time"] = pairs["event_time"].dt.floor("6h")
    shuffled = pairs.sample(frac=1, random_state=5)
    assert decided(pairs).to_json() == decided(shuffled).to_json()
