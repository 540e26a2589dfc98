"""The e-detector keeps its spacing, remembers exactly, and hears harm."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets.drift.harm import EDetector, Harm, LabelBlock, Rules, bets, watch


def rules(bound: float = 0.25, arl: float = 112, unit: str = "block", **changed: int) -> Rules:
    numbers = {"labels_per_block": 100, "min_labels": 1, "min_block_labels": 1} | changed
    return Rules(bound=bound, arl_blocks=arl, unit=unit, **numbers)  # type: ignore[arg-type]


def blocks(losses: Sequence[Sequence[float]], w: float = 1.0) -> list[LabelBlock]:
    return [LabelBlock(str(i), tuple(each), w) for i, each in enumerate(losses)]


def test_a_step_is_the_formula_of_the_text() -> None:
    detector = EDetector.fresh(1)
    r = 0.0
    for z, w in [(0.3, 1.0), (0.1, 0.1), (0.9, 1.0)]:
        r = (r + w) * (1 + 0.5 * (z - 0.25))
        detector = detector.step(z, w, 0.25, (0.5,))
        assert math.exp(detector.log_evidence) == pytest.approx(r, rel=1e-12)
    assert detector.log_level(112) == pytest.approx(math.log(112 * 2.1 / 3))


def test_bets_keep_every_factor_positive() -> None:
    for unit in ("block", "request"):
        for bound in (0.01, 0.25, 0.6, 0.99):
            assert all(1 + bet * (0 - bound) > 0 for bet in bets(bound, unit))


def test_a_loss_beyond_its_scale_counts_as_one() -> None:
    one, huge = (EDetector.fresh(1).step(z, 1.0, 0.25, (0.5,)) for z in (1.0, 1e9))
    assert one == huge


def test_a_million_bad_labels_do_not_overflow() -> None:
    detector = EDetector((700.0,) * 5, 1.0, 1)
    for _ in range(2000):
        detector = detector.step(1.0, 1.0, 0.25, bets(0.25, "block"))
    assert math.isfinite(detector.log_evidence)
    assert detector.log_evidence > 2000


@pytest.mark.parametrize("w", [1.0, 0.1])
def test_false_alarms_are_as_far_apart_as_promised(w: float) -> None:
    rng, arl, horizon = np.random.default_rng(7), 30.0, 1500
    taken = rules(arl=arl)
    lengths = []
    for _ in range(80):
        losses = rng.beta(2, 6, horizon)  # mean .25: the worst case of the null
        detector, run = EDetector.fresh(len(taken.bets)), 0
        for run, z in enumerate(losses, 1):  # noqa: B007
            detector = detector.step(float(z), w, taken.bound, taken.bets)
            if detector.log_evidence >= detector.log_level(arl):
                break
        lengths.append(run)
    assert np.mean(lengths) > arl


def test_a_day_s_shared_weather_is_harm_to_requests_and_none_to_days() -> None:
    rng = np.random.default_rng(3)
    weather = rng.choice([0.05, 0.45], 300)  # the mean of a day's labels; .25 in the long run
    losses = [(rng.uniform(size=100) < mean).astype(float).tolist() for mean in weather]
    alarms = {unit: watch(blocks(losses), rules(unit=unit).fresh(), rules(unit=unit))[1].alarms for unit in
              ("request", "block")}  # fmt: skip
    assert alarms["request"] > 20
    assert alarms["block"] <= 300 / 112


def test_harm_is_heard_in_days() -> None:
    rng = np.random.default_rng(4)
    losses = [rng.beta(4, 6, 100).tolist() for _ in range(30)]  # mean .4 against .25
    for unit in ("block", "request"):
        traces, _ = watch(blocks(losses), rules(unit=unit).fresh(), rules(unit=unit))
        assert any(trace.alarm for trace in traces[:15])


def test_drift_makes_it_listen_sooner() -> None:
    calm = blocks([[0.2] * 10] * 60, w=0.1)
    bad = [[0.35] * 10] * 40
    delays = []
    for w in (0.1, 1.0):
        traces, _ = watch(calm + blocks(bad, w=w), rules().fresh(), rules())
        delays.append([trace.alarm for trace in traces].index(True))
    assert delays[1] < delays[0]


def test_an_alarm_resets_all_but_the_count() -> None:
    _, harm = watch(blocks([[1.0] * 50] * 40), rules().fresh(), rules())
    assert harm.alarms > 1
    assert harm.labels < 40 * 50


def test_no_alarm_before_enough_labels() -> None:
    few = rules(min_labels=200)
    traces, _ = watch(blocks([[1.0] * 19] * 10), few.fresh(), few)
    assert not any(trace.alarm for trace in traces)
    assert traces[-1].log_evidence > traces[-1].log_level


def test_stragglers_are_pooled_until_they_make_a_block() -> None:
    pooling = rules(min_block_labels=50)
    _, harm = watch([LabelBlock("a", (0.5,) * 30, 1.0), LabelBlock("b", (), 0.1)], pooling.fresh(), pooling)
    assert (harm.detector.n, harm.pooled_n) == (0, 30)
    _, harm = watch([LabelBlock("c", (0.1,) * 30, 0.1)], harm, pooling)
    expected = pooling.fresh().detector.step(18 / 60, 1.0, 0.25, pooling.bets)  # the weight of the first one holds
    assert harm.detector.n == 1
    assert harm.detector.log_evidence == pytest.approx(expected.log_evidence)


LOSSES = st.lists(st.lists(st.floats(0, 1), max_size=6), max_size=12)


@given(LOSSES, st.integers(0, 12), st.sampled_from(["block", "request"]), st.sampled_from([1, 4]))
def test_any_split_over_calls_gives_the_same_state_to_the_last_bit(
    losses: list[list[float]], cut: int, unit: str, least: int
) -> None:
    taken = rules(arl=1.5, unit=unit, min_block_labels=least, min_labels=3)
    taken = Rules(**{**{f: getattr(taken, f) for f in taken.__slots__}, "labels_per_block": 2.0})
    given_ = blocks(losses, w=0.5)
    whole, end = watch(given_, taken.fresh(), taken)
    first, middle = watch(given_[:cut], taken.fresh(), taken)
    carried = Harm.from_dict(json.loads(json.dumps(middle.to_dict(), allow_nan=False)))
    second, split_end = watch(given_[cut:], carried, taken)
    assert (first + second, split_end) == (whole, end)
