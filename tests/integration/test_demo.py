"""The main job as a user runs it: the walk must stay whole at every commit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from resources.local.processes import marked

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def result(home: Path) -> dict[str, object]:
    """Through 24 March: an alarm that is answered with no, and one that ends in a promotion."""
    file = home / "out.json"
    command = [sys.executable, "-m", "pipelines.cli", "demo", "--home", str(home / "stack"), "--json", str(file)]
    ended = subprocess.run([*command, "--through", "2013-03-24"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, object] = json.loads(file.read_text())
    return found


def test_no_client_request_fails_over_all_loads_and_weight_changes(result: dict[str, object]) -> None:
    assert result["failed_requests"] == 0, result["failures"]


def test_a_challenger_is_promoted_and_a_refusal_is_on_record(result: dict[str, object]) -> None:
    assert [promotion["version"] for promotion in result["promotions"]] == [2]  # type: ignore[attr-defined]
    assert all(refusal["why"] for refusal in result["refusals"])  # type: ignore[attr-defined]
    assert "shadow" in [refusal["gate"] for refusal in result["refusals"]]  # type: ignore[attr-defined]


def test_the_log_is_complete(result: dict[str, object]) -> None:
    complete = result["completeness"]
    assert complete["access"] == 1.0  # type: ignore[index]
    assert complete["answers"] >= 0.999  # type: ignore[index]
    weeks = result["weeks"]
    assert complete["requests"] >= sum(week["served"] for week in weeks)  # type: ignore[index,attr-defined]


def test_every_week_has_its_verdict_and_its_scores(result: dict[str, object]) -> None:
    whole = result["weeks"][:-1]  # type: ignore[index]
    assert [week["start"][:10] for week in whole] == [
        "2013-02-01",
        "2013-02-08",
        "2013-02-15",
        "2013-02-22",
        "2013-03-01",
        "2013-03-08",
        "2013-03-15",
    ]
    assert all(week["verdicts"]["drift"] in ("PASS", "FAIL") for week in whole)
    assert all(0.5 < week["auc_managed"] < 1 and 0 < week["brier_managed"] < 0.5 for week in whole)


def test_the_page_is_written_and_nothing_is_left_running(result: dict[str, object], home: Path) -> None:
    assert "<table>" in (home / "stack" / "demo.html").read_text()
    assert marked(home / "stack") == []
