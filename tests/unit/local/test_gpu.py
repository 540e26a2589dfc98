"""GPUs by what nvidia-smi says, in its own words. Not run on a card here: the words are those of its user guide."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from resources.local.check import FAIL, NOT_HERE, PASS, Check
from resources.local.gpu import Card, driver, examine

CARD = "0, NVIDIA A100-SXM4-40GB, 560.35.03, 8.0, {mig}"
PROFILES = """\
+-----------------------------------------------------------------------------+
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|
|   0  MIG 1g.5gb        19     {free}/7        4.75       No     14     0     0   |
|                                                             1     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 7g.40gb        0     1/1        39.25      No     98     5     0   |
|                                                             7     1     1   |
+-----------------------------------------------------------------------------+"""
MADE = """\
Successfully created GPU instance ID 13 on GPU  0 using profile MIG 1g.5gb (ID 19)
Successfully created compute instance ID  0 on GPU  0 GPU instance ID 13 using profile MIG 1g.5gb (ID  0)"""
WHOLE = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)"
SLICE = "  MIG 1g.5gb      Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)"


def smi(folder: Path, mig: str = "Enabled", answers: Mapping[str, str] | None = None) -> str:
    """An nvidia-smi that answers as recorded and writes down what it was asked. answers: shell by kind of question."""
    told = {"query": f"echo '{CARD.format(mig=mig)}'", "-L": f"echo '{WHOLE}'", **(answers or {})}
    cases = {
        "*query-gpu*": told["query"],
        "-L": told["-L"],
        "*-lgip": told.get("-lgip", "exit 3"),
        "*-cgi*": told.get("-cgi", "exit 4"),
        "*-dci*": told.get("-dci", "true"),
        "*-dgi*": told.get("-dgi", "true"),
    }
    file = folder / "nvidia-smi"
    lines = "\n".join(f"{pattern}) {body} ;;" for pattern, body in cases.items())
    file.write_text(f'#!/bin/sh\necho "$*" >> {folder}/asked\ncase "$*" in\n{lines}\n*) exit 9 ;;\nesac\n')
    file.chmod(0o755)
    return str(file)


def able(folder: Path, answers: Mapping[str, str] | None = None, free: int = 7) -> str:
    """A card on which a slice can be made: it is listed from then on until it is taken away."""
    mark = folder / "made"
    recorded = {
        "-lgip": f"cat <<'END'\n{PROFILES.format(free=free)}\nEND\n",
        "-cgi": f"touch {mark}; cat <<'END'\n{MADE}\nEND\n",
        "-L": f"echo '{WHOLE}'; test ! -e {mark} || echo '{SLICE}'",
        "-dgi": f"rm {mark}",
    }
    return smi(folder, answers=recorded | dict(answers or {}))


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def checks(nvidia_smi: str | None, make: bool = False) -> tuple[Check, Check]:
    first, second = examine(nvidia_smi, make)
    return first, second


def test_a_machine_without_a_gpu_is_no_failure() -> None:
    assert [check.result for check in checks(None)] == [NOT_HERE, NOT_HERE]


def test_a_driver_that_does_not_answer_fails(tmp_path: Path) -> None:
    assert [check.result for check in checks(smi(tmp_path, answers={"query": "exit 9"}))] == [FAIL, NOT_HERE]


def test_a_card_is_named_with_its_driver(tmp_path: Path) -> None:
    found, _ = checks(smi(tmp_path))
    assert (found.result, found.evidence) == (PASS, "NVIDIA A100-SXM4-40GB, driver 560.35.03, compute 8.0")


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("570.86.15", True),
        ("560.28", True),
        ("555.42.02", False),
        ("545.23.08", True),
        ("545.22", False),
        ("535.183.01", True),
        ("535.54.03", False),
        ("525.85.12", True),
        ("470.57.02", True),
        ("470.42.01", False),
        ("450.80.02", False),
    ],
)
def test_a_driver_fits_when_this_triton_runs_on_it(version: str, fits: bool) -> None:
    check = driver([Card("0", "A100", version, "8.0", "Disabled")])
    assert (check.result == PASS) is fits
    assert bool(check.remedy) is not fits


def test_a_card_too_old_for_this_triton_fails() -> None:
    check = driver([Card("0", "A100", "560.1", "8.0", "[N/A]"), Card("1", "M60", "560.1", "5.2", "[N/A]")])
    assert (check.result, check.remedy) == (FAIL, "Triton 2.51 needs compute capability 6.0 or later")


@pytest.mark.parametrize(("mig", "remedy"), [("Disabled", "to cut it: nvidia-smi -i 0 -mig 1"), ("[N/A]", "")])
def test_a_card_without_slices_is_no_failure(tmp_path: Path, mig: str, remedy: str) -> None:
    _, found = checks(smi(tmp_path, mig=mig), make=True)
    assert (found.result, found.remedy) == (NOT_HERE, remedy)


def test_slices_are_listed_and_nothing_is_made_unless_asked(tmp_path: Path) -> None:
    _, found = checks(smi(tmp_path, answers={"-L": f"echo '{WHOLE}'; echo '{SLICE}'"}))
    assert (found.result, found.evidence) == (PASS, SLICE.strip())
    assert not any("-cgi" in words for words in asked(tmp_path))


def test_a_slice_is_made_listed_and_taken_away_again(tmp_path: Path) -> None:
    _, found = checks(able(tmp_path), make=True)
    assert found.result == PASS
    assert "1g.5gb made on GPU 0, listed as MIG-c7384736-a75d-5afc-978f-d2f1294409fd" in found.evidence
    assert asked(tmp_path)[-2:] == ["mig -i 0 -dci -gi 13", "mig -i 0 -dgi -gi 13"]
    assert "mig -i 0 -cgi 19 -C" in asked(tmp_path)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"-lgip": "echo Insufficient Permissions; exit 4"}, "no free 1g slice: Insufficient Permissions"),
        ({"-cgi": "echo Unable to create a GPU instance; exit 19"}, "1g.5gb on GPU 0: Unable to create"),
        ({"-L": f"echo '{WHOLE}'"}, "1g.5gb on GPU 0: Successfully created compute instance"),
        ({"-dgi": "exit 5"}, "but it can't be taken away"),
    ],
)
def test_a_slice_that_can_not_be_made_fails_in_nvidia_smi_s_words(
    tmp_path: Path, answers: dict[str, str], told: str
) -> None:
    _, found = checks(able(tmp_path, answers), make=True)
    assert found.result == FAIL
    assert told in found.evidence
    assert found.remedy


def test_a_card_whose_slices_are_all_taken_fails(tmp_path: Path) -> None:
    _, found = checks(able(tmp_path, free=0), make=True)
    assert (found.result, found.remedy) == (FAIL, "free one of the slices that are there")


def test_a_slice_made_but_not_listed_is_taken_away_too(tmp_path: Path) -> None:
    checks(able(tmp_path, {"-L": f"echo '{WHOLE}'"}), make=True)
    assert asked(tmp_path)[-1] == "mig -i 0 -dgi -gi 13"
