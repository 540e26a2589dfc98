"""`trimtab doctor` on this machine, with a real Triton."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from resources.local.check import FAIL, NOT_HERE, PASS
from resources.local.doctor import EXPECTED_SHARE

pytestmark = pytest.mark.integration

# What no load on the machine changes.
SURE = ("versions", "model loaded", "model control", "metrics")


def test_every_check_has_evidence_what_fails_a_remedy_and_the_exit_code_says_whether_one_did() -> None:
    started = time.monotonic()
    command = [sys.executable, "-m", "pipelines.cli", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    print(done.stdout, done.stderr, f"{time.monotonic() - started:.1f} s")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert {check["result"] for check in checks.values()} <= {PASS, FAIL, NOT_HERE}
    assert all(check["evidence"] for check in checks.values())
    assert all(check["remedy"] for check in checks.values() if check["result"] == FAIL)
    assert done.returncode == any(check["result"] == FAIL for check in checks.values())
    assert {name: checks[name]["result"] for name in SURE} == dict.fromkeys(SURE, PASS)
    assert "nv_inference_request_success" in checks["metrics"]["evidence"]
    curve = checks["throughput"]["evidence"]
    assert all(f"{clients} clients " in curve for clients in EXPECTED_SHARE), "the curve was not measured"
    if checks["throughput"]["result"] == FAIL:
        assert "busy" in checks["throughput"]["remedy"], "a quiet machine with these versions reaches the curve"
    left = [item for item in psutil.process_iter(["cmdline"]) if "trimtab-doctor-" in str(item.info["cmdline"])]
    assert left == []
