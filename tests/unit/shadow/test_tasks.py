"""One judge for events, classes and numbers: losses, what fits what, slices, and heavy tails."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.metrics import log_loss, mean_absolute_error, mean_pinball_loss, mean_squared_error

from assets.decision import Decision
from assets.shadow.judge import judge
from assets.shadow.loss import losses
from assets.shadow.settings import LOSSES, ShadowSettings
from assets.task import Task
from assets.verdict import Verdict

Floats = NDArray[np.float64]

START = datetime(2013, 3, 1, tzinfo=UTC)
AS_OF = START + timedelta(days=15)
DAYS, A_DAY = 14, 200
N = DAYS * A_DAY
CASES = [(task, loss) for task, fitting in LOSSES.items() for loss in fitting if loss != "payoff"]


def stamped(**columns: Any) -> pd.DataFrame:
    times = pd.to_datetime([START + timedelta(hours=24 * i / A_DAY) for i in range(N)], utc=True)
    origin = np.random.default_rng(9).choice(["EWR", "JFK"], N)
    return pd.DataFrame({"key": np.arange(N).astype(str), "event_time": times, "known_at": times, "origin": origin,
                         **columns})  # fmt: skip


def requests(task: str, seed: int = 0) -> pd.DataFrame:
    """The challenger knows the truth, the champion an average."""
    rng = np.random.default_rng(seed)
    if task == "regression":
        truth = rng.normal(10, 3, N)
        return stamped(label=truth + rng.normal(0, 1, N), champion=np.full(N, 10.0), challenger=truth)
    if task == "multiclass":
        truth = rng.dirichlet([1.0, 1.0, 2.0], N)
        label = np.array([rng.choice(3, p=row) for row in truth], dtype=float)
        return stamped(label=label, champion=[np.array([0.25, 0.25, 0.5])] * N, challenger=list(truth))
    chance = rng.uniform(0.05, 0.75, N)
    return stamped(label=(rng.random(N) < chance).astype(float), champion=np.full(N, 0.4), challenger=chance)


def decided(pairs: pd.DataFrame, task: str, **changes: Any) -> Decision:
    return judge("m", pairs, ShadowSettings.model_validate({"task": task, **changes}), AS_OF, {})


def swapped(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs.rename(columns={"champion": "challenger", "challenger": "champion"})


@pytest.mark.parametrize(("task", "loss"), CASES)
@pytest.mark.parametrize("rule", ["superiority", "non_inferiority", "expected_gain", "expected_loss"])
def test_who_knows_more_passes_and_who_knows_less_fails(task: str, loss: str, rule: str) -> None:
    better, worse = (decided(pairs, task, loss=loss, rule=rule) for pairs in
                     (requests(task), swapped(requests(task))))  # fmt: skip
    assert (better.verdict, worse.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert better.details["loss"][loss]["challenger"] < better.details["loss"][loss]["champion"]


@pytest.mark.parametrize(("task", "loss"), CASES)
@pytest.mark.parametrize("rule", ["superiority", "expected_loss"])
def test_no_difference_anywhere_is_inconclusive_and_never_nan(task: str, loss: str, rule: str) -> None:
    pairs = requests(task)
    decision = decided(pairs.assign(challenger=pairs["champion"]), task, loss=loss, rule=rule, slices=["origin"])
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "nothing varies" in decision.why
    assert "nan" not in decision.why
    json.dumps(decision.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("task", "loss"), CASES)
def test_the_worst_slice_decides_for_every_loss(task: str, loss: str) -> None:
    """Better everywhere but at one airport, where the two models have changed places."""
    pairs = requests(task)
    there = (pairs["origin"] == "JFK").to_numpy()
    mixed = pairs.assign(
        champion=pairs["champion"].where(~there, pairs["challenger"]),
        challenger=pairs["challenger"].where(~there, pairs["champion"]),
    )
    decision = decided(mixed, task, loss=loss, rule="non_inferiority", non_inferiority_margin=5.0, slices=["origin"])
    assert {item.name: item.verdict for item in decision.evidence}["slices"] is Verdict.FAIL
    assert "origin=JFK" in decision.why


def test_losses_are_those_of_the_books() -> None:
    rng = np.random.default_rng(4)
    label, answer = rng.normal(size=200), rng.normal(size=200)
    books = {"absolute": mean_absolute_error(label, answer), "squared": mean_squared_error(label, answer),
             "pinball": mean_pinball_loss(label, answer, alpha=0.9)}  # fmt: skip
    for name, expected in books.items():
        settings = ShadowSettings.model_validate({"task": "regression", "loss": name, "quantile": 0.9})
        assert losses(settings, label, answer).mean() == pytest.approx(expected)
    chances = rng.dirichlet([3.0, 3.0, 3.0], 200) * 0.9 + 0.1 / 3
    classes = rng.integers(0, 3, 200).astype(float)
    of = {name: ShadowSettings.model_validate({"task": "multiclass", "loss": name}) for name in ("log_loss", "brier")}
    assert losses(of["log_loss"], classes, chances).mean() == pytest.approx(log_loss(classes, chances), rel=1e-6)
    brier = np.square(np.eye(3)[classes.astype(int)] - chances).sum(axis=1).mean()
    assert losses(of["brier"], classes, chances).mean() == pytest.approx(brier)


def test_two_classes_lose_as_an_event_does() -> None:
    chance, label = np.array([0.2, 0.7]), np.array([1.0, 0.0])
    two = losses(ShadowSettings(task="multiclass"), label, np.column_stack([1 - chance, chance]))
    assert two == pytest.approx(losses(ShadowSettings(), label, chance))


@pytest.mark.parametrize("task", LOSSES)
def test_without_a_word_the_first_loss_of_the_task_is_compared(task: Task) -> None:
    assert ShadowSettings.model_validate({"task": task}).loss == LOSSES[task][0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"task": "regression", "loss": "log_loss"},
            "log_loss does not fit task: regression: choose absolute, squared, pinball",
        ),
        ({"task": "binary", "loss": "pinball"}, "choose log_loss, brier, payoff"),
        ({"task": "multiclass", "loss": "absolute"}, "choose log_loss, brier"),
        ({"task": "regression", "loss": "squared", "method": "betting", "rule": "superiority"}, "give loss_cap"),
        ({"task": "binary", "method": "betting"}, "give rule: superiority"),
        ({"loss_cap": 2.0}, "loss_cap belongs to task: regression"),
        ({"challengers": [{"name": "a", "lookback_days": 7}] * 2}, "give each its own name"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ShadowSettings.model_validate(wrong)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("label", 3.0, "label = 3.0"),
        ("label", 0.5, "label = 0.5"),
        ("champion", np.array([0.5, 0.1, 0.1]), "sum to 0.7"),
        ("champion", np.array([0.5, 0.5]), r"rows of \[2, 3\] classes"),
        ("challenger", np.array([1.5, -0.5, 0.0]), "score = 1.5"),
    ],
)
def test_chances_and_classes_that_are_none_are_named(column: str, value: Any, says: str) -> None:
    pairs = requests("multiclass")
    pairs.at[7, column] = value
    with pytest.raises(ValueError, match=says):
        decided(pairs, "multiclass")


def test_a_class_without_any_chances_is_an_error_not_a_number() -> None:
    pairs = requests("multiclass")
    pairs.at[7, "challenger"] = None
    assert decided(pairs, "multiclass").verdict is Verdict.ERROR


def heavy(seed: int, shift: float = 0.0) -> pd.DataFrame:
    """Labels with a tail so heavy that they have no variance; both models are equally wrong, save the shift."""
    rng = np.random.default_rng(seed)
    label = rng.standard_t(1.5, N)
    return stamped(label=label, champion=rng.normal(0, 1, N), challenger=rng.normal(0, 1, N) * (1 - shift))


def test_heavy_tails_call_a_no_better_challenger_better_at_most_as_often_as_said() -> None:
    passed = sum(
        decided(heavy(seed), "regression", loss="squared", rule="superiority").verdict is Verdict.PASS
        for seed in range(100)
    )
    assert passed <= 9  # 5 of 100 expected at most; 10 or more come with probability below 3 %


def test_a_gain_that_rests_on_one_block_of_an_unbounded_loss_decides_nothing() -> None:
    pairs = requests("regression").assign(challenger=10.0)
    rng = np.random.default_rng(2)
    pairs["challenger"] += rng.normal(0, 1e-6, N)
    pairs.loc[pairs.index[A_DAY * 3 : A_DAY * 4], "label"] = 1e6
    pairs.loc[pairs.index[A_DAY * 3 : A_DAY * 4], "challenger"] = 1e6
    decision = decided(pairs, "regression", loss="squared", rule="expected_gain", expected_gain_alpha=0.45)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "without its best block" in decision.why


def test_a_cap_bounds_what_one_request_can_say() -> None:
    pairs = requests("regression")
    pairs.loc[0, "label"] = 1e9
    capped = decided(pairs, "regression", loss="squared", loss_cap=25.0)
    assert capped.verdict is Verdict.PASS
    assert capped.details["loss"]["squared"]["champion"] < 25
    assert capped.details["log_wealth"] > 0
