"""The room's own evaluation, from the log in a store to the decision, on a shop whose customers change their minds."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.champion import reference_key
from assets.decision import Decision
from assets.door import decision_key
from assets.drift.reference import build_reference
from assets.drift.settings import DriftSettings
from assets.model import Model
from assets.retrain.export import to_onnx
from assets.shadow.asset import evaluate
from assets.shadow.settings import ShadowSettings
from assets.task import Task
from assets.verdict import Verdict
from pipelines.observer.rows import Access, Answer
from pipelines.observer.tables import access_tables, answers_tables
from resources.features import FeatureRegistry
from resources.segments import microseconds, segment
from resources.traffic import Traffic
from tests.fakes import MemoryStore
from tests.fakes_lineage import MemoryLineage

START = datetime(2013, 1, 1, tzinfo=UTC)
# The champion saw four weeks; a week later everything turned round.
TRAINED, TURNED, DAYS, A_DAY = 28, 33, 70, 60

FEATURES = """
name: shop
version: 1
description: Customers.
valid_from: 2013-01-01T00:00:00Z
freshness_hours: 48
entity: customer
event_time: at
known_at: at
label: bought
label_known_at: told_at
sources: [shop]
columns:
  - {name: age, type: float, description: Years}
  - {name: visits, type: float, description: Visits}
sql: SELECT * FROM shop
"""
RECIPE = """
def fit(frame, target, seed):
    from sklearn.linear_model import LogisticRegression
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    inputs = frame.drop(columns=target)
    columns = ColumnTransformer([("numbers", "passthrough", list(inputs))])
    return Pipeline([("columns", columns), ("model", LogisticRegression())]).fit(inputs, frame[target])
