"""The retrain room as Dagster runs it, on a store and a lineage in memory; limited fits are real processes."""

import io
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.decision import Decision, Evidence
from assets.door import decision_key
from assets.drift.reference import Reference
from assets.drift.settings import DriftSettings
from assets.model import Model
from assets.retrain.asset import candidate_model
from assets.retrain.schema import ACCEPT_TAG
from assets.retrain.settings import TrainingSettings
from assets.scoring import score
from assets.task import Task
from assets.verdict import Verdict
from resources.features import FeatureRegistry
from tests.fakes import MemoryStore
from tests.fakes_lineage import MemoryLineage

from .conftest import FEATURES, START, made_up

FEATURE_SET = """\
name: made
version: 1
valid_from: 2013-01-01T00:00:00Z
freshness_hours: 48
entity: row_key
event_time: event_time
known_at: event_time
label: late
label_known_at: label_known_at
sources: [made]
columns:
{columns}
sql: |
  SELECT CAST(row_number() OVER (ORDER BY event_time) AS VARCHAR) AS row_key, * FROM made
"""
RECIPE = """
from pathlib import Path
import pandas as pd

CATEGORIES = ["carrier", "origin", "dest"]


def fit(frame, target, seed{report}):
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

{first}
    codes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    parts = [("codes", codes, CATEGORIES), ("hour", "passthrough", ["hour"])]
    parts += [("gaps", SimpleImputer(), ["distance", "temp"])]
    model = LogisticRegression(C=0.01, max_iter=2000, random_state=seed)
    steps = [("columns", ColumnTransformer(parts)), ("model", model)]
    return Pipeline(steps).fit(frame.drop(columns=target), frame[target])
"""
# Each fit leaves a line; kill gives the line at which it is killed.
LEAVE = """
    import os, signal
    with open({file!r}, "a") as tries:
        tries.write("fit\\n")
    if len(Path({file!r}).read_text().splitlines()) in {kill}:
        os.kill(os.getpid(), signal.SIGKILL)
"""
DAY = "2013-01-28"


class Room:
    """One model, its store and its lineage; `run` is one run of the room's asset."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task: Task = "binary"
        self.store, self.lineage = MemoryStore(), MemoryLineage()
        self.tries = folder / "tries"
        columns = "\n".join(f"  - {{name: {name}, type: {kind}}}" for name, kind in FEATURES.items())
        (folder / "features.yaml").write_text(FEATURE_SET.format(columns=columns))
        self.rows(made_up(2500, seed=1))
        self.recipe()

    def rows(self, frame: pd.DataFrame) -> None:
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink)
        held = self.store.pointer("raw/made.parquet")
        self.store.swap("raw/made.parquet", sink.getvalue(), held.etag if held else None)

    def recipe(self, first: str = "", report: str = "") -> None:
        (self.folder / "recipe.py").write_text(RECIPE.format(first=first, report=report))

    def killed_at(self, *lines: int) -> None:
        self.recipe(LEAVE.format(file=str(self.tries), kill=list(lines)))

    def attempts(self) -> int:
        return len(self.tries.read_text().splitlines())

    def run(
        self, memory_gib: float | None = None, tags: dict[str, str] | None = None, **settings: Any
    ) -> dg.ExecuteInProcessResult:
        registry = FeatureRegistry.load(self.folder / "features.yaml")
        model = Model("made", "Made up.", ("team:ml",), "made", registry, self.folder / "recipe.py", task=self.task)
        partitions = dg.DailyPartitionsDefinition(START)
        bounds = TrainingSettings(**{"min_rows": 200, **settings})
        asset = candidate_model(model, partitions, bounds, DriftSettings(), memory_gib=memory_gib)
        job = dg.Definitions(
            assets=[asset],
            jobs=[dg.define_asset_job("release", [asset], executor_def=dg.in_process_executor)],
            resources={"store": self.store, "lineage": self.lineage},
        ).resolve_job_def("release")
        return job.execute_in_process(partition_key=DAY, tags=tags, raise_on_error=False)

    def versions(self) -> list[tuple[str, bytes, dict[str, str]]]:
        return self.lineage.versions.get("made", [])


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def failure(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """The sentence a failed step shows, and the metadata beside it."""
    (event,) = (item for item in result.all_events if item.is_step_failure)
    data = event.step_failure_data.user_failure_data
    assert data is not None, event.step_failure_data.error
    return str(data.description), {name: value.value for name, value in data.metadata.items()}


def restarts(result: dg.ExecuteInProcessResult) -> int:
    return sum(event.event_type_value == "STEP_RESTARTED" for event in result.all_events)


def test_a_candidate_is_registered_and_both_sides_name_each_other(room: Room) -> None:
    result = room.run()
    assert result.success
    (version,) = room.versions()
    run_id, _, tags = version
    (made,) = result.asset_materializations_for_node("made__candidate_model")
    assert tags["dagster.run_id"] == result.run_id
    assert (tags["dagster.asset"], tags["dagster.partition"]) == ("made/candidate_model", DAY)
    assert made.tags is not None
    assert (made.tags["mlflow/run_id"], made.tags["mlflow/version"]) == (run_id, "1")
    assert "models/made/versions/1" in str(made.metadata["mlflow_version"].value)
    kept = room.lineage.runs[run_id]
    assert {"decision.json", "plots/roc.png", "plots/calibration.png", "plots/importance.png"} <= set(kept.artifacts)
    assert kept.params["framework"] == "scikitlearn"
    gates = [run for run in room.lineage.runs.values() if run.kind == "retrain"]
    assert [run.tags["decision"] for run in gates] == [tags["decision"]]
    assert gates[0].dataset is not None
    assert gates[0].dataset.digest == tags["dataset.digest"]


def test_a_champion_of_the_same_rows_is_said_to_have_seen_them(room: Room) -> None:
    assert room.run().success
    room.lineage.set_alias("made", "champion", 1)
    assert room.run().success
    told = [json.loads(run.artifacts["decision.json"]) for run in room.lineage.runs.values() if run.kind == "retrain"]
    first, second = (record["why"] for record in told)
    assert "There is no champion yet" in first
    assert re.search(r"The champion was fitted on (\d+) of these \1 rows", second), second


NUMBERS = """
def fit(frame, target, seed):
    from lightgbm import LGBMRegressor
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    columns = ColumnTransformer([("numbers", "passthrough", ["hour", "distance", "temp"])])
    trees = LGBMRegressor(n_estimators=40, num_leaves=7, random_state=seed, n_jobs=1, verbose=-1)
    return Pipeline([("columns", columns), ("trees", trees)]).fit(frame.drop(columns=target), frame[target])
