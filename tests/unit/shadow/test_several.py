"""Several challengers over one log."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from assets.decision import Decision
from assets.shadow.settings import ShadowSettings
from assets.shadow.several import Contender, judge_all
from assets.verdict import Verdict

Floats = NDArray[np.float64]

START = datetime(2013, 3, 1, tzinfo=UTC)
AS_OF = START + timedelta(days=15)
N = 14 * 200


def log(seed: int = 0) -> tuple[pd.DataFrame, Floats]:
    """Requests whose champion knows the mean, and the chance that is true of each."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0.05, 0.75, N)
    times = pd.to_datetime([START + timedelta(minutes=7.2 * i) for i in range(N)], utc=True)
    label = (rng.random(N) < truth).astype(float)
    columns = {"key": np.arange(N).astype(str), "event_time": times, "known_at": times, "label": label, "champion": 0.4}
    return pd.DataFrame(columns), truth


def decided(pairs: pd.DataFrame, scores: dict[str, Floats], **changes: Any) -> Decision:
    contenders = {name: Contender(7.0 * at, column, name) for at, (name, column) in enumerate(scores.items(), start=1)}
    settings = ShadowSettings.model_validate({"rule": "superiority", **changes})
    return judge_all("m", pairs, contenders, settings, AS_OF, {"champion": "3"})


def skilled(truth: Floats, skill: float) -> Floats:
    return np.clip(0.4 + skill * (truth - 0.4), 0, 1)


@pytest.mark.parametrize("rule", ["superiority", "expected_gain", "expected_loss"])
def test_the_best_of_those_that_pass_is_chosen_and_all_are_listed(rule: str) -> None:
    pairs, truth = log()
    scores = {name: skilled(truth, skill) for name, skill in (("half", 0.5), ("whole", 1.0), ("wrong", -1.0))}
    decision = decided(pairs, scores, rule=rule)
    assert decision.verdict is Verdict.PASS
    assert decision.details["chosen"] == {"name": "whole", "lookback_days": 14.0}
    assert decision.inputs == {"champion": "3", "challenger_snapshot": "whole"}
    listed = {item["name"]: item["verdict"] for item in decision.details["challengers"]}
    assert listed == {"half": Verdict.PASS, "whole": Verdict.PASS, "wrong": Verdict.FAIL}


def test_one_that_may_yet_pass_keeps_the_question_open() -> None:
    pairs, truth = log()
    noise = 0.4 + np.random.default_rng(1).normal(0, 0.01, N)
    decision = decided(pairs, {"wrong": skilled(truth, -1.0), "same": noise})
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.details["chosen"]["name"] == "same"
    assert "nearest of 2" in decision.why


def test_a_broken_challenger_is_said_unless_another_passes() -> None:
    pairs, truth = log()
    broken = np.where(np.arange(N) == 5, np.nan, truth)
    assert decided(pairs, {"broken": broken, "wrong": skilled(truth, -1.0)}).verdict is Verdict.ERROR
    assert decided(pairs, {"broken": broken, "whole": truth}).verdict is Verdict.PASS


def test_more_challengers_that_are_no_better_are_no_more_often_called_better() -> None:
    runs, level, wrong = 60, 0.2, 0
    for seed in range(runs):
        pairs, _ = log(seed)
        rng = np.random.default_rng(seed)
        pairs = pairs.assign(champion=np.clip(0.4 + rng.normal(0, 0.05, N), 0, 1))
        noise = {f"c{i}": np.clip(0.4 + rng.normal(0, 0.05, N), 0, 1) for i in range(4)}
        decision = decided(pairs, noise, rule="expected_gain", expected_gain_alpha=level)
        wrong += decision.verdict is Verdict.PASS
    assert binomtest(wrong, runs, level, alternative="greater").pvalue > 0.01
    assert wrong > 0, "or this test could not fail"
