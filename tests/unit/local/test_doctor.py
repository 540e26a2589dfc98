"""The acceptance check of a machine, without starting a server."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines import local
from pipelines.cli import main
from resources.local import doctor
from resources.local.doctor import FAIL, NOT_HERE, PASS, examine, throughput


def test_a_curve_above_the_expected_one_passes_and_shows_both() -> None:
    check = throughput({1: 9000.0, 2: 11000.0, 4: 14000.0})
    assert check.result == PASS
    assert "1 clients 9,000/s" in check.evidence
    assert "expected at least 2,000" in check.evidence


@pytest.mark.parametrize("measured", [{}, {1: 9000.0, 2: 11000.0}, {1: 9000.0, 2: 11000.0, 4: 500.0}])
def test_a_curve_that_sinks_or_is_missing_fails_with_a_remedy(measured: dict[int, float]) -> None:
    check = throughput(measured)
    assert check.result == FAIL
    assert check.remedy


def test_what_is_installed_is_what_was_pinned_together() -> None:
    found = doctor._versions(local.SERVERS)
    assert found.result == PASS
    assert "nvidia_pytriton-0.7.0" in found.evidence


def test_another_version_than_the_pinned_one_fails_by_name(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["nvidia-pytriton==0.7.0"]\n')
    (tmp_path / ".venv/lib/python3.11/site-packages/nvidia_pytriton-0.6.0.dist-info").mkdir(parents=True)
    found = doctor._versions(tmp_path / ".venv")
    assert (found.result, found.evidence) == (FAIL, "missing are nvidia_pytriton-0.7.0")


def smi(folder: Path, script: str) -> str:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_a_machine_without_a_gpu_is_no_failure() -> None:
    assert [check.result for check in doctor._gpu(None)] == [NOT_HERE, NOT_HERE]


def test_a_driver_that_does_not_answer_fails(tmp_path: Path) -> None:
    assert [check.result for check in doctor._gpu(smi(tmp_path, "exit 9"))] == [FAIL, NOT_HERE]


def test_slices_are_listed(tmp_path: Path) -> None:
    listed = 'case "$1" in -L) echo "  MIG 1g.18gb Device 0: (UUID: MIG-1)";; *) echo "H200, 570, Enabled";; esac'
    driver, slices = doctor._gpu(smi(tmp_path, listed))
    assert (driver.result, driver.evidence) == (PASS, "H200, 570, Enabled")
    assert (slices.result, slices.evidence) == (PASS, "MIG 1g.18gb Device 0: (UUID: MIG-1)")


def test_without_servers_the_rest_is_not_here_and_the_exit_code_is_1(tmp_path: Path) -> None:
    results = {check.name: check.result for check in examine(tmp_path / ".venv")}
    assert results["versions"] == FAIL
    assert results["throughput"] == NOT_HERE
    said = CliRunner().invoke(main, ["doctor", "--servers", str(tmp_path / ".venv"), "--json"])
    assert said.exit_code == 1
    assert {check["name"] for check in json.loads(said.output)} == set(results)
