import json
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from pipelines.demo.page import page
from pipelines.demo.replay import Week
from pipelines.demo.results import decisions, promotions, refusals, verdict_of, week_result
from pipelines.demo.story import weeks_until
from pipelines.spec import ModelSpec
from tests.fakes import MemoryStore

START = datetime(2013, 2, 1, tzinfo=UTC)
WEEK = Week("2013-02-01", START, START + timedelta(days=7))


def record(store: MemoryStore, gate: str, verdict: str, **details: object) -> None:
    body = {
        "gate": gate,
        "verdict": verdict,
        "why": f"{gate} says so",
        "as_of": WEEK.end.isoformat(),
        "details": details,
    }
    store.put(f"decisions/m/{gate}/{WEEK.end:%Y%m%dT%H%MZ}/{gate}.json", json.dumps(body).encode())


def test_records_of_a_week_come_in_walking_order() -> None:
    store = MemoryStore()
    record(store, "shadow", "PASS")
    record(store, "drift", "FAIL")
    assert list(decisions(store, "m", WEEK.end)) == ["drift", "shadow"]
    assert verdict_of(store, "m", WEEK) == ("FAIL", "drift says so")


def test_a_drift_alarm_is_no_refusal_and_a_gate_that_did_not_pass_is_one() -> None:
    store = MemoryStore()
    record(store, "drift", "FAIL")
    record(store, "shadow", "INCONCLUSIVE")
    (refusal,) = refusals(store, "m", [WEEK])
    assert (refusal["gate"], refusal["why"]) == ("shadow", "shadow says so")
    assert promotions(store, "m", [WEEK]) == []


def test_a_passed_canary_is_a_promotion() -> None:
    store = MemoryStore()
    record(store, "canary", "PASS", rollout={"version": 2})
    (promotion,) = promotions(store, "m", [WEEK])
    assert promotion["version"] == 2


def log(answers: list[float], version: str = "1") -> pd.DataFrame:
    times = [START + timedelta(hours=hour) for hour in range(len(answers))]
    keys = [f"f{i}" for i in range(len(answers))]
    return pd.DataFrame({"key": keys, "event_time": times, "version": version, "answer": answers})


def test_a_week_is_scored_on_its_own_flights_and_counted_by_the_access_log() -> None:
    flights = pd.DataFrame({"entity": ["f0", "f1", "other"], "label": [1.0, 0.0, 1.0], "static": [0.5, 0.5, 0.5]})
    access = pd.DataFrame({"ok": [True, True, False]})
    result = week_result(WEEK, {}, log([0.9, 0.1]), access, flights)
    assert (result.served, result.failed, result.champion) == (2, 1, 1)
    assert result.auc_managed == 1.0
    assert result.auc_static == 0.5
    assert result.brier_managed == pytest.approx(0.01)


def test_a_week_of_one_outcome_has_no_auc() -> None:
    flights = pd.DataFrame({"entity": ["f0"], "label": [1.0], "static": [0.5]})
    assert week_result(WEEK, {}, log([0.9]), pd.DataFrame({"ok": [True]}), flights).auc_managed is None


def test_the_last_week_may_be_cut() -> None:
    spec = ModelSpec(
        name="churn",
        description="x",
        owners=("team:x",),
        feature_set="f",
        cadence="weekly",
        start=datetime(2013, 1, 4, tzinfo=UTC),
    )
    weeks = weeks_until(spec, datetime(2013, 2, 10, tzinfo=UTC))
    assert [week.partition for week in weeks] == ["2013-02-01", "2013-02-08"]
    assert weeks[-1].end == datetime(2013, 2, 15, tzinfo=UTC)


def test_the_page_stands_alone_and_escapes_reasons() -> None:
    week = {
        "start": START.isoformat(),
        "verdicts": {"drift": "FAIL", "shadow": "PASS"},
        "reason": "<script>temp</script>",
        "champion": 1,
        "auc_static": 0.6,
        "auc_managed": None,
        "brier_static": 0.2,
        "brier_managed": 0.1,
        "served": 10,
        "failed": 0,
    }
    loop = {"as_of": WEEK.end.isoformat(), "trigger": "drift inputs", "outcome": "promoted", "seconds": 90.0}
    html = page(
        {
            "model": "m",
            "from": START.isoformat(),
            "through": WEEK.end.isoformat(),
            "weeks": [week],
            "loops": [{**loop, "phases": {"shadow": 5.0}}],
            "promotions": [],
            "refusals": [],
            "failed_requests": 0,
            "seconds": {"up": 30.0, "alarm_to_promoted": None, "published_to_loaded": None},
            "rss_mb": 2000.0,
        }
    )
    assert "<script>" not in html
    assert "data:image/png;base64," in html
    assert 'src="http' not in html
