"""What a shadow's gain becomes: learned from what became of past decisions, weighed by what a mistake costs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import t

from assets.decision import Decision
from assets.shadow.expected import Forecast, Pair, forecast, weigh
from assets.shadow.gain import heading, measured
from assets.shadow.judge import judge
from assets.shadow.pairs import usable
from assets.shadow.realised import Past, history, pending, realised
from assets.shadow.settings import LearningSettings, ShadowSettings
from assets.verdict import Verdict

START = datetime(2013, 3, 1, tzinfo=UTC)
BELIEF = LearningSettings()


def past(shadow: Any, realised: Any, every_days: float = 28) -> list[Pair]:
    return [
        Pair(START + timedelta(days=every_days * i), float(x), float(y))
        for i, (x, y) in enumerate(zip(shadow, realised, strict=True))
    ]


def test_before_any_pair_the_specs_share_of_the_shadow_is_expected() -> None:
    found = forecast(0.02, [], LearningSettings(share=0.3))
    assert found.mean == pytest.approx(0.006)
    assert found.share == pytest.approx(0.3)
    assert forecast(-0.02, [], BELIEF).mean == pytest.approx(-0.02)


def test_gain_and_harm_are_the_integrals_they_stand_for() -> None:
    found = Forecast(0.02, 0.4, 0.7, 5.5, 0.5, 0, 0.0)
    law = t(5.5, loc=0.4, scale=0.7)
    assert found.gain == pytest.approx(quad(lambda y: y * law.pdf(y), 0, np.inf)[0])
    assert found.harm == pytest.approx(-quad(lambda y: y * law.pdf(y), -np.inf, 0)[0])
    assert found.chance_of_harm == pytest.approx(law.cdf(0))


def test_where_the_shadow_says_little_its_gain_is_shrunk() -> None:
    """Statistics section 3b, lesson 3: last week says next to nothing about the next month."""
    rng = np.random.default_rng(1)
    pairs = past(rng.normal(0, 0.01, 60), rng.normal(0, 0.005, 60))
    found = forecast(0.01, pairs, BELIEF)
    assert 0 < found.share < 0.3
    assert found.mean < 0.003
    assert weigh(found, 0.004, BELIEF).verdict is Verdict.FAIL, "what is left of it no longer pays for the loop"
    assert weigh(forecast(0.01, [], BELIEF), 0.004, BELIEF).verdict is Verdict.PASS


def test_where_shadows_were_wrong_a_gain_is_no_longer_believed() -> None:
    x = np.linspace(0.002, 0.02, 40)
    pairs = past(x, -0.5 * x)
    assert weigh(forecast(0.01, pairs, BELIEF), 0.0, BELIEF).verdict is Verdict.FAIL
    assert weigh(forecast(0.01, [], BELIEF), 0.0, BELIEF).verdict is Verdict.PASS


def test_past_luck_never_overrules_a_shadow_that_loses() -> None:
    rng = np.random.default_rng(2)
    pairs = past(rng.normal(0.01, 0.01, 40), rng.normal(0.02, 0.005, 40))
    assert weigh(forecast(-0.004, pairs, BELIEF), 0.0, BELIEF).verdict is Verdict.FAIL


def test_nothing_seen_and_nothing_known_is_a_no_and_no_nan() -> None:
    found = forecast(0.0, [], BELIEF)
    assert np.isfinite([found.mean, found.scale, found.gain, found.harm]).all()
    assert weigh(found, 0.0, BELIEF).verdict is Verdict.FAIL


def test_where_the_shadow_is_right_it_is_believed_in_full() -> None:
    x = np.linspace(-0.05, 0.05, 40)
    found = forecast(0.03, past(x, x), BELIEF)
    assert found.mean == pytest.approx(0.03, rel=0.01)
    assert found.chance_of_harm < forecast(0.03, [], BELIEF).chance_of_harm


def test_pairs_whose_weeks_overlap_weigh_less() -> None:
    x = np.linspace(-0.05, 0.05, 12)
    apart, together = (forecast(0.03, past(x, x, every_days=days), BELIEF) for days in (28, 7))
    assert apart.weight == pytest.approx(12)
    assert together.weight == pytest.approx(1 + 11 / 4)
    assert together.scale > apart.scale


def test_the_unit_of_the_loss_changes_no_verdict() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(0, 1, 15), rng.normal(0.2, 1, 15)
    for shadow in (-0.5, -0.05, 0.05, 0.5):
        said = {weigh(forecast(k * shadow, past(k * x, k * y), BELIEF), 0.0, BELIEF).verdict for k in (1e-4, 1, 1e4)}
        assert len(said) == 1


def test_order_of_the_pairs_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    pairs = past(rng.normal(size=9), rng.normal(size=9))
    assert forecast(0.1, pairs[::-1], BELIEF) == forecast(0.1, pairs, BELIEF)


@pytest.mark.parametrize(("cost", "harm_weight"), [(1.0, 1.0), (0.0, 100.0)])
def test_a_dear_loop_or_a_dear_harm_is_a_no(cost: float, harm_weight: float) -> None:
    belief = LearningSettings(harm_weight=harm_weight)
    assert weigh(forecast(0.02, [], belief), cost, belief).verdict is Verdict.FAIL


def test_learning_beats_believing_every_shadow_and_refusing_all() -> None:
    """Worlds in some of which shadows mislead: the rule that learns loses less than those that do not."""
    rng = np.random.default_rng(6)
    learned = believed = always = best = 0.0
    for _ in range(150):
        share = rng.uniform(-1, 1)
        x = rng.normal(0, 1, 40)
        y = share * x + rng.normal(0, 0.5, 40)
        for now in range(20, 40):
            found = forecast(float(x[now]), past(x[:now], y[:now]), BELIEF)
            learned += (weigh(found, 0.0, BELIEF).verdict is Verdict.PASS) * y[now]
            believed += (x[now] > 0) * y[now]
            always += y[now]
            best += (x[now] > 0) * max(share * x[now], 0.0)
    assert learned > 0.8 * best
    assert max(believed, always, 0.0) < 0.5 * best


def requests(by_day: Any, a_day: int = 100) -> pd.DataFrame:
    """Requests whose Brier difference is exactly the given one on each day."""
    n = len(by_day) * a_day
    times = pd.to_datetime([START + timedelta(hours=24 * i / a_day) for i in range(n)], utc=True)
    challenger = np.sqrt(np.clip(0.5 - np.repeat(by_day, a_day), 0, 1))
    return pd.DataFrame({"key": np.arange(n).astype(str), "event_time": times, "known_at": times, "label": 0.0,
                         "champion": np.sqrt(0.5), "challenger": challenger})  # fmt: skip


def settings(**changes: Any) -> ShadowSettings:
    return ShadowSettings.model_validate({"rule": "expected_loss", "loss": "brier", "days": 14, **changes})


def decided(by_day: Any, pairs: list[Pair] | None = None, **changes: Any) -> Decision:
    return judge("m", requests(by_day), settings(**changes), START + timedelta(days=15), {}, pairs or [])


def headed(by_day: Any) -> float:
    found = heading(measured(usable(requests(by_day), settings(), START + timedelta(days=15)), settings()))
    assert found is not None
    return found


def test_a_gain_that_is_shrinking_to_nothing_is_of_the_past() -> None:
    falling = np.linspace(0.4, -0.1, 14) + 0.01 * np.cos(np.arange(14) * 2.4)
    assert headed(falling) == pytest.approx(-0.1, abs=0.02)
    assert decided(falling).verdict is Verdict.FAIL
    assert decided(falling[::-1]).verdict is Verdict.PASS


def test_noise_alone_hardly_moves_the_heading_from_the_mean() -> None:
    rng = np.random.default_rng(7)
    moved, straight = [], []
    for _ in range(200):
        days = rng.normal(0.02, 0.05, 14)
        moved.append(round(headed(days) - days.mean(), 9))
        straight.append(np.polyval(np.polyfit(np.arange(14), days, 1), 13) - days.mean())
    assert np.mean(np.equal(moved, 0)) > 0.85
    assert np.std(moved) < 0.5 * np.std(straight)


def test_the_record_names_the_pairs_it_learned_from() -> None:
    pairs = past([0.02, -0.01], [0.01, 0.03])
    decision = decided(0.02 + 0.05 * np.cos(np.arange(14) * 2.4), pairs)
    assert decision.to_dict()["details"]["forecast"]["history"] == [
        {"as_of": pair.as_of.isoformat(), "shadow": pair.shadow, "realised": pair.realised} for pair in pairs
    ]
    assert "2 past pairs" in decision.why


def test_the_price_of_a_loop_is_weighed_in_units_of_the_loss() -> None:
    prices = {"loss_cost": 2.0, "loop_cost": 1.0, "horizon_days": 28}
    slight = 0.02 + 0.05 * np.cos(np.arange(14) * 2.4)
    cheap = decided(slight, worth=prices)
    dear = decided(slight, worth={**prices, "loop_cost": 1e4})
    assert (cheap.verdict, dear.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert "cost 1.78571" in dear.why  # 1e4 / (100 requests a day · 28 days · 2)


def record(at: datetime, **details: Any) -> dict[str, Any]:
    held = {"mean_gain": 0.01, "settings": {"loss": "brier"}, **details}
    return {"as_of": at.isoformat(), "inputs": {"champion": "3"}, "details": held}


def test_a_decision_is_told_once_its_horizon_is_mature_and_only_once() -> None:
    found = [Past.of(record(START + timedelta(days=7 * week))) for week in range(3)]
    kept = [item for item in found if item is not None]
    asked = settings(learning={"horizon_days": 7})
    now = START + timedelta(days=15)
    assert [item.at for item in pending(kept, [], asked, now)] == [START, START + timedelta(days=7)]
    told = realised("m", kept[0], requests(np.full(7, 0.1)), asked, {"champion": "3"})
    assert told.as_of == START + timedelta(days=8)
    assert told.verdict is Verdict.PASS
    assert told.details["realised"] == pytest.approx(0.1)
    assert [item.at for item in pending(kept, [told.to_dict()], asked, now)] == [START + timedelta(days=7)]


@pytest.mark.parametrize("details", [{"mean_gain": None}, {"settings": {"loss": "log_loss"}}])
def test_what_saw_nothing_or_another_loss_teaches_nothing(details: dict[str, Any]) -> None:
    found = Past.of(record(START, **details))
    assert found is None or pending([found], [], settings(), START + timedelta(days=99)) == []


def test_a_record_without_a_heading_is_read_by_its_mean() -> None:
    old, new = Past.of(record(START)), Past.of(record(START, heading=0.002))
    assert old is not None
    assert new is not None
    assert (old.shadow, new.shadow) == (0.01, 0.002)


def test_a_pair_with_too_few_labels_is_recorded_and_never_learned_from() -> None:
    item = Past.of(record(START))
    assert item is not None
    told = realised("m", item, requests(np.full(7, 0.1), a_day=3), settings(learning={"horizon_days": 7}), {})
    assert told.verdict is Verdict.INCONCLUSIVE
    assert history([told.to_dict()], settings(), START + timedelta(days=99)) == []


def test_no_pair_is_from_the_future() -> None:
    item = Past.of(record(START))
    assert item is not None
    asked = settings(learning={"horizon_days": 7})
    told = [realised("m", item, requests(np.full(7, 0.1)), asked, {}).to_dict()]
    assert history(told, asked, START + timedelta(days=7)) == []
    (pair,) = history(told, asked, START + timedelta(days=8))
    assert (pair.as_of, pair.shadow) == (START, 0.01)
    assert pair.realised == pytest.approx(0.1)
