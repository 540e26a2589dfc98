"""What a measured figure holds for: the device by its model name, its driver, the threads of it that we may use."""

import os
import re
import shutil
import subprocess
from pathlib import Path

MIG_LINE = re.compile(r"^\s+MIG (?P<slice>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[^)]+)\)", re.MULTILINE)


def place(kind: str = "KIND_CPU", visible: str = "") -> dict[str, str]:
    """Device, config_name (its file in a package: `configs/<config_name>.pbtxt`), driver, threads.

    kind: `KIND_CPU`, or `KIND_GPU` for the GPU or MIG slice that a Triton started here would see first, which
    CUDA_VISIBLE_DEVICES tells: visible, '' where it is not set.
    """
    device, driver = cpu(), "none"
    if kind == "KIND_GPU":
        listing, table = _said("-L"), _said("--query-gpu=name,driver_version", "--format=csv,noheader")
        device, driver = gpu(listing, table, visible)
    threads = str(len(os.sched_getaffinity(0)))
    return {"device": device, "config_name": config_name(device), "driver": driver, "threads": threads}


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model name of the CPU; 'unknown CPU' where the system does not tell."""
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else "unknown CPU"


def gpu(listing: str, table: str, visible: str) -> tuple[str, str]:
    """Name of the first GPU, with its MIG slice where one is chosen or the only one, and the driver's version.

    listing, table: what `nvidia-smi -L` and `--query-gpu=name,driver_version` print; visible: CUDA_VISIBLE_DEVICES.

    >>> gpu("GPU 0: NVIDIA H100 (UUID: GPU-1)\\n  MIG 1g.10gb     Device  0: (UUID: MIG-7)", "NVIDIA H100, 550.54", "")
    ('NVIDIA H100 MIG 1g.10gb', '550.54')
    """
    if not table.strip():
        return "no GPU", "none"
    name, _, driver = table.splitlines()[0].rpartition(",")
    slices = {found["uuid"]: found["slice"] for found in MIG_LINE.finditer(listing)}
    chosen = slices.get(visible.split(",")[0]) or (
        next(iter(slices.values())) if len(set(slices.values())) == 1 else ""
    )
    return name.strip() + (f" MIG {chosen}" if chosen else ""), driver.strip()


def config_name(device: str) -> str:
    """The device as a file's name.

    >>> config_name("Intel(R) Xeon(R) Platinum 8488C")
    'intel-r-xeon-r-platinum-8488c'
    """
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:80] or "unknown"


def _said(*arguments: str) -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
