"""A backfill replays a past decision with the same verdict, bit for bit, whatever became known since."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd
import pytest

from assets.champion import reference_key
from assets.decision import Decision
from assets.door import decision_key
from assets.drift.asset import decide, drift_page, drift_report, profile_key_of
from assets.drift.page import banner
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings
from assets.model import Model
from assets.verdict import Verdict
from pipelines.commands_drift import page
from pipelines.observer.rows import Answer
from pipelines.observer.tables import answers_tables
from resources.features import FeatureRegistry
from resources.segments import microseconds, segment
from resources.traffic import Traffic
from tests.fakes import MemoryStore
from tests.fakes_lineage import MemoryLineage

MODEL = "churn"
START = datetime(2020, 1, 6, tzinfo=UTC)
DAY, WEEK = timedelta(days=1), timedelta(days=7)
RUN_CLOCK = datetime(2021, 1, 1, tzinfo=UTC)
SETTINGS = DriftSettings(min_block_rows=30)
RATE = 40


class Log(Traffic):
    """The log without an observer: what it saw is written already."""

    def flush(self) -> None:
        return


def reference(seed: int) -> Reference:
    rng = np.random.default_rng(seed)
    size = 40 * RATE
    frame = pd.DataFrame({"temp": rng.normal(size=size).astype(np.float32)})
    frame["event_time"] = [START - timedelta(days=41) + index * DAY / RATE for index in range(size)]
    return build_reference(frame, {"temp": "float"}, {"temp": 1.0}, SETTINGS, loss_bound=0.25)


class World:
    """A store, its log and its registry, filled week by week."""

    def __init__(self) -> None:
        self.store, self.lineage = MemoryStore(), MemoryLineage()
        self.traffic = Log(self.store)
        self.clock = RUN_CLOCK
        self.champion(1)

    def champion(self, version: int) -> None:
        made = self.lineage.register(
            MODEL, bytes([version]), dagster_run_id=f"r{version}", snapshot_digest="d", snapshot_uri="u"
        )
        assert made.version == version
        self.lineage.set_alias(MODEL, "champion", version)
        self.store.put(reference_key(MODEL, version), reference(version).to_bytes())

    def serve(self, week: int, shift: float = 0.0, rows: int = 7 * RATE, version: int = 1, seed: int = 0) -> None:
        """Requests of a week, their labels a day later; each call is seen after the one before."""
        rng = np.random.default_rng([seed, week])
        self.clock += timedelta(minutes=1)
        start = START + week * WEEK
        answers, keys, known = [], [], []
        for index in range(rows):
            at = start + index * WEEK / rows
            key = f"{week}-{seed}-{index}"
            temp = np.array([rng.normal(shift)], np.float32)
            served = np.array([rng.uniform(0.1, 0.9)])
            answers.append(
                Answer(MODEL, key, microseconds(at), microseconds(self.clock), str(version), (key,), served,
                       {"temp": temp})
            )  # fmt: skip
            keys.append(key)
            known.append(at + DAY)
        for model, table in answers_tables(answers):
            self.store.put(*segment(model, "answers", table))
        labels = pd.DataFrame({"key": keys, "label": rng.integers(0, 2, rows).astype(float)})
        self.traffic.put_labels(MODEL, labels.assign(known_at=pd.to_datetime(known, utc=True)))

    def decide(self, week: int) -> Decision:
        start = START + week * WEEK
        ports = (self.store, self.lineage, self.traffic)
        decision, _ = decide(MODEL, SETTINGS, DAY * 3, *ports, start, start + WEEK)  # type: ignore[arg-type]
        self.store.put(decision_key(decision), decision.to_json())
        return decision


@pytest.fixture
def world() -> World:
    made = World()
    for week, shift in enumerate((0.0, 0.0, 2.0)):
        made.serve(week, shift)
    return made


def test_every_past_decision_is_the_same_whatever_became_known_since(world: World) -> None:
    taken = [world.decide(week) for week in range(3)]
    assert taken[2].verdict is Verdict.FAIL
    count = len(world.store.objects)

    world.champion(2)  # another version serves now
    world.serve(3, version=2)
    world.decide(3)
    for week in range(3):  # rows of then that reach the log only now, and labels that are corrected only now
        world.serve(week, shift=5.0, seed=1)
        keys = [f"{week}-0-{index}" for index in range(RATE)]
        late = pd.Timestamp(START + 10 * WEEK)
        world.traffic.put_labels(MODEL, pd.DataFrame({"key": keys, "label": 1.0, "known_at": late}))

    again = [world.decide(week) for week in range(3)]
    assert [item.to_json() for item in again] == [item.to_json() for item in taken]
    assert sum(key.startswith("decisions/") for key in world.store.objects) == 4
    assert len(world.store.objects) > count


def test_a_week_without_a_row_stays_one(world: World) -> None:
    silent = world.decide(5)
    assert silent.verdict not in (Verdict.PASS, Verdict.FAIL)
    world.serve(5)
    assert world.decide(5).to_json() == silent.to_json()


def test_a_decision_between_two_that_are_taken_already_changes_neither(world: World) -> None:
    first, third = world.decide(0), world.decide(2)
    world.decide(1)
    assert [world.decide(0).to_json(), world.decide(2).to_json()] == [first.to_json(), third.to_json()]


def test_a_week_that_was_never_judged_is_judged_with_what_is_known_now(world: World) -> None:
    world.champion(2)
    assert world.decide(1).inputs["champion"] == "2"


def test_a_day_is_tested_for_joint_drift_with_the_days_before_it_and_so_again_later(world: World) -> None:
    ports = (world.store, world.lineage, world.traffic)
    start = START + 6 * DAY

    def decided() -> tuple[Decision, pd.DataFrame | None]:
        return decide(MODEL, SETTINGS, DAY * 3, *ports, start, start + DAY)  # type: ignore[arg-type]

    first, window = decided()
    (joint,) = [item for item in first.evidence if item.name == "joint"]
    assert joint.statistic is not None
    assert window is not None
    assert len(window) == first.details["rows"] == RATE
    world.store.put(decision_key(first), first.to_json())
    world.serve(0, shift=5.0, seed=1)
    assert decided()[0].to_json() == first.to_json()


def test_an_alarm_stays_one_until_it_is_retrained(world: World) -> None:
    world.serve(3, shift=2.0)
    alarmed = [world.decide(week).details["alarms"] for week in range(4)]
    opened = (START + 3 * WEEK).isoformat()
    assert [item["open"] for item in alarmed] == [None, None, opened, opened]
    assert [item["count"] for item in alarmed] == [0, 0, 1, 1]
    world.champion(2)
    world.serve(4, version=2)
    after = world.decide(4).details["alarms"]
    assert after["open"] is None
    assert after["last"][0]["how"] == "retrained"


def test_the_window_is_profiled_and_linked_after_the_alarm_is_out(world: World) -> None:
    from whylogs.core.view.dataset_profile_view import DatasetProfileView

    partitions = dg.WeeklyPartitionsDefinition(START, day_offset=1)
    model = Model(MODEL, "Who leaves.", ("team:growth",), "customers", FeatureRegistry(()), Path("recipe.py"))
    asset = drift_report(model, partitions, SETTINGS, DAY * 3)
    resources = {"store": world.store, "lineage": world.lineage, "traffic": world.traffic}
    done = dg.materialize([asset], partition_key="2020-01-20", resources=resources)
    assert done.success
    events = [event.event_type_value for event in done.all_events]
    assert "ASSET_CHECK_EVALUATION" in events
    (key,) = [key for key in world.store.objects if key.startswith("profiles/")]
    (made,) = done.asset_materializations_for_node("churn__drift_report")
    assert made.metadata["profile"].value == key == profile_key_of(world.decide(2))
    assert made.metadata["alarms"].value == "1 alarm in 7 days; open since 2020-01-27T00:00"
    counted = DatasetProfileView.deserialize(world.store.get(key)).to_pandas()
    assert counted["counts/n"].to_dict() == {"answer": 7 * RATE, "temp": 7 * RATE}


def test_the_page_of_a_judged_window_is_linked_from_the_report(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assets.drift.asset.page", lambda reference, window, found: found["why"].encode())
    partitions = dg.WeeklyPartitionsDefinition(START, day_offset=1)
    model = Model(MODEL, "Who leaves.", ("team:growth",), "customers", FeatureRegistry(()), Path("recipe.py"))
    resources = {"store": world.store, "lineage": world.lineage, "traffic": world.traffic}
    asset = drift_page(model, partitions)
    early = dg.materialize([asset], partition_key="2020-01-20", resources=resources, raise_on_error=False)
    assert not early.success
    decision = world.decide(2)
    done = dg.materialize([asset], partition_key="2020-01-20", resources=resources)
    (run,) = [run_id for run_id, run in world.lineage.runs.items() if run.kind == "drift_page"]
    assert world.lineage.runs[run].artifacts == {"evidently.html": decision.why.encode()}
    link = world.lineage.file_page(MODEL, run, "evidently.html")
    (made,) = done.asset_materializations_for_node("churn__drift_page")
    (seen,) = done.asset_observations_for_node("churn__drift_page")
    assert made.metadata["evidently"].value == seen.metadata["evidently"].value == link
    assert seen.asset_key.path == [MODEL, "drift_report"]


@pytest.mark.parametrize("week", [0, 1, 2, 5], ids=["first", "quiet", "moved", "silent"])
def test_check_record_metric_and_page_tell_one_verdict(world: World, week: int) -> None:
    partitions = dg.WeeklyPartitionsDefinition(START, day_offset=1)
    model = Model(MODEL, "Who leaves.", ("team:growth",), "customers", FeatureRegistry(()), Path("recipe.py"))
    resources = {"store": world.store, "lineage": world.lineage, "traffic": world.traffic}
    partition = f"{START + week * WEEK:%Y-%m-%d}"
    done = dg.materialize(
        [drift_report(model, partitions, SETTINGS, DAY * 3)], partition_key=partition, resources=resources
    )
    (made,) = done.asset_materializations_for_node("churn__drift_report")
    record = json.loads(world.store.get(str(made.metadata["record"].value)))
    (run,) = [run for run in world.lineage.runs.values() if run.kind == "drift"]
    assert json.loads(run.artifacts["decision.json"]) == record
    assert run.tags["verdict"] == record["verdict"]
    assert str(made.metadata["verdict"].value).endswith(record["verdict"])
    assert banner(record).count(f"{record['verdict']}: ") == 1
    assert next(page(record)).endswith(f": {record['verdict']}")
    if week == 5:
        assert "NO DATA" in record["why"]
        assert not any(check.passed for check in done.get_asset_check_evaluations())

    told = {item["name"]: item for item in record["evidence"]}
    for check in done.get_asset_check_evaluations():
        item = told.get(check.check_name)
        verdict = item["verdict"] if item else "INCONCLUSIVE"
        assert check.metadata["verdict"].value == verdict
        assert check.passed == (verdict == "PASS")
        assert (check.severity is dg.AssetCheckSeverity.ERROR) == (verdict == "FAIL")
        if item and item["statistic"] is not None:
            shown = check.metadata["statistic"].value
            assert shown == made.metadata[check.check_name].value == pytest.approx(item["statistic"], rel=5e-6)
            assert run.metrics[check.check_name] == item["statistic"]
