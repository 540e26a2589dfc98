"""The page of a rollout, and who writes it while the rollout goes on."""

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from assets.canary.judge import judge
from assets.canary.live import EVERY_S, Live, latencies, measured
from assets.canary.page import MOST_POINTS, page
from assets.canary.rollout import Phase, Rollout, begin, noted
from assets.canary.settings import CanarySettings
from tests.unit.canary.test_replay import driven

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATENCY = {"blue": {"requests": 900, "p50": 2.0, "p95": 5.5, "p99": 9.0}}


def shown(rollout: Rollout) -> str:
    return page(rollout, judge(rollout, NOW, {}), LATENCY)


def test_the_page_holds_rungs_evidence_coverage_latency_split_and_events() -> None:
    text = shown(driven(1, covering=True))
    for part in (
        "m version 2: promoted", "log E", "sample_ratio", "errors_safe", "C_30", "expected by the reference",
        "champion (blue)", "5.5", "promoted version 2", "50 %", "observed split", "hour of day",
    ):  # fmt: skip
        assert part in text, part
    assert "http-equiv" not in text


def test_its_markup_is_whole() -> None:
    for rollout in (begin("m", 2, "green", "p", "d", CanarySettings(), NOW, champion=(1, "blue")), driven(1, 0.05)):
        text = shown(rollout)
        body = text[text.index("<body>") :].removesuffix("</html>").replace('meta charset="utf-8"', "x")
        assert ElementTree.fromstring(body).tag == "body"


def test_it_renews_itself_only_while_the_rollout_runs_and_stays_small() -> None:
    running = driven(2, requests=20, looks=200)
    assert "http-equiv" in shown(running)
    assert len(shown(running)) < 60_000
    curves = re.findall(r'polyline points="([^"]*)"', shown(running))
    assert len(curves) == 5
    assert max(len(curve.split()) for curve in curves) <= MOST_POINTS + 1


def test_what_people_wrote_is_no_markup() -> None:
    rollout = noted(driven(1), NOW, "<script>alert(1)</script>")
    assert "<script>" not in shown(rollout)


def test_a_first_release_has_a_page_too() -> None:
    assert "loading version 1" in shown(begin("m", 1, "green", "p", "d", CanarySettings(), NOW))


@pytest.fixture
def climbing() -> Rollout:
    return driven(2, looks=3)


class Watch:
    """What was written and told, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now, self.written, self.told = 0.0, 0, 0
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def live(self) -> Live:
        return Live(self.write, self.tell, lambda: self.now)

    def write(self, rollout: Rollout) -> None:
        assert self.gate.wait(10)
        self.written += 1
        if self.broken:
            raise RuntimeError("MLflow does not answer")

    def tell(self, rollout: Rollout) -> None:
        self.told += 1


def test_it_is_written_at_each_rung_and_every_few_seconds(climbing: Rollout) -> None:
    watch = Watch()
    live = watch.live()
    for state, at, written, told in (
        (climbing, 0.0, 1, 1),
        (climbing, 1.0, 1, 1),
        (climbing, EVERY_S, 2, 1),
        (replace(climbing, rung=climbing.rung + 1), EVERY_S + 1, 3, 2),
    ):
        watch.now = at
        live(state)
        if live._last:
            live._last.result()
        assert (watch.written, watch.told) == (written, told)
    assert live.close(replace(climbing, phase=Phase.PROMOTED)) is None
    assert watch.written == 4


def test_a_page_that_takes_long_holds_nobody_up_and_is_left_out_meanwhile(climbing: Rollout) -> None:
    watch = Watch()
    watch.gate.clear()
    live = watch.live()
    for second in range(100):
        watch.now = float(second)
        live(climbing)
    assert watch.written == 0
    watch.gate.set()
    assert live.close(None) is None
    assert watch.written == 1


def test_nothing_stands_between_the_order_to_roll_back_and_the_weights(climbing: Rollout) -> None:
    watch = Watch()
    watch.live()(replace(climbing, phase=Phase.ROLLING_BACK))
    assert (watch.written, watch.told) == (0, 0)


def test_a_page_that_cannot_be_written_ends_no_rollout_and_is_told(climbing: Rollout) -> None:
    watch = Watch()
    watch.broken = True
    live = watch.live()
    live(climbing)
    assert live.close(None) == "MLflow does not answer"


def test_a_rung_that_cannot_be_told_ends_no_rollout_either(climbing: Rollout) -> None:
    def tell(rollout: Rollout) -> None:
        raise RuntimeError("Dagster's storage is down")

    live = Live(lambda rollout: None, tell)
    live(climbing)
    assert live.close(None) == "Dagster's storage is down"


def test_latencies_are_told_by_pool() -> None:
    rng = np.random.default_rng(1)
    access = pd.DataFrame({"pool": ["blue", "green", ""] * 100, "latency_ms": rng.exponential(5, 300)})
    found = latencies(access)
    assert list(found) == ["blue", "green"]
    assert found["blue"]["requests"] == 100
    assert found["blue"]["p50"] == pytest.approx(access[access.pool == "blue"]["latency_ms"].median())
    assert latencies(access.head(0)) == {}


def test_the_curves_of_a_rollout_are_numbers() -> None:
    found = measured(judge(driven(1, covering=True), NOW, {}).details)
    assert {"log_e.errors", "log_e.slow_safe", "coverage.covered", "coverage.expected"} <= set(found)
    assert all(np.isfinite(value) for value in found.values())