"""


def minutes(rows: int = 2500) -> pd.DataFrame:
    """The label is a number: some thousand minutes that grow with the distance."""
    frame = made_up(rows, seed=1)
    return frame.assign(late=2000 + frame["distance"] + np.random.default_rng(2).normal(0, 100, rows))


@pytest.mark.parametrize("memory_gib", [None, 4])
def test_a_model_of_a_number_is_gated_by_its_error_and_registered_with_the_unit_of_harm(
    room: Room, memory_gib: float | None
) -> None:
    room.task = "regression"
    room.rows(minutes())
    (room.folder / "recipe.py").write_text(NUMBERS)
    assert room.run(memory_gib).success
    ((run_id, onnx, _),) = room.versions()
    answers = score(onnx, minutes(), FEATURES)
    assert 50 < np.abs(answers - minutes()["late"]).mean() < 150
    kept = room.lineage.runs[run_id]
    assert "plots/answers.png" in kept.artifacts
    assert not {"plots/roc.png", "plots/calibration.png"} & set(kept.artifacts)
    decision = json.loads(kept.artifacts["decision.json"])
    assert decision["details"]["candidate"]["skill"] == pytest.approx(1 - 80 / 575, abs=0.05)
    reference = Reference.from_bytes(room.store.get("references/made/1.npz"))
    assert reference.loss_scale == pytest.approx(4 * 85, rel=0.2)
    assert 0.2 < reference.loss_bound < 0.35


def test_a_recipe_of_another_task_than_the_spec_s_is_refused_with_the_remedy(room: Room) -> None:
    room.task = "regression"
    (event,) = (item for item in room.run().all_events if item.is_step_failure)
    assert "task is regression and the recipe gives a classifier: fit a regressor" in str(event.step_failure_data.error)
    room.task = "binary"
    (room.folder / "recipe.py").write_text(NUMBERS)
    (event,) = (item for item in room.run().all_events if item.is_step_failure)
    assert "or write task: regression in the spec" in str(event.step_failure_data.error)


def shadow(room: Room, days: float, verdict: Verdict = Verdict.PASS, champion: str = "1", gain: float = 0.1) -> str:
    """A shadow decision at the end of the partition; its digest."""
    at = datetime(2013, 1, 29, tzinfo=UTC)
    evidence = (Evidence("gain", verdict, "said"),)
    details = {"chosen": {"name": "a", "lookback_days": days}, "mean_gain": gain}
    decision = Decision("made", "shadow", at, "said", evidence, {"champion": champion}, details)
    room.store.put(decision_key(decision), decision.to_json())
    return decision.digest


def gate_record(room: Room) -> dict[str, Any]:
    *_, last = (run for run in room.lineage.runs.values() if run.kind == "retrain")
    found: dict[str, Any] = json.loads(last.artifacts["decision.json"])
    return found


def test_the_window_that_the_shadow_chose_is_the_window_that_is_fitted(room: Room) -> None:
    assert room.run().success
    assert gate_record(room)["details"]["lookback_days"] == 365
    assert int(room.lineage.runs[room.versions()[0][0]].params["rows"]) > 2300
    room.lineage.set_alias("made", "champion", 1)
    chosen = shadow(room, 14)
    for other in ({"verdict": Verdict.FAIL}, {"champion": "7", "gain": 9.0}, {"gain": 0.05}):
        shadow(room, 3, **other)  # a no, one about another champion, and a smaller gain choose nothing
    assert room.run().success
    record = gate_record(room)
    assert (record["details"]["lookback_days"], record["inputs"]["shadow"]) == (14, chosen)
    rows = int(room.lineage.runs[room.versions()[1][0]].params["rows"])
    assert rows == pytest.approx(2500 * 14 / 28, rel=0.1)


def test_a_fit_with_a_memory_limit_gives_the_very_bytes_of_one_without(room: Room) -> None:
    assert room.run().success
    assert room.run(memory_gib=4).success
    first, second = room.versions()
    assert first[1] == second[1]


def test_a_killed_fit_is_started_again_exactly_once_and_registered_once(room: Room) -> None:
    room.killed_at(1)
    result = room.run(memory_gib=4)
    assert result.success
    assert restarts(result) == 1
    assert room.attempts() == 3  # the one that was killed, then both fits of the second try
    assert len(room.versions()) == 1
    assert len([run for run in room.lineage.runs.values() if run.kind == "retrain"]) == 1


def test_a_fit_that_is_killed_twice_fails_and_says_so(room: Room) -> None:
    room.killed_at(*range(1, 9))
    result = room.run(memory_gib=4)
    said, metadata = failure(result)
    assert room.attempts() == 2
    assert "ended from outside a second time (by signal 9)" in said
    assert metadata["cause"] == "taken away"
    assert (room.versions(), room.lineage.runs) == ([], {})


def test_a_fit_that_needs_more_memory_than_it_may_is_not_tried_again(room: Room) -> None:
    room.recipe(
        LEAVE.format(file=str(room.tries), kill=[]) + "    import numpy\n    numpy.ones((40_000, 40_000)).sum()\n"
    )
    # The fit gets what this process leaves of it, and other tests have filled that.
    limit = 2 + math.ceil(psutil.Process().memory_info().rss / 2**30)
    said, metadata = failure(room.run(memory_gib=limit))
    assert room.attempts() == 1
    assert f"more than the {limit} GiB of resources.retrain.memory_gib" in said
    assert metadata["cause"] == "out of memory"
    assert metadata["memory_gib"] == limit
    assert "MemoryError" in metadata["said"]
    assert room.versions() == []


def test_a_bug_is_told_by_its_own_words_and_not_tried_again(room: Room) -> None:
    room.recipe(LEAVE.format(file=str(room.tries), kill=[]) + "    raise KeyError('no such column')\n")
    said, metadata = failure(room.run(memory_gib=4))
    assert room.attempts() == 1
    assert "KeyError: 'no such column'" in said
    assert metadata["cause"] == "failed"


@pytest.mark.parametrize("memory_gib", [None, 4])
def test_a_recipe_that_reports_is_drawn_in_mlflow_while_it_runs(room: Room, memory_gib: float | None) -> None:
    room.recipe(
        "    print('epoch 1')\n    report(0, {'loss': 0.7})\n    report(1, {'loss': 0.4})\n",
        ", report=lambda step, metrics: None",
    )
    result = room.run(memory_gib)
    assert result.success
    (training,) = [(key, run) for key, run in room.lineage.runs.items() if run.kind == "training"]
    assert training[1].metrics == {"loss": 0.4}
    assert room.versions()[0][2]["training.run_id"] == training[0]


def without_temp(room: Room) -> None:
    """The next version of the feature set no longer has `temp`."""
    text = (room.folder / "features.yaml").read_text().replace("  - {name: temp, type: float}\n", "")
    text = text.replace("version: 1", "version: 2")
    (room.folder / "features.yaml").write_text(text)
    source = (room.folder / "recipe.py").read_text()
    (room.folder / "recipe.py").write_text(source.replace('["distance", "temp"]', '["distance"]'))


@pytest.mark.parametrize(
    ("accept", "registered"),
    [
        (lambda room: room.run(), 1),
        (lambda room: room.run(tags={ACCEPT_TAG: "temp"}), 2),
        (lambda room: room.run(accept_schema=("temp",)), 2),
        (lambda room: room.run(accept_schema=("carrier",)), 1),
    ],
)
def test_a_candidate_whose_inputs_changed_gets_a_version_only_by_an_override(
    room: Room, accept: Callable[[Room], dg.ExecuteInProcessResult], registered: int
) -> None:
    assert room.run().success
    room.lineage.set_alias("made", "champion", 1)
    without_temp(room)
    result = accept(room)
    assert result.success
    assert len(room.versions()) == registered
    (schema,) = (item for item in result.get_asset_check_evaluations() if item.check_name == "schema")
    assert schema.passed is (registered == 2)
    assert "no longer takes temp" in str(schema.description)


def test_mlflow_that_is_down_fails_the_step_with_one_clear_error_and_the_next_run_registers_once(room: Room) -> None:
    room.lineage.down = True
    result = room.run()
    assert not result.success
    (event,) = (item for item in result.all_events if item.is_step_failure)
    assert "MLflow is down" in str(event.step_failure_data.error)
    room.lineage.down = False
    assert room.run().success
    assert len(room.versions()) == 1
