"""Devices by name."""

from pathlib import Path

import pytest

from pipelines.environments import environment, ports
from resources.local.device import config_name, cpu, gpu, place
from resources.packages import NAMES

LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)
  MIG 1g.10gb     Device  0: (UUID: MIG-11)
  MIG 3g.40gb     Device  1: (UUID: MIG-22)
"""
TABLE = "NVIDIA H100 80GB HBM3, 550.54.15\n"


@pytest.mark.parametrize(
    ("listing", "visible", "name"),
    [
        (LISTING, "MIG-22", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
        (LISTING, "MIG-11,MIG-22", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        (LISTING, "", "NVIDIA H100 80GB HBM3"),
        (LISTING.splitlines()[0], "0", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_gpu_is_named_with_the_slice_that_is_used(listing: str, visible: str, name: str) -> None:
    assert gpu(listing, TABLE, visible) == (name, "550.54.15")


def test_no_gpu_is_said() -> None:
    assert gpu("", "", "") == ("no GPU", "none")


def test_a_cpu_is_named_by_its_model(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9R14 96-Core Processor\n")
    assert cpu(info) == "AMD EPYC 9R14 96-Core Processor"
    assert cpu(tmp_path / "none") == "unknown CPU"


@pytest.mark.parametrize(
    "device", ["AMD EPYC 9R14", "Intel(R) Xeon(R) @ 2.1GHz", "NVIDIA H100 MIG 1g.10gb", "…", "x" * 300]
)
def test_every_devices_configuration_may_lie_in_a_package(device: str) -> None:
    assert NAMES.fullmatch(f"configs/{config_name(device)}.pbtxt")


def test_the_place_here_is_complete() -> None:
    here = place()
    assert set(here) == {"device", "config_name", "driver", "threads"}
    assert all(here.values())


def test_the_slice_that_the_environment_names_is_the_one_that_is_profiled() -> None:
    assert ports(environment({"CUDA_VISIBLE_DEVICES": "MIG-22"})).profiler.visible_devices == "MIG-22"
    assert ports(environment({})).profiler.visible_devices == ""
