"""A snapshot's newest row against the feature set's own limit, as a check beside the snapshot."""

from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.model import Model
from assets.snapshot.asset import feature_snapshot
from assets.snapshot.freshness import freshness
from assets.verdict import Verdict
from resources.features import FeatureRegistry
from tests.unit.snapshot.test_keeping import DAY, SPRING, feature_set, hours, stored

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("newest", "verdict", "said"),
    [
        (SPRING - 6 * HOUR, Verdict.PASS, "is 6.0 h old"),
        (SPRING - 7 * HOUR, Verdict.ERROR, "7 h before the snapshot's instant (freshness_hours: 6)"),
        (None, Verdict.ERROR, "NO DATA"),
    ],
)
def test_the_limit_is_the_greatest_age_and_nothing_is_no_freshness(
    newest: datetime | None, verdict: Verdict, said: str
) -> None:
    found = freshness(newest, SPRING, 6)
    assert found.verdict is verdict
    assert said in found.why
    assert (found.statistic, found.threshold) == ((SPRING - newest) / HOUR if newest else None, 6)


@pytest.mark.parametrize(("kept", "passed"), [(24, True), (20, True), (19, False), (0, False)])
def test_the_check_of_the_snapshot_reads_what_was_known_then(kept: int, passed: bool) -> None:
    start = SPRING.replace(hour=0)
    late = start + 2 * DAY  # the other rows of the day reach the sources only then
    rows = [(i, at, known if n < kept else late, value) for n, (i, at, known, value) in enumerate(hours(start, 24))]
    limited = feature_set(freshness_hours=5)
    model = Model("visits", "", ("team:a",), "visits", FeatureRegistry((limited,)), Path("recipe.py"))
    asset = feature_snapshot(model, dg.DailyPartitionsDefinition(start))
    done = dg.materialize([asset], partition_key=f"{start:%Y-%m-%d}", resources={"store": stored(rows)})
    assert done.success  # an old source is said, and stops nothing: what it gave is a snapshot all the same
    (check,) = done.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == ("freshness", passed)
    assert check.metadata["verdict"].value == ("PASS" if passed else "ERROR")
    assert check.severity is dg.AssetCheckSeverity.WARN
