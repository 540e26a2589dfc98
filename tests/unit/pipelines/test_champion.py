import pytest

from assets.champion import challenger_of
from resources.errors import LineageError
from tests.fakes_lineage import MemoryLineage


def test_a_model_without_a_challenger_is_told_what_to_do() -> None:
    with pytest.raises(LineageError, match="churn has no challenger: register a version"):
        challenger_of("churn", MemoryLineage())  # type: ignore[arg-type]


def test_the_challenger_is_the_version_with_that_alias() -> None:
    lineage = MemoryLineage()
    for number in (1, 2):
        lineage.register("churn", bytes([number]), dagster_run_id=f"r{number}", snapshot_digest="s", snapshot_uri="u")
    lineage.set_alias("churn", "challenger", 2)
    assert challenger_of("churn", lineage).version == 2  # type: ignore[arg-type]
