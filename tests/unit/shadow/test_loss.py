import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss, roc_auc_score

from assets.shadow.auc import delong
from assets.shadow.loss import CLIP, largest_difference, loss
from assets.shadow.settings import PayoffSettings, ShadowSettings

LAW = settings(deadline=None, max_examples=60)  # other work on the machine is no failure


def test_delong_agrees_with_the_published_values() -> None:
    cancer = load_breast_cancer()
    names = list(cancer.feature_names)
    texture, compactness = (-cancer.data[:, names.index(name)] for name in ("mean texture", "mean compactness"))
    found = delong(cancer.target.astype(float), texture, compactness)
    assert found is not None
    assert found.champion == pytest.approx(0.775824, abs=1e-6)
    assert found.challenger == pytest.approx(0.863782, abs=1e-6)
    assert abs(found.z) == pytest.approx(3.380944, abs=1e-6)
    assert found.variance == pytest.approx(6.76819531e-4, rel=1e-8)


def test_delong_counts_ties_as_half() -> None:
    label = np.array([0.0, 1, 0, 1, 1, 0])
    scores = np.array([0.2, 0.2, 0.5, 0.5, 0.9, 0.9])
    found = delong(label, scores, np.zeros(6))
    assert found is not None
    assert found.champion == pytest.approx(roc_auc_score(label, scores))
    assert found.challenger == pytest.approx(0.5)


def test_identical_scores_differ_by_nothing_and_not_by_nan() -> None:
    label = np.array([0.0, 1, 0, 1])
    found = delong(label, label, label)
    assert found is not None
    assert found.z == 0.0


def test_one_class_alone_has_no_area() -> None:
    assert delong(np.ones(5), np.arange(5.0), np.arange(5.0)) is None


def test_log_loss_is_the_usual_one_inside_the_clip() -> None:
    rng = np.random.default_rng(1)
    label, probability = (rng.random(50) < 0.4).astype(float), rng.uniform(0.02, 0.98, 50)
    assert loss("log_loss", label, probability).mean() == pytest.approx(log_loss(label, probability))


@LAW
@given(st.sampled_from(["log_loss", "brier"]), st.sampled_from([0.0, 1.0]), st.floats(0, 1), st.floats(0, 1))
def test_no_request_can_show_more_than_the_largest_difference(kind: str, label: float, one: float, two: float) -> None:
    pair = loss(kind, np.full(2, label), np.array([one, two]))  # type: ignore[arg-type]
    assert abs(pair[0] - pair[1]) <= largest_difference(ShadowSettings(loss=kind)) + 1e-9


def test_a_certain_mistake_costs_no_more_than_the_clip() -> None:
    assert loss("log_loss", np.array([1.0]), np.array([0.0]))[0] == pytest.approx(-np.log(CLIP))


@LAW
@given(st.lists(st.floats(-100, 100), min_size=4, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_a_pay_off_is_bounded_by_its_own_cells(cells: list[float], one: float, two: float) -> None:
    names = ("true_positive", "false_positive", "true_negative", "false_negative")
    values = dict(zip(names, cells, strict=True))
    if values["true_positive"] == values["false_negative"] and values["false_positive"] == values["true_negative"]:
        return
    payoff = PayoffSettings.model_validate(values)
    bound = largest_difference(ShadowSettings(loss="payoff", payoff=payoff))
    for label in (0.0, 1.0):
        pair = loss("payoff", np.full(2, label), np.array([one, two]), payoff)
        assert abs(pair[0] - pair[1]) <= bound


def test_a_pay_off_is_what_the_answer_brought() -> None:
    payoff = PayoffSettings(threshold=0.3, true_positive=90, false_positive=-10, false_negative=-5)
    label, answer = np.array([1.0, 0, 0, 1]), np.array([0.3, 0.9, 0.1, 0.2])
    assert loss("payoff", label, answer, payoff).tolist() == [-90, 10, 0, 5]
