"""The climb waits for coverage: through the state machine, through the driver, and in what is said of it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from assets.canary.asset import cells_now
from assets.canary.coverage import Coverage, Seen
from assets.canary.driver import Driver
from assets.canary.events import Event, Loaded, MirrorSeen, Observed, Tick, WeightsConfirmed
from assets.canary.forecast import Traffic, expected_seconds, plan, sentence
from assets.canary.judge import judge
from assets.canary.looks import Look
from assets.canary.rollout import Phase, Rollout, begin, share
from assets.canary.settings import CanarySettings, CoverageSettings
from assets.canary.step import step
from assets.cells import Cells, build_cells, cells_key
from assets.scoring import score
from assets.verdict import Verdict
from resources.errors import ServingError
from resources.gateway import Split
from tests.fakes import MemoryStore
from tests.serving_stack import FEATURES
from tests.unit.canary import test_cells
from tests.unit.canary.test_driver import EPOCH, MODEL, World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PI = np.array([0.4, 0.3, 0.2, 0.1])
ASKED = CoverageSettings(cells=4, least=30, covered=(0.6, 0.9), could_fail=(0.6, 0.3))
SETTINGS = CanarySettings(ladder=("mirror", 10, 50, 100), coverage=ASKED)


def begun(settings: CanarySettings = SETTINGS) -> Rollout:
    coverage = Coverage((400, 300, 200, 100, 0), (100,) * 24)
    rollout = begin("m", 2, "green", "p", "d", settings, NOW, champion=(1, "blue"), coverage=("cells", coverage))
    for event in (Loaded(), WeightsConfirmed(), MirrorSeen(200, 0, compared=50), WeightsConfirmed()):
        rollout = step(rollout, event, NOW)
    assert rollout.phase is Phase.ADVANCING
    return rollout


def look(rollout: Rollout, requests: int, pi: np.ndarray = PI, beyond: int = 0) -> Event:
    """A spotless look with as many answers of each cell and arm as one expects."""
    part = share(rollout)
    both, mine = np.append(np.rint(requests * pi), 0), np.append(np.rint(part * requests * pi), 0)
    seen = Seen(part, tuple(mine.astype(int).tolist()), tuple(both.astype(int).tolist()), beyond, (0,) * 24)
    total = int(mine.sum())
    return Observed(Look(part, total, 0, 0, requests - total, 0, 0, 1.0), seen if part < 1 else None)


def test_no_rung_is_left_before_its_share_of_the_feature_space_was_seen() -> None:
    rollout = begun()
    for _ in range(30):
        rollout = step(rollout, look(rollout, 1000, np.array([1.0, 0, 0, 0])), NOW)
    assert share(rollout) == 0.1
    late = step(rollout, Tick(), NOW + timedelta(seconds=SETTINGS.rung_deadline_s + 1))
    assert late.verdict is Verdict.INCONCLUSIVE
    assert "40.0% of the feature space was seen 30 times or more" in late.reason


def test_a_canary_that_sees_every_kind_is_promoted_and_its_record_says_how_much() -> None:
    rollout = begun()
    for _ in range(60):
        rollout = step(rollout, look(rollout, 600), NOW)
        rollout = step(rollout, WeightsConfirmed(), NOW)
    assert rollout.phase is Phase.PROMOTED
    decision = judge(rollout, NOW, {})
    found = {item.name: item for item in decision.evidence}["coverage"]
    assert (found.verdict, found.threshold) == (Verdict.PASS, 0.9)
    assert "100.0% of the feature space seen 30 times or more" in found.why
    details = json.loads(decision.to_json())["details"]["coverage"]
    assert details["standing"]["covered"] == 1
    assert [point["percent"] for point in details["curve"]] == [10, 50]


def test_requests_beyond_the_reference_hold_the_climb_and_then_give_up_undecided() -> None:
    rollout = begun()
    for _ in range(60):
        rollout = step(rollout, look(rollout, 600, beyond=30), NOW)
    assert share(rollout) == 0.1
    late = step(rollout, Tick(), NOW + timedelta(seconds=SETTINGS.rung_deadline_s + 1))
    assert (late.phase, late.verdict) == (Phase.ROLLING_BACK, Verdict.INCONCLUSIVE)
    assert "the reference is stale" in late.reason


def test_the_last_partial_rung_holds_for_coverage_and_says_so() -> None:
    rollout = begun(SETTINGS.model_copy(update={"coverage": ASKED.model_copy(update={"covered": (0.3, 0.95)})}))
    narrow = np.array([0.7, 0.3, 0, 0])
    for _ in range(40):
        rollout = step(rollout, look(rollout, 600, narrow), NOW)
        rollout = step(rollout, WeightsConfirmed(), NOW)
    assert rollout.phase is Phase.HOLDING
    assert "holding: 70.0% of the feature space" in rollout.diary[-1][1]
    assert {item.name: item.verdict for item in judge(rollout, NOW, {}).evidence}["coverage"] is Verdict.INCONCLUSIVE


def test_a_spec_that_asks_for_coverage_and_has_no_cells_never_promotes() -> None:
    """Nothing passes on silence."""
    rollout = replace(begun(), coverage=None)
    for _ in range(40):
        rollout = step(rollout, look(rollout, 600), NOW)
    assert share(rollout) == 0.1
    assert {item.name: item.verdict for item in judge(rollout, NOW, {}).evidence}["coverage"] is Verdict.INCONCLUSIVE


def test_a_record_from_before_coverage_is_still_read() -> None:
    rollout = begin("m", 2, "green", "p", "d", CanarySettings(), NOW, champion=(1, "blue"))
    old = rollout.to_dict()
    del old["coverage"], old["cells"], old["settings"]["coverage"]
    assert Rollout.from_dict(old) == rollout
    assert Rollout.from_dict(json.loads(json.dumps(begun().to_dict()))) == begun()


def test_the_plan_counts_the_requests_that_coverage_needs() -> None:
    quiet, reference = Traffic(300, 0.0, 0.0), (400, 300, 200, 100, 0)
    without, made = plan(SETTINGS, quiet), plan(SETTINGS, quiet, reference)
    assert (without.covering, made.covering) == (0, 209)
    wide = plan(SETTINGS, quiet, tuple([10] * 200))
    assert wide.covering is not None
    assert wide.requests is not None
    assert made.requests is not None
    assert wide.requests > made.requests > 0
    assert f"{wide.covering} of them the challenger's to cover the feature space" in sentence(wide)
    impossible = plan(
        SETTINGS.model_copy(update={"coverage": ASKED.model_copy(update={"covered": (0.9, 1.0)})}), quiet, (10**12, 1)
    )
    assert impossible.requests is None
    assert "never covered" in sentence(impossible)


def test_the_time_left_waits_for_coverage_too() -> None:
    seen = step(begun(), look(begun(), 900), NOW)
    hard = seen.settings.model_copy(update={"coverage": ASKED.model_copy(update={"least": 900})})
    easy, long = expected_seconds(seen), expected_seconds(replace(seen, settings=hard))
    assert easy is not None
    assert long is not None
    assert long > easy


def test_the_cells_are_those_of_the_newest_snapshot_or_else_the_champions() -> None:
    store, mine, theirs = (
        MemoryStore(),
        test_cells.CELLS,
        build_cells(test_cells.REFERENCE, FEATURES, test_cells.scores(test_cells.REFERENCE), 5),
    )
    with pytest.raises(ServingError, match="neither version 2 nor 1 has any"):
        cells_now("m", 2, (1, "blue"), store, SETTINGS)
    store.put(cells_key("m", 1), theirs.to_bytes())
    assert cells_now("m", 2, (1, "blue"), store, SETTINGS) == (cells_key("m", 1), Coverage.of(theirs))
    store.put(cells_key("m", 2), mine.to_bytes())
    assert cells_now("m", 2, (1, "blue"), store, SETTINGS) == (cells_key("m", 2), Coverage.of(mine))
    assert cells_now("m", 2, None, store, SETTINGS) is None
    assert cells_now("m", 2, (1, "blue"), store, CanarySettings()) is None


class Counted(World):
    """Its answers carry times and versions, as the observer writes them. narrow: every request is of one kind."""

    def __init__(self, narrow: bool = False) -> None:
        super().__init__()
        self.narrow = narrow

    def asked(self, rows: list[dict[str, object]]) -> pd.DataFrame:
        """What these requests asked for, by their place in the second."""
        number = np.array([int(str(row["request_id"])[-6:]) // 2000 for row in rows], dtype=int)
        number = number * 0 if self.narrow else number
        return pd.DataFrame(
            {
                "carrier": np.array(["UA", "B6", "ÅÄ", "UA", "B6"], dtype=object)[number % 5],
                "temp": ((number % 7) / 3 - 1).astype(np.float32),
                "hour": number % 11,
            }
        )

    def answers_seen(self, model: str, since: datetime) -> pd.DataFrame:
        seen = [row for row in self.rows if row["seen_at"] >= since]  # type: ignore[operator]
        times = pd.to_datetime(pd.Series([row["seen_at"] for row in seen]), utc=True)
        return self.asked(seen).assign(
            request_id=[str(row["request_id"]) for row in seen],
            seen_at=times,
            event_time=times,
            version=["2" if row["pool"] == "green" else "1" for row in seen],
        )


class Naming(Counted):
    """Every second request names its cell, and the gateway favours those in need."""

    cells: Cells

    def pause(self, seconds: float) -> None:
        first, split = len(self.rows), self.gateway.split(MODEL)
        super().pause(seconds)
        fresh = self.rows[first:]
        named = self.cells.assign(self.asked(fresh)).cell if fresh else ()
        for place, (row, cell) in enumerate(zip(fresh, named, strict=True)):
            row["cell"] = str(cell) if place % 2 else ""
            if split and split.needed and row["cell"] in {str(cell) for cell in split.needed.cells}:
                row["pool"] = "green" if place // 2 * 37 % 100 < split.needed.weights["green"] else "blue"

    def access_seen(self, model: str, since: datetime) -> pd.DataFrame:
        rows = super().access_seen(model, since)
        cells = [str(row["cell"]) for row in self.rows if row["seen_at"] >= since]  # type: ignore[operator]
        return rows.assign(cell=cells)


def driven(world: Counted, settings: CanarySettings, *, rehearsal: bool = False) -> Rollout:
    """A rollout on that world, to its end; its cells are made of a few seconds of ordinary traffic."""
    for version in (1, 2):
        world.lineage.register(
            MODEL, world.onnx[version], dagster_run_id=f"r{version}", snapshot_digest="s", snapshot_uri="u"
        )
    world.lineage.set_alias(MODEL, "champion", 1)
    ordinary = Counted()
    ordinary.pause(6)
    frame = ordinary.answers_seen(MODEL, EPOCH)
    cells = build_cells(frame, FEATURES, score(world.onnx[1], frame, FEATURES), 8)
    if isinstance(world, Naming):
        world.cells = cells
    world.gateway.set_split(MODEL, Split({"blue": 100}))
    key = cells_key(MODEL, 2)
    world.store.put(key, cells.to_bytes())
    rollout = begin(
        MODEL, 2, "green", "x", "d", settings, EPOCH, champion=(1, "blue"), coverage=(key, Coverage.of(cells))
    )
    rollout = replace(rollout, rehearsal=rehearsal)
    driver = Driver(
        "first",
        world.store,
        world,  # type: ignore[arg-type]
        world.gateway,  # type: ignore[arg-type]
        world,  # type: ignore[arg-type]
        world.lineage,  # type: ignore[arg-type]
        lambda _text: None,
        None,
        world.clock,
        world.pause,
    )
    return driver.drive(rollout)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_driver_counts_the_challengers_answers_by_cell(narrow: bool) -> None:
    settings = CanarySettings(
        mirror_requests=20, mirror_answers=40, hold_deadline_s=120, coverage=CoverageSettings(cells=8)
    )
    ended = driven(Counted(narrow), settings)
    assert ended.coverage is not None
    if narrow:
        assert (ended.phase, ended.verdict) == (Phase.ROLLED_BACK, Verdict.INCONCLUSIVE)
        assert "of the feature space was seen" in ended.reason
    else:
        assert ended.phase is Phase.PROMOTED, ended.reason
        assert sum(ended.coverage.seen) == sum(look.canary_requests for look in ended.guards.looks if look.share < 1)


def test_in_a_rehearsal_the_challengers_answers_are_those_of_its_pool() -> None:
    class Alike(Counted):
        def answers_seen(self, model: str, since: datetime) -> pd.DataFrame:
            return super().answers_seen(model, since).assign(version="2")

    limits = CoverageSettings(cells=8, covered=(0.9,), could_fail=(0.3,))
    settings = CanarySettings(mirror_requests=20, mirror_answers=40, hold_deadline_s=120, coverage=limits)
    ended = driven(Alike(), settings, rehearsal=True)
    assert ended.verdict is Verdict.PASS, ended.reason
    assert ended.coverage is not None
    assert sum(ended.coverage.seen) == ended.guards.canary_requests


def test_the_driver_favours_requests_that_name_a_cell_in_need_and_counts_them_apart() -> None:
    world = Naming()
    limits = CoverageSettings(cells=8, covered=(0.9,), could_fail=(0.3,), need_percent=40)
    ended = driven(
        world, CanarySettings(ladder=("mirror", 1, 100), mirror_requests=20, mirror_answers=40, coverage=limits)
    )
    assert ended.phase is Phase.PROMOTED, ended.reason
    assert ended.coverage is not None
    asked = [split for _, split in world.gateway.history if split.needed]
    assert len(asked[0].needed.cells) > len(asked[-1].needed.cells) > 0  # type: ignore[union-attr]
    assert all(split.needed.weights == {"green": 40, "blue": 60} for split in asked if split.needed)
    assert world.gateway.history[-1][1].needed is None
    sums = ended.guards.by_share()
    for share_ in (0.01, 0.4):
        assert sums[share_].canary_requests == pytest.approx(share_ * sums[share_].requests, abs=40)
    assert {(part.rung, part.share) for part in ended.coverage.parts} == {(0.01, 0.01), (0.01, 0.4)}
    assert sum(ended.coverage.seen) == sums[0.01].canary_requests + sums[0.4].canary_requests