"""


class Log(Traffic):
    """Everything is written at once."""

    def flush(self) -> None:
        pass


def at(day: float) -> datetime:
    return START + timedelta(days=day)


class Shop:
    """A model folder, a store with log and labels, and a champion of the first four weeks."""

    def __init__(self, folder: Path, task: Task = "binary") -> None:
        (folder / "features.yaml").write_text(FEATURES)
        (folder / "recipe.py").write_text(RECIPE if task == "binary" else RECIPE.replace("Logistic", "Linear"))
        self.task = task
        registry = FeatureRegistry.load(folder / "features.yaml")
        self.model = Model("shop", "Customers.", ("team:shop",), "shop", registry, folder / "recipe.py", task=task)
        self.store, self.lineage = MemoryStore(), MemoryLineage()
        self.rows = customers() if task == "binary" else spenders()
        sink = io.BytesIO()
        self.rows.to_parquet(sink)
        self.store.put("raw/shop.parquet", sink.getvalue())
        self._champion()
        self._log()

    def _champion(self) -> None:
        features = self.model.registry.resolve("shop", START)
        known = self.rows[self.rows["at"] < at(TRAINED)]
        onnx = to_onnx(self.model.fit(known, features, 7), features.features, self.task)
        self.lineage.register("shop", onnx, dagster_run_id="r", snapshot_digest="d", snapshot_uri="u")
        self.lineage.set_alias("shop", "champion", 1)
        frame = known.rename(columns={"at": "event_time"})
        reference = build_reference(frame, features.features, {}, DriftSettings(), 0.25)
        self.store.put(reference_key("shop", 1), reference.to_bytes())

    def _log(self) -> None:
        asked = self.rows[self.rows["at"] >= at(TRAINED)]
        answers, access = [], []
        for number, row in enumerate(asked.to_dict("records")):
            event = microseconds(row["at"].to_pydatetime())
            ok = number % 50 > 0
            access.append(Access(f"r{number}", "shop", event, event, "http", "blue", 200 if ok else 503, 0, ok, 1.0, 1))
            inputs: dict[str, Any] = {name: np.array([row[name]], np.float32) for name in ("age", "visits")}
            if ok:
                answers.append(
                    Answer("shop", f"r{number}", event, event, "1", (row["customer"],), np.array([0.5]), inputs)
                )
        for kind, tables in (("access", access_tables(access)), ("answers", answers_tables(answers))):
            for model, table in tables:
                self.store.put(*segment(model, kind, table))
        told = asked.rename(columns={"customer": "key", "bought": "label", "told_at": "known_at"})
        Log(self.store).put_labels("shop", told[told.index % 40 > 0])

    def decide(self, day: float, **settings: Any) -> Decision:
        chosen = ShadowSettings.model_validate({"task": self.task, "days": 7, "min_labels": 100, **settings})
        ports = (self.store, self.lineage, Log(self.store))
        return evaluate(self.model, chosen, *ports, at(day), timedelta(days=365), 7)  # type: ignore[arg-type]

    def keep(self, decision: Decision) -> None:
        self.store.put(decision_key(decision), decision.to_json())

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(self.store.get(key)) for key in self.store.keys("decisions/shop/realised/")]


def customers() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    n = DAYS * A_DAY
    day = np.arange(n) / A_DAY
    age, visits = rng.normal(size=n).round(3), rng.normal(size=n).round(3)
    way = np.where(day < TURNED, 1.0, -1.0)
    chance = 1 / (1 + np.exp(-way * (1.5 * age - visits)))
    times = pd.Series(pd.Timestamp(START) + pd.to_timedelta(day, unit="D")).astype("datetime64[us, UTC]")
    return pd.DataFrame(
        {
            "customer": [f"c{i}" for i in range(n)],
            "at": times,
            "age": age,
            "visits": visits,
            "bought": (rng.random(n) < chance).astype(float),
            "told_at": times + timedelta(hours=3),
        }
    )


def spenders() -> pd.DataFrame:
    """The same customers; the label is what they spend."""
    rows = customers()
    way = np.where(np.arange(len(rows)) / A_DAY < TURNED, 1.0, -1.0)
    spent = 3000 + way * (600 * rows["age"] - 400 * rows["visits"])
    return rows.assign(bought=spent + np.random.default_rng(5).normal(0, 50, len(rows)))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_every_request_of_the_window_is_accounted_for(shop: Shop) -> None:
    counts = shop.decide(60).details["counts"]
    assert counts["failed"] == pytest.approx(7 * A_DAY / 50, abs=1)
    assert counts["missing_labels"] == pytest.approx(7 * A_DAY / 40, abs=2)
    assert counts["labels"] + counts["failed"] + counts["missing_labels"] == 7 * A_DAY


def test_of_several_look_backs_the_one_that_forgets_the_past_is_chosen(shop: Shop) -> None:
    looks = [{"name": "two_weeks", "lookback_days": 14}, {"name": "all", "lookback_days": 365}]
    decision = shop.decide(58, challengers=looks)
    assert decision.verdict is Verdict.PASS
    assert decision.details["chosen"] == {"name": "two_weeks", "lookback_days": 14.0}
    listed = {item["name"]: item for item in decision.details["challengers"]}
    assert listed["two_weeks"]["mean_gain"] > listed["all"]["mean_gain"]
    assert listed["two_weeks"]["snapshot"] != listed["all"]["snapshot"]
    assert decision.inputs["challenger_snapshot"] == listed["two_weeks"]["snapshot"]
    assert decision.details["settings"]["alpha"] == pytest.approx(0.025)
    assert "chosen of 2: two_weeks, 14 days" in decision.why


def test_a_number_is_compared_by_its_absolute_error(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "regression")
    decision = shop.decide(58, challengers=[{"name": "two_weeks", "lookback_days": 14}])
    assert decision.verdict is Verdict.PASS, decision.why
    assert decision.details["settings"]["loss"] == "absolute"
    # The champion learned the other way round: it misses by twice what there is to say, the challenger by the noise.
    mean = decision.details["loss"]["absolute"]
    assert mean["challenger"] < 60 < 900 < mean["champion"]
    assert decision.details["auc"] is None


def test_one_challenger_is_judged_at_the_whole_level(shop: Shop) -> None:
    decision = shop.decide(58)
    assert decision.details["settings"]["alpha"] == 0.05
    assert "challengers" not in decision.details


def test_what_became_of_a_decision_is_recorded_once_and_teaches_the_next(shop: Shop) -> None:
    learning = {"rule": "expected_loss", "learning": {"horizon_days": 7}}
    first = shop.decide(42, **learning)
    shop.keep(first)
    assert first.details["forecast"]["pairs"] == 0
    shop.decide(49, **learning)
    assert shop.told() == [], "its labels are mature a day later"
    later = shop.decide(50, **learning)
    (pair,) = shop.told()
    assert pair["details"]["decided_at"] == at(42).isoformat()
    assert pair["details"]["shadow"] == first.details["heading"]
    assert pair["details"]["realised"] > 0
    assert later.details["forecast"]["pairs"] == 1
    assert shop.decide(50, **learning).to_json() == later.to_json()
    assert len(shop.told()) == 1
    assert shop.decide(42, **learning).to_json() == first.to_json(), "a replay knows nothing of what came after"


def test_no_champion_and_no_log_decide_nothing(shop: Shop) -> None:
    assert shop.decide(29).verdict is Verdict.INCONCLUSIVE
    shop.lineage.aliases.clear()
    assert shop.decide(60).verdict is Verdict.INCONCLUSIVE


def test_a_log_without_any_label_says_so_and_fits_nothing(shop: Shop) -> None:
    for key in shop.store.keys("labels/"):
        del shop.store.objects[key]
    decision = shop.decide(60)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "100% of the mature requests have no label" in decision.why
    assert not shop.store.keys("features/")
