"""The acceptance check of a machine, without starting a server."""

import json
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from pipelines import local
from pipelines.cli import main
from resources.local import doctor
from resources.local.check import FAIL, NOT_HERE, PASS
from resources.local.doctor import core_speed, examine, loaded, throughput, wake_up
from resources.local.round_trip import round_trip_us

QUIET = {1: 9000.0, 2: 11000.0, 4: 14000.0}


def test_a_curve_above_the_expected_one_passes_and_shows_both() -> None:
    check = throughput(QUIET, 100_000, 25, 3)
    assert check.result == PASS
    assert "1 clients 9,000/s" in check.evidence
    assert "expected of this machine at least 1,650, 1,950, 2,200; others take 3 %" in check.evidence


@pytest.mark.parametrize("measured", [{}, {1: 9000.0, 2: 11000.0}, QUIET | {4: 500.0}])
def test_a_curve_that_sinks_or_is_missing_fails_with_a_remedy(measured: dict[int, float]) -> None:
    check = throughput(measured, 100_000, 25, 3)
    assert check.result == FAIL
    assert "badly configured" in check.remedy


def test_a_slow_machine_is_told_from_a_badly_configured_one() -> None:
    tenth = {clients: rate / 10 for clients, rate in QUIET.items()}
    assert throughput(tenth, 10_000, 250, 3).result == PASS
    assert core_speed(10_000, 3).remedy.startswith("the machine is slow")
    assert "badly configured" in throughput(tenth, 100_000, 25, 3).remedy
    assert core_speed(100_000, 3).result == PASS


def test_a_busy_machine_is_told_from_a_slow_and_from_a_badly_configured_one() -> None:
    tenth = {clients: rate / 10 for clients, rate in QUIET.items()}
    for check in (core_speed(10_000, 60), wake_up(400, 60), throughput(tenth, 100_000, 25, 60)):
        assert check.result == FAIL
        assert check.remedy.startswith("the machine is busy")


def test_a_machine_that_wakes_slowly_is_told_from_a_badly_configured_one() -> None:
    """Cores that halt when idle: 1 900 requests a second at 140 000 runs, and 91 µs to another process and back."""
    halting = {1: 1900.0, 2: 2900.0, 4: 2900.0}
    assert wake_up(91, 0).result == PASS
    assert throughput(halting, 140_000, 91, 0).result == PASS
    assert "badly configured" in throughput({1: 190.0, 2: 290.0, 4: 290.0}, 140_000, 91, 0).remedy
    assert wake_up(400, 0).remedy.startswith("idle cores sleep too deep")


def test_a_round_trip_wakes_another_process_and_leaves_none() -> None:
    before = len(psutil.Process().children())
    assert 1 < round_trip_us(0.05) < 1e6
    assert len(psutil.Process().children()) == before


def test_another_triton_than_the_tried_one_fails() -> None:
    assert loaded("2.51.0").result == PASS
    assert loaded("2.5.1").result == FAIL


def test_what_is_installed_is_what_was_pinned_together() -> None:
    found = doctor._versions(local.SERVERS)
    assert found.result == PASS
    assert "nvidia_pytriton-0.7.0" in found.evidence


def test_another_version_than_the_pinned_one_fails_by_name(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["nvidia-pytriton==0.7.0"]\n')
    (tmp_path / ".venv/lib/python3.11/site-packages/nvidia_pytriton-0.6.0.dist-info").mkdir(parents=True)
    found = doctor._versions(tmp_path / ".venv")
    assert (found.result, found.evidence) == (FAIL, "missing are nvidia_pytriton-0.7.0")


def test_without_servers_the_rest_is_not_here_and_the_exit_code_is_1(tmp_path: Path) -> None:
    results = {check.name: check.result for check in examine(tmp_path / ".venv")}
    assert results["versions"] == FAIL
    assert results["throughput"] == NOT_HERE
    said = CliRunner().invoke(main, ["doctor", "--servers", str(tmp_path / ".venv"), "--json"])
    assert said.exit_code == 1
    assert {check["name"] for check in json.loads(said.output)} == set(results)
