"""What libraries are told before they are loaded, in whichever process of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resources.libraries import SILENT, first_processor, sorts_slowly, tell

ZEN_4 = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f avx512vl"
OTHERS = {
    "Zen 3": "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2",
    "Zen 5": "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nflags\t\t: fpu avx2 avx512f",
    "Intel": "vendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu avx2 avx512f",
    "Arm": "processor\t: 0\nFeatures\t: fp asimd",
    "no such file": first_processor(Path("/no/such/file")),
}
TOLD = """
import json, os, sys
__import__(sys.argv[1])
print(json.dumps({name: os.environ.get(name) for name in (*json.loads(sys.argv[2]), "NPY_DISABLE_CPU_FEATURES")}))
"""
SCORES = """
import numpy as np, pandas as pd
from assets.scoring import score
from tests.serving_stack import FEATURES, ROWS, tiny_onnx
print(len(score(tiny_onnx(), ROWS, FEATURES)))
"""


def test_only_zen_4_sorts_faster_without_avx_512() -> None:
    assert sorts_slowly(ZEN_4)
    assert [name for name, cpu in OTHERS.items() if sorts_slowly(cpu)] == []


def test_what_somebody_has_set_stays() -> None:
    environment = {"ORT_DISABLE_TELEMETRY": "0", "NPY_DISABLE_CPU_FEATURES": "AVX512_ICL"}
    tell(environment, ZEN_4)
    assert environment == SILENT | {"ORT_DISABLE_TELEMETRY": "0", "NPY_DISABLE_CPU_FEATURES": "AVX512_ICL"}


def fresh(code: str, *words: str, home: Path | None = None) -> str:
    """What a process prints that is told nothing by this one."""
    told = {*SILENT, "NPY_DISABLE_CPU_FEATURES"}
    environment = {name: value for name, value in os.environ.items() if name not in told}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | ({"HOME": str(home)} if home else {})
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("module", ["assets.drift.ks", "pipelines.definitions", "resources.store"])
def test_whatever_is_imported_first_tells_all(module: str) -> None:
    told = json.loads(fresh(TOLD, module, json.dumps(list(SILENT))))
    wanted = {**SILENT, "NPY_DISABLE_CPU_FEATURES": "X86_V4" if sorts_slowly(first_processor()) else None}
    assert told == wanted


def test_onnx_runtime_keeps_no_identifier_of_the_machine(tmp_path: Path) -> None:
    assert int(fresh(SCORES, home=tmp_path)) > 0
    assert [str(file) for file in tmp_path.rglob("*") if "Microsoft" in str(file)] == []
