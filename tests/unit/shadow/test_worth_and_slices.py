"""A yes has to be worth its price, and nobody may pay for it alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.decision import Decision
from assets.shadow.confidence import returning, running
from assets.shadow.judge import judge
from assets.shadow.settings import ShadowSettings
from assets.verdict import Verdict

START = datetime(2013, 3, 1, tzinfo=UTC)
AS_OF = START + timedelta(days=15)
DAYS, A_DAY = 14, 300
PRICES = {"loss_cost": 2.0, "loop_cost": 40.0, "risk_cost": 100.0, "risk_chance": 0.1, "horizon_days": 28}


def requests(skill: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """The challenger knows the truth to the degree `skill`; the champion knows the mean. Three airports, one tiny."""
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
            "champion": np.full(n, 0.4),
            "challenger": np.clip(0.4 + skill * (truth - 0.4), 0, 1),
            "origin": rng.choice(
                np.array(["EWR", "JFK", "LGA", "ISP", None], dtype=object), n, p=[0.4, 0.3, 0.25, 0.02, 0.03]
            ),
            "user": rng.integers(0, 400, n).astype(str),
        }
    )


def decided(pairs: pd.DataFrame, **changes: Any) -> Decision:
    changes = {"rule": "expected_gain", **changes}
    return judge("m", pairs, ShadowSettings.model_validate(changes), AS_OF, {})


def evidence(decision: Decision, name: str) -> Verdict:
    (found,) = (item.verdict for item in decision.evidence if item.name == name)
    return found


def test_a_gain_that_saves_more_than_a_loop_costs_is_worth_it() -> None:
    decision = decided(requests(), worth=PRICES)
    assert decision.verdict is Verdict.PASS
    assert [item.name for item in decision.evidence] == ["labels", "gain", "worth"]
    gain = decision.details["mean_gain"]
    assert decision.evidence[2].statistic == pytest.approx(gain * A_DAY * 28 * 2.0 - 50)


@pytest.mark.parametrize("dearer", [{"loop_cost": 1e5}, {"risk_cost": 1e6}, {"loss_cost": 1e-4}])
def test_the_record_says_why_a_proven_gain_was_not_worth_a_loop(dearer: dict[str, float]) -> None:
    decision = decided(requests(), worth={**PRICES, **dearer})
    assert decision.verdict is Verdict.FAIL
    assert evidence(decision, "gain") is Verdict.PASS
    assert decision.why.startswith("not retrained: ")
    assert "a loop costs" in decision.why


def test_only_the_share_of_the_gain_that_stays_is_counted() -> None:
    whole, tenth = (decided(requests(), worth={**PRICES, "realised_share": share}) for share in (1.0, 0.1))
    saved = [decision.evidence[2].statistic + 50 for decision in (whole, tenth)]  # type: ignore[operator]
    assert saved[1] == pytest.approx(saved[0] / 10)


def test_without_a_proven_gain_its_worth_is_not_asked() -> None:
    decision = decided(requests(skill=-1.0), worth=PRICES)
    assert [item.name for item in decision.evidence] == ["labels", "gain"]
    assert decision.why.startswith("not retrained: ")


def worse_at_lga(pairs: pd.DataFrame) -> pd.DataFrame:
    """The challenger knows more everywhere, except at one airport where it is confidently wrong."""
    return pairs.assign(
        challenger=pairs["challenger"].where(pairs["origin"] != "LGA", np.where(pairs["label"] > 0, 0.37, 0.43))
    )


def test_a_gain_that_one_slice_pays_for_is_refused() -> None:
    decision = decided(worse_at_lga(requests()), slices=["origin"])
    assert evidence(decision, "gain") is Verdict.PASS
    assert evidence(decision, "slices") is Verdict.FAIL
    assert "origin=LGA" in decision.why
    assert decision.details["slices"][0]["slice"] == "origin=LGA"


def test_a_gain_that_all_share_passes() -> None:
    decision = decided(requests(), slices=["origin"])
    assert decision.verdict is Verdict.PASS
    assert [row["slice"] for row in decision.details["slices"]].count("origin=EWR") == 1


def test_small_slices_are_judged_together() -> None:
    rows = decided(requests(), slices=["origin"]).details["slices"]
    names = {row["slice"]: row["labels"] for row in rows}
    assert set(names) == {"origin=EWR", "origin=JFK", "origin=LGA", "origin=(small)"}
    assert sum(names.values()) == DAYS * A_DAY


def test_a_slice_that_chance_may_explain_refuses_nothing() -> None:
    rng = np.random.default_rng(5)
    refused = 0
    for seed in range(60):
        pairs = requests(skill=0.0, seed=seed)
        noise = np.clip(0.4 + rng.normal(0, 0.1, len(pairs)), 0.01, 0.99)
        pairs = pairs.assign(champion=noise, challenger=np.clip(0.4 + rng.normal(0, 0.1, len(pairs)), 0.01, 0.99))
        refused += evidence(decided(pairs, slices=["origin"], max_slice_loss=0.0), "slices") is Verdict.FAIL
    assert refused <= 8  # 5 % of 60 are 3; more than 8 come with probability below 1 %


def test_slices_that_are_all_too_small_decide_nothing() -> None:
    decision = decided(requests(), slices=["origin"], min_slice_labels=10_000)
    assert evidence(decision, "slices") is Verdict.INCONCLUSIVE


def test_a_column_that_the_log_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="airport"):
        decided(requests(), slices=["airport"])


def test_business_value_decides_where_it_is_asked_for() -> None:
    """The better-informed challenger is worth nothing while no answer crosses the threshold."""
    value = {"true_positive": 10, "false_positive": -5, "threshold": 0.5}
    assert decided(requests(), loss="payoff", payoff=value).verdict is Verdict.PASS
    idle = decided(requests(), loss="payoff", payoff={**value, "threshold": 0.99})
    assert idle.verdict is Verdict.INCONCLUSIVE
    assert idle.details["mean_gain"] == 0


@pytest.mark.parametrize("wrong", [{"loss": "payoff"}, {"payoff": {"true_positive": 1, "false_positive": 0}}])
def test_a_pay_off_without_its_loss_or_the_reverse_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="belong together"):
        ShadowSettings.model_validate(wrong)


def test_users_that_come_back_every_day_are_not_independent_evidence() -> None:
    """Each user's own effect on every one of their days: blocks alone see a small spread, users show the real one."""
    rng = np.random.default_rng(4)
    users, days = 30, 14
    effect = rng.normal(0, 1, users)
    block, entity = (part.ravel() for part in np.meshgrid(np.arange(days), np.arange(users), indexing="ij"))
    values = effect[entity] + rng.normal(0, 0.1, days * users)
    sums, rows = np.bincount(block, values).astype(np.float64), np.bincount(block).astype(np.float64)
    plain, both = (
        running(sums, rows),
        running(sums, rows, returning(values, block.astype(np.intp), entity.astype(np.intp))),
    )
    error = both.spread[-1] / np.sqrt(both.effective[-1])
    assert error == pytest.approx(effect.std() / np.sqrt(users), rel=0.1)
    assert plain.spread[-1] / np.sqrt(plain.effective[-1]) < error / 5


def test_the_products_of_returning_users_are_those_of_their_totals() -> None:
    rng = np.random.default_rng(2)
    n, blocks = 500, 9
    values, block, entity = rng.normal(size=n), np.sort(rng.integers(0, blocks, n)), rng.integers(0, 40, n)
    found = returning(values, block, entity)
    for at in range(blocks):
        past = block <= at
        totals = np.bincount(entity[past], values[past], minlength=40)
        counts = np.bincount(entity[past], minlength=40)
        cells = pd.DataFrame({"b": block[past], "e": entity[past], "v": values[past]}).groupby(["b", "e"])["v"]
        s, r = cells.sum().to_numpy(), cells.size().to_numpy()
        assert found.squares[at] == pytest.approx(totals @ totals - s @ s)
        assert found.crossed[at] == pytest.approx(totals @ counts - s @ r)
        assert found.rows[at] == pytest.approx(counts @ counts - r @ r)


def test_a_cluster_widens_the_interval_and_never_narrows_it() -> None:
    pairs = requests()
    plain, clustered = decided(pairs), decided(pairs, cluster="user")
    assert clustered.details["mean_gain"] == plain.details["mean_gain"]
    assert clustered.details["path"][-1]["lower"] <= plain.details["path"][-1]["lower"]
