"""How the libraries behave in every process of ours. They read it from the environment as they are loaded, so the
packages say it first of all. What somebody has set already stays.
"""

import sys
from collections.abc import MutableMapping
from pathlib import Path

# Nothing is told to anyone outside. ONNX Runtime does from 1.29 on, and keeps an identifier of the machine.
SILENT = {
    "DAGSTER_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",
    "WHYLOGS_NO_ANALYTICS": "True",
}
CPU = Path("/proc/cpuinfo")


def tell(environment: MutableMapping[str, str], cpu: str) -> None:
    """cpu: the first processor's part of /proc/cpuinfo, or more of it."""
    for name, value in SILENT.items():
        environment.setdefault(name, value)
    if sorts_slowly(cpu) and "numpy" not in sys.modules:
        environment.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4")


def sorts_slowly(cpu: str) -> bool:
    """Whether numpy sorts faster without AVX-512: on AMD's Zen 4, five times (1e6 floats in 12 ms instead of 56).

    Its compression to memory is microcoded, and that sort does one for each vector (AMD, Software Optimization Guide
    for the Zen 4 Microarchitecture, 2.11.2; numpy/x86-simd-sort issue 6). AVX2 sorts as fast there as AVX-512 does
    elsewhere. The price: without it logarithms and powers take about four times as long, log1p thirteen (1 to 14 ms).

    >>> sorts_slowly("vendor_id : AuthenticAMD\\ncpu family : 25\\nflags : sse avx2 avx512f")
    True
    """
    fields: dict[str, str] = {}
    for line in cpu.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    zen_3_or_4 = (fields.get("vendor_id"), fields.get("cpu family")) == ("AuthenticAMD", "25")
    return zen_3_or_4 and "avx512f" in fields.get("flags", "").split()


def first_processor(file: Path = CPU, most: int = 8192) -> str:
    """'' where there is no such file."""
    try:
        with file.open() as text:
            return text.read(most)
    except OSError:
        return ""
