"""The driver's looks at outcomes: labels that come while a rollout runs, in a small world."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from zlib import crc32

import numpy as np
import pandas as pd
import pytest

from assets.canary.driver import load
from assets.canary.judge import judge
from assets.canary.page import page
from assets.canary.replay import same
from assets.canary.rollout import Phase, Rollout
from assets.canary.settings import OutcomeSettings
from resources.gateway import Split
from tests.serving_stack import ROWS
from tests.unit.canary.test_driver import EPOCH, MODEL, SETTINGS, World, driver, rollout

LATE = timedelta(seconds=8)


class Labelled(World):
    """Every request has a key; its label is known 8 s later. bad: how often it is 1, by pool; None: no labels."""

    bad: dict[str, float] | None = {"blue": 0.1, "green": 0.1}  # noqa: RUF012
    reads = 0

    def access_seen(self, model: str, since: datetime) -> pd.DataFrame:
        rows = super().access_seen(model, since)
        return rows.assign(unit="", event_time=rows["seen_at"])

    def answers_seen(self, model: str, since: datetime) -> pd.DataFrame:
        sent = super().access_seen(model, since)
        rows = pd.concat([ROWS] * (len(sent) // len(ROWS) + 1), ignore_index=True)[: len(sent)]
        return rows.assign(request_id=sent["request_id"], row=0, key=sent["request_id"], answer=0.5)

    def first_labels(self, model: str, since: datetime, as_of: datetime) -> pd.DataFrame:
        self.reads += 1
        sent = super().access_seen(model, since)
        sent = sent[(sent["seen_at"] <= as_of - LATE)] if self.bad else sent[:0]
        # The same label whenever it is read.
        chance = np.array([crc32(name.encode()) % 997 / 997 for name in sent["request_id"]])
        label = chance < sent["pool"].map(self.bad or {}).to_numpy(dtype=float)
        known_at = sent["seen_at"] + LATE
        return pd.DataFrame({"key": sent["request_id"], "label": label.astype(float), "known_at": known_at})


@pytest.fixture
def labelled() -> Labelled:
    world = Labelled()
    world.gateway.set_split(MODEL, Split({"blue": 100}))
    for version in (1, 2):
        world.lineage.register(
            MODEL, world.onnx[version], dagster_run_id=f"r{version}", snapshot_digest="s", snapshot_uri="u"
        )
    world.lineage.set_alias(MODEL, "champion", 1)
    return world


def asking(**outcome: object) -> Rollout:
    asked = OutcomeSettings.model_validate({"event": "label_1", **outcome})
    return replace(rollout(), settings=SETTINGS.model_copy(update={"outcome": asked}))


def kept(ended: Rollout) -> dict[str, object]:
    found: dict[str, object] = json.loads(judge(ended, EPOCH, {}).to_json())
    assert same(found)
    return found


def test_a_challenger_whose_outcomes_are_worse_is_rolled_back_for_that_alone(labelled: Labelled) -> None:
    labelled.bad = {"blue": 0.1, "green": 0.3}
    ended = driver(labelled).drive(asking())
    assert ended.phase is Phase.ROLLED_BACK
    assert "label_1" in ended.reason
    kept(ended)
    text = page(ended, judge(ended, EPOCH, {}))
    assert "Business outcome" in text
    assert "business" in text


def test_a_required_proof_holds_the_climb_until_the_labels_bear_it_out(labelled: Labelled) -> None:
    ended = driver(labelled).drive(asking(required=True, non_inferiority_tolerance=0.5))
    assert ended.phase is Phase.PROMOTED, ended.reason
    known = sum(part.canary for part in ended.guards.outcomes)
    assert 0 < known < ended.guards.canary_requests
    assert any("holding" in text for _, text in ended.diary)
    kept(ended)


def test_without_labels_an_outcome_that_is_only_asked_for_holds_nothing_back_and_the_record_names_it(
    labelled: Labelled,
) -> None:
    labelled.bad = None
    ended = driver(labelled).drive(asking())
    assert ended.phase is Phase.PROMOTED, ended.reason
    decision = judge(ended, EPOCH, {})
    item = {found.name: found for found in decision.evidence}["business"]
    assert (decision.verdict.name, item.verdict.name, item.decides) == ("PASS", "INCONCLUSIVE", False)
    assert "the outcome is known: nothing was judged by it" in item.why


def test_without_labels_an_outcome_that_is_required_ends_undecided(labelled: Labelled) -> None:
    labelled.bad = None
    asked = asking(required=True)
    ended = driver(labelled).drive(replace(asked, settings=asked.settings.model_copy(update={"hold_deadline_s": 20.0})))
    assert ended.phase is Phase.ROLLED_BACK
    assert "the outcome of 0 known" in ended.reason


def test_a_driver_that_resumes_counts_every_outcome_once(labelled: Labelled) -> None:
    class Killed(BaseException):
        pass

    def show(now: Rollout) -> None:
        if now.guards.outcomes and now.phase is Phase.HOLDING:
            raise Killed

    first = driver(labelled, "first")
    first.show = show
    with pytest.raises(Killed):
        first.drive(asking(required=True, non_inferiority_tolerance=0.5))
    labelled.pause(SETTINGS.lease_s + 1)
    found = load(labelled.store, MODEL)
    assert found is not None
    ended = driver(labelled, "second").drive(found[0])
    assert ended.phase is Phase.PROMOTED, ended.reason
    told = pd.DataFrame(labelled.rows)
    inside = pd.concat([told[(told["seen_at"] >= s.start) & (told["seen_at"] < s.end)] for s in ended.spans])
    both = [sum(getattr(part, arm) for part in ended.guards.outcomes) for arm in ("canary", "baseline")]
    for pool, counted in zip(("green", "blue"), both, strict=True):
        assert 0 < counted <= (inside["pool"] == pool).sum()
    early = inside[inside["seen_at"] < ended.spans[-1].start]
    assert sum(both) >= len(early)


def test_a_spec_that_asks_for_no_outcome_reads_no_labels(labelled: Labelled) -> None:
    assert driver(labelled).drive(rollout()).phase is Phase.PROMOTED
    assert labelled.reads == 0
