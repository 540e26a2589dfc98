"""`trimtab check` finds every flaw, and names file, field, value and remedy."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.cli import main
from pipelines.environments import MODELS


@pytest.fixture
def models(tmp_path: Path) -> Path:
    shutil.copytree(MODELS, tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "models"


def checked(models: Path) -> dict[str, list[dict[str, str]]]:
    found = CliRunner().invoke(main, ["check", "--models", str(models), "--json"])
    flaws: dict[str, list[dict[str, str]]] = json.loads(found.output)
    assert found.exit_code == (1 if any(flaws.values()) else 0)
    return {Path(file).parent.name: of for file, of in flaws.items()}


def changed(models: Path, file: str, before: str, after: str) -> None:
    path = models / "flight_delay" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_the_models_of_this_project_hold(models: Path) -> None:
    assert checked(models) == {"flight_delay": []}
    assert CliRunner().invoke(main, ["check"]).output == "✓ flight_delay: weekly, 12 inputs\n"


@pytest.mark.parametrize(
    ("file", "before", "after", "field", "remedy"),
    [
        ("model.yaml", "cadence: weekly", "cadence: yearly", "cadence", "'hourly', 'daily' or 'weekly'"),
        ("model.yaml", "slices: [origin]", "slices: [orgin]", "training.slices.0", "choose one of carrier, origin"),
        ("model.yaml", "feature_set: flights", "feature_set: trains", "name", "choose one of flights"),
        ("model.yaml", "start: 2013-01-04", "start: 2012-12-28", "valid_from", "no version of flights is valid then"),
        ("features.yaml", "  SELECT\n", "  SELEKT\n", "sql", "DuckDB refuses it"),
        ("features.yaml", "  SELECT\n", "  DROP TABLE x; SELECT\n", "sql", "one SELECT and nothing else"),
        ("features.yaml", "type: int,", "type: integer,", "columns.3.type", "'string', 'float', 'int' or 'bool'"),
        ("recipe.py", "def fit(", "def train(", "fit", "define `fit(frame, target, seed)`"),
        ("recipe.py", "target: str, seed: int", "target: str", "fit", "it is called as fit(frame, target, seed)"),
        ("recipe.py", "import pandas", "import pandaz", "import", "does not run: No module named 'pandaz'"),
    ],
)
def test_a_flaw_is_named(models: Path, file: str, before: str, after: str, field: str, remedy: str) -> None:
    changed(models, file, before, after)
    (flaw,) = checked(models)["flight_delay"]
    assert flaw["field"] == field
    assert remedy in flaw["remedy"]
    assert flaw["file"].endswith(("model.yaml", "features.yaml", "recipe.py"))


def test_all_flaws_are_told_at_once(models: Path) -> None:
    changed(models, "model.yaml", "slices: [origin]", "slices: [orgin]")
    changed(models, "features.yaml", "  SELECT\n", "  SELEKT\n")
    changed(models, "recipe.py", "def fit(", "def train(")
    assert [flaw["field"] for flaw in checked(models)["flight_delay"]] == ["sql", "fit", "training.slices.0"]


def test_models_that_do_not_go_together_are_told_at_the_later_one(models: Path) -> None:
    shutil.copytree(models / "flight_delay", models / "other")
    spec = models / "other/model.yaml"
    spec.write_text(spec.read_text().replace("start: 2013-01-04", "start: 2013-01-05"))
    found = checked(models)
    assert found["flight_delay"] == []
    assert [flaw["field"] for flaw in found["other"]] == ["name", "start"]


def test_a_folder_without_models_is_no_success(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["check", "--models", str(tmp_path)])
    assert found.exit_code == 1
    assert "`trimtab new` makes one" in found.output
