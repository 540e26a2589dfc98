from pathlib import Path

import dagster as dg
import pytest

from pipelines.environments import MODELS
from pipelines.factory import build_model_defs, partitions_by_cadence
from pipelines.spec import load_spec, load_specs
from resources.errors import SpecError

GOOD = """
name: churn
description: Who leaves.
owners: ["team:growth"]
feature_set: customers
cadence: weekly
start: 2024-01-05T00:00:00Z
"""


def written(folder: Path, text: str, name: str = "churn") -> Path:
    file = folder / name / "model.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("change", "field", "remedy"),
    [
        ("name: churn|name: Churn!", "name", "match pattern"),
        ("cadence: weekly|cadence: fortnightly", "cadence", "hourly"),
        ("start: 2024-01-05T00:00:00Z|start: 2024-01-05T00:00:00", "start", "has no time zone"),
        ('owners: ["team:growth"]|owners: [growth]', "owners", "neither 'team:NAME' nor an e-mail"),
        ("feature_set: customers|feature_sets: customers", "feature_set", "is missing: add it"),
        ("cadence: weekly|cadence: weekly\ncolour: red", "colour", "is no field of a spec"),
        (
            "cadence: weekly|cadence: weekly\ntask: multiclass",
            "task",
            "one number an answer: make a binary model of each",
        ),
        ("cadence: weekly|cadence: weekly\ntask: regression\nshadow: {task: binary}", "(file)", "write the same"),
        ("cadence: weekly|cadence: weekly\ntask: regression\nfallback: {enabled: true}", "(file)", "disable it"),
        ("cadence: weekly|cadence: weekly\ndrift: {alpha: 2}", "drift.alpha", "less than 1"),
        ("cadence: weekly|cadence: weekly\ncanary: {ladder: [5, 1, 100]}", "canary", "ladder"),
    ],
)
def test_a_wrong_field_is_named_with_its_file_value_and_remedy(
    tmp_path: Path, change: str, field: str, remedy: str
) -> None:
    before, after = change.split("|")
    file = written(tmp_path, GOOD.replace(before, after))
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    assert caught.value.field == field
    assert str(file) in str(caught.value)
    assert remedy in str(caught.value)


def test_the_shadow_compares_by_the_task_of_the_model(tmp_path: Path) -> None:
    spec = load_spec(written(tmp_path, GOOD + "task: regression\nshadow: {days: 21}\n"))
    assert (spec.shadow.task, spec.shadow.loss, spec.shadow.days) == ("regression", "absolute", 21)


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="must be a mapping"):
        load_spec(written(tmp_path, "- just\n- a list\n"))


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "one")
    written(tmp_path, GOOD, "two")
    with pytest.raises(SpecError, match="used by two models"):
        load_specs(tmp_path)


def test_paths_start_at_the_specs_own_folder(tmp_path: Path) -> None:
    spec = load_spec(written(tmp_path, GOOD))
    assert spec.recipe == tmp_path / "churn" / "recipe.py"
    assert spec.features == tmp_path / "churn" / "features.yaml"


def test_a_weekly_partition_ends_on_the_weekday_the_model_starts_on(tmp_path: Path) -> None:
    spec = load_spec(written(tmp_path, GOOD))
    partitions = partitions_by_cadence([spec])["weekly"]
    window = partitions.time_window_for_partition_key("2024-01-12")
    assert (window.start.day, window.end.day) == (12, 19)


def test_weekly_models_of_two_weekdays_are_refused(tmp_path: Path) -> None:
    friday = load_spec(written(tmp_path, GOOD, "one"))
    monday = load_spec(written(tmp_path, GOOD.replace("churn", "fraud").replace("01-05", "01-08"), "two"))
    with pytest.raises(SpecError, match="share one weekday"):
        partitions_by_cadence([friday, monday])


def test_the_flights_model_loads() -> None:
    (spec,) = load_specs(Path(__file__).parents[3] / "pipelines" / "models")
    assert spec.name == "flight_delay"
    assert spec.start.weekday() == 4


def test_every_room_and_every_check_says_on_its_page_what_it_is_for() -> None:
    spec = load_spec(MODELS / "flight_delay" / "model.yaml")
    asked = spec.model_copy(update={"fallback": spec.fallback.model_copy(update={"enabled": True})})
    assets = [asset for asset in build_model_defs(asked).assets or [] if isinstance(asset, dg.AssetsDefinition)]
    rooms = {key.to_user_string(): text for asset in assets for key, text in asset.descriptions_by_key.items()}
    checks = {check.name: check.description for asset in assets for check in asset.check_specs}
    assert (len(rooms), len(checks)) > (7, 20)
    assert [name for name, text in (rooms | checks).items() if not text] == []
