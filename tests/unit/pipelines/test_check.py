"""`trimtab check` finds every flaw, and names file, field, value and remedy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipelines.check import check
from pipelines.cli import main
from pipelines.environments import MODELS
from tests.fakes import MemoryStore


@pytest.fixture
def models(tmp_path: Path) -> Path:
    shutil.copytree(MODELS, tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "models"


def checked(models: Path) -> dict[str, list[dict[str, Any]]]:
    found = CliRunner().invoke(main, ["check", "--models", str(models), "--json"])
    flaws: dict[str, list[dict[str, Any]]] = json.loads(found.output)
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
        (
            "model.yaml",
            "drift:\n",
            "drift:\n  business_weights: {gate: 2}\n",
            "drift.business_weights.gate",
            "no input",
        ),
        (
            "model.yaml",
            "drift:\n",
            "drift:\n  business_weights: {temp: -1}\n",
            "drift.business_weights.temp",
            "equal to 0",
        ),
        ("features.yaml", "  SELECT\n", "  SELEKT\n", "sql", "DuckDB refuses it"),
        ("features.yaml", "AS late,", "AS was_late,", "label", "the SQL does not give it, only"),
        ("features.yaml", "w.precip,", "w.precip AS rain,", "columns.9.name", "the SQL does not give it, only"),
        ("features.yaml", "w.precip,", "w.precip AS temp,", "sql", "is given twice"),
        ("features.yaml", "version: 1", "version: 1\nversion: 2", "version", "is written twice: keep one"),
        ("features.yaml", "sources: [", "python: rows:flights\nsources: [", "python", "drop the other"),
        ("features.yaml", "sources: [flights, weather]", "", "sources", "is missing: name the tables"),
        ("features.yaml", "entity: flight_id\n", "", "entity", "is missing: add it"),
        ("features.yaml", "entity:", "entitty:", "entity", "is missing: add it"),
        ("features.yaml", "freshness_hours: 48", "freshness_hours: -1", "freshness_hours", "greater than 0"),
        ("model.yaml", "cooldown_hours: 240", "cooldown_hours: [240]", "cooldown_hours", "valid number"),
        ("model.yaml", "name:", "name: twice\nname:", "name", "is written twice: keep one"),
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


def line_with(models: Path, file: str, text: str) -> int:
    lines = (models / "flight_delay" / file).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if text in line]
    return found


@pytest.mark.parametrize(
    ("file", "before", "after", "at"),
    [
        ("model.yaml", "cadence: weekly", "cadence: yearly", "yearly"),
        ("model.yaml", "slices: [origin]", "slices: [carrier, orgin]", "orgin"),
        ("model.yaml", "persistence_hits: 1", "persistence_hits: 0", "persistence_hits"),
        ("model.yaml", "  days: 14", "  days: 14\n  colour: red", "colour: red"),
        ("features.yaml", "name: precip, type: float", "name: precip, type: rain", "type: rain"),
        ("features.yaml", "    w.temp, w.humid", "    w.temp w.humid", "w.temp w.humid"),
        ("features.yaml", "valid_from: 2013-01-01T00:00:00Z", "valid_from: yesterday", "yesterday"),
        ("features.yaml", "sources: [flights, weather]", "sources: [flights, weather", "columns:"),
    ],
)
def test_a_flaw_is_told_with_its_line(models: Path, file: str, before: str, after: str, at: str) -> None:
    changed(models, file, before, after)
    (flaw,) = checked(models)["flight_delay"]
    assert flaw["line"] == line_with(models, file, at)
    shown = CliRunner().invoke(main, ["check", "--models", str(models)]).output
    assert f"{file}:{flaw['line']}: {flaw['field']} = " in shown


@pytest.mark.parametrize(("ends", "flaw"), [("2013-06-01", "leaves a gap to"), ("2013-08-01", "overlaps")])
def test_versions_that_overlap_or_leave_a_gap_are_told_at_the_end_of_the_earlier(
    models: Path, ends: str, flaw: str
) -> None:
    file = models / "flight_delay/features.yaml"
    first = file.read_text()
    earlier = first.replace("freshness_hours", f"valid_to: {ends}T00:00:00Z\nfreshness_hours", 1)
    later = first.replace("version: 1", "version: 2").replace("2013-01-01T00", "2013-07-01T00", 1)
    file.write_text(f"{later}---\n{earlier}")
    (found,) = checked(models)["flight_delay"]
    assert found["field"] == "valid_to"
    assert found["line"] == line_with(models, "features.yaml", "valid_to")
    assert flaw in found["remedy"]
    assert "set it to 2013-07-01" in found["remedy"]


def test_a_flaw_of_a_later_version_is_found_before_it_is_valid(models: Path) -> None:
    file = models / "flight_delay/features.yaml"
    first = file.read_text()
    later = first.replace("version: 1", "version: 2").replace("2013-01-01T00", "2033-01-01T00", 1)
    first = first.replace("freshness_hours", "valid_to: 2033-01-01T00:00:00Z\nfreshness_hours", 1)
    file.write_text(f"{first}---\n{later.replace('AS late', 'AS delayed')}")
    (flaw,) = checked(models)["flight_delay"]
    assert flaw["field"] == "label"
    assert flaw["line"] > len(first.splitlines())


def stored(**tables: pa.Table) -> MemoryStore:
    store = MemoryStore()
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        store.put(f"raw/{name}.parquet", sink.getvalue().to_pybytes())
    return store


def test_a_column_that_a_source_lacks_is_told_at_its_line_in_the_sql(models: Path) -> None:
    from pipelines.models.flight_delay.source import raw_tables

    tables = {name: table.slice(0, 1) for name, table in raw_tables().items()}
    assert [item.flaws for item in check(models, stored(**tables))] == [()]
    lacking = {**tables, "weather": tables["weather"].drop_columns(["humid"])}
    ((flaw,),) = [item.flaws for item in check(models, stored(**lacking))]
    assert "humid" in flaw.remedy
    assert (flaw.field, flaw.line) == ("sql", line_with(models, "features.yaml", "w.humid"))
    del lacking["weather"]
    ((flaw,),) = [item.flaws for item in check(models, stored(**lacking))]
    assert flaw.field == "sources"
    assert "raw/weather.parquet: no such object" in flaw.remedy


def test_a_python_source_is_checked_without_being_run(models: Path) -> None:
    file = models / "flight_delay/features.yaml"
    head, _, _ = file.read_text().partition("# Flown flights")
    file.write_text(head.replace("sources: [flights, weather]", "python: rows:flights"))
    rows = models / "flight_delay/rows.py"
    rows.write_text("def flights(start, end, as_of):\n    raise RuntimeError('the warehouse was asked')\n")
    assert checked(models)["flight_delay"] == []
    rows.write_text("def flights(since):\n    return None\n")
    (flaw,) = checked(models)["flight_delay"]
    assert (flaw["field"], flaw["line"]) == ("python", line_with(models, "features.yaml", "python:"))
