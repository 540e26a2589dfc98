"""Feature sets as people write them: every flaw is named with its file, field, value and remedy."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from resources.errors import SpecError
from resources.features import FeatureRegistry

FIRST: dict[str, Any] = {
    "name": "visits",
    "version": 1,
    "valid_from": "2020-01-01T00:00:00Z",
    "entity": "id",
    "event_time": "at",
    "known_at": "known",
    "label": "bought",
    "label_known_at": "bought_known",
    "columns": [{"name": "age", "type": "float"}, {"name": "country", "type": "string"}],
    "sources": ["visits"],
    "sql": "SELECT * FROM visits",
}


def write(folder: Path, *documents: dict[str, Any]) -> Path:
    file = folder / "features.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


def then(year: int) -> datetime:
    return datetime(year, 1, 1, tzinfo=UTC)


def test_the_version_valid_at_an_instant_is_the_one_resolved(tmp_path: Path) -> None:
    earlier = {**FIRST, "valid_to": "2021-01-01T00:00:00Z"}
    later = {**FIRST, "version": 2, "valid_from": "2021-01-01T00:00:00Z"}
    registry = FeatureRegistry.load(write(tmp_path, later, earlier))
    assert registry.resolve("visits", then(2020)).version == "1"
    assert registry.resolve("visits", then(2021)).version == "2"
    assert registry.resolve("visits", then(2030)).version == "2"


def test_a_folder_gives_the_sets_of_all_its_files(tmp_path: Path) -> None:
    for name in ("visits", "orders"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, {**FIRST, "name": name})
    assert [item.name for item in FeatureRegistry.load(tmp_path).sets] == ["orders", "visits"]


def test_features_keep_the_order_they_were_written_in(tmp_path: Path) -> None:
    registry = FeatureRegistry.load(write(tmp_path, FIRST))
    assert list(registry.resolve("visits", then(2020)).features.items()) == [("age", "float"), ("country", "string")]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"columns": [{"name": "age", "type": "decimal"}]}, "columns.0.type"),
        ({"columns": [{"name": "age", "type": "float"}] * 2}, "columns"),
        ({"columns": [{"name": "bought", "type": "float"}]}, "columns.0.name"),
        ({"columns": [{"name": "entity", "type": "string"}]}, "columns.0.name"),
        ({"columns": [{"name": "a; DROP", "type": "float"}]}, "columns.0.name"),
        ({"columns": []}, "columns"),
        ({"label": "entity"}, "label"),
        ({"valid_from": "2020-01-01T00:00:00"}, "valid_from"),
        ({"valid_to": "2019-01-01T00:00:00Z"}, "valid_to"),
        ({"version": "../1"}, "version"),
        ({"freshness_hours": 0}, "freshness_hours"),
        ({"colums": []}, "colums"),
        ({"sql": ""}, "sql"),
    ],
)
def test_a_flaw_is_named_with_its_file_and_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    file = write(tmp_path, {**FIRST, **change})
    with pytest.raises(SpecError) as raised:
        FeatureRegistry.load(file)
    assert raised.value.file == str(file)
    assert raised.value.field == field
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("valid_to", "flaw"),
    [(None, "overlaps"), ("2021-06-01T00:00:00Z", "overlaps"), ("2020-06-01T00:00:00Z", "leaves a gap")],
)
def test_versions_neither_overlap_nor_leave_a_gap(tmp_path: Path, valid_to: str | None, flaw: str) -> None:
    earlier = {**FIRST, "valid_to": valid_to}
    later = {**FIRST, "version": 2, "valid_from": "2021-01-01T00:00:00Z"}
    with pytest.raises(SpecError, match=flaw) as raised:
        FeatureRegistry.load(write(tmp_path, earlier, later))
    assert raised.value.field == "valid_to"
    assert "2021-01-01" in raised.value.remedy


def test_a_version_number_is_used_once(tmp_path: Path) -> None:
    later = {**FIRST, "valid_from": "2021-01-01T00:00:00Z"}
    with pytest.raises(SpecError, match="raise it"):
        FeatureRegistry.load(write(tmp_path, {**FIRST, "valid_to": later["valid_from"]}, later))


@pytest.mark.parametrize("content", ["", "- a list", "a: [broken"])
def test_what_is_no_feature_set_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "features.yaml").write_text(content)
    with pytest.raises(SpecError, match=r"features\.yaml"):
        FeatureRegistry.load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        FeatureRegistry.load(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="no such file in the folder"):
        FeatureRegistry.load(tmp_path)


def test_an_unknown_set_or_an_instant_before_the_first_version_is_refused(tmp_path: Path) -> None:
    registry = FeatureRegistry.load(write(tmp_path, FIRST))
    with pytest.raises(SpecError, match="choose one of visits"):
        registry.resolve("vists", then(2020))
    with pytest.raises(SpecError, match="first starts at 2020"):
        registry.resolve("visits", then(2019))
