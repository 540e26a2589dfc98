"""What a machine's GPUs are good for: driver and architecture for this Triton, and slices that can really be made.

Everything is asked of `nvidia-smi`. Source of the limits:
https://docs.nvidia.com/deeplearning/triton-inference-server/release-notes/rel-24-10.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from resources.local.check import FAIL, NOT_HERE, PASS, Check, run, said

# Triton 2.51 is release 24.10, built on CUDA 12.6.2.
DRIVER = 560
# Older branches that its forward-compatibility package knows, on data-centre cards.
BRANCHES = {470: (470, 57), 525: (525, 85), 535: (535, 86), 545: (545, 23)}
CAPABILITY = 6.0
FIELDS = "index,name,driver_version,compute_cap,mig.mode.current"
PROFILE = re.compile(r"MIG\s+(1g\.\d+gb)\s+(\d+)\s+([1-9]\d*)/\d+")
CREATED = re.compile(r"Successfully created GPU instance ID\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Card:
    """One line of nvidia-smi. mig: Enabled, Disabled or [N/A] where the card knows no slices."""

    index: str
    name: str
    driver: str
    capability: str
    mig: str


def examine(nvidia_smi: str | None, make_slices: bool) -> Iterator[Check]:
    """make_slices: create the smallest slice on each card with MIG on, list it, and take it away again."""
    if nvidia_smi is None:
        yield Check("GPU driver", NOT_HERE, "no nvidia-smi: models run on the CPU")
        yield Check("MIG slices", NOT_HERE, "no GPU")
        return
    found = [cells(line) for line in said(nvidia_smi, f"--query-gpu={FIELDS}", "--format=csv,noheader").splitlines()]
    cards = [Card(*fields) for fields in found if len(fields) == len(FIELDS.split(","))]
    if not cards:
        yield Check("GPU driver", FAIL, "nvidia-smi does not answer", "install the driver that fits the card")
        yield Check("MIG slices", NOT_HERE, "no driver")
        return
    yield driver(cards)
    yield slices(nvidia_smi, cards, make_slices)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def driver(cards: list[Card]) -> Check:
    """Every card's driver and architecture are ones that this Triton runs on."""
    evidence = "; ".join(f"{card.name}, driver {card.driver}, compute {card.capability}" for card in cards)
    wrong = [why for card in cards if (why := _unfit(card))]
    return Check("GPU driver", FAIL, evidence, wrong[0]) if wrong else Check("GPU driver", PASS, evidence)


def _unfit(card: Card) -> str:
    major, minor = ([int(part) for part in re.findall(r"\d+", card.driver)] + [0, 0])[:2]
    if major < DRIVER and (major, minor) < BRANCHES.get(major, (DRIVER, 0)):
        older = ", ".join(f"{a}.{b}" for a, b in BRANCHES.values())
        return (
            f"Triton 2.51 (CUDA 12.6) needs driver {DRIVER} or later; on data-centre cards also {older} or later of it"
        )
    try:
        known = float(card.capability)
    except ValueError:
        return ""  # a driver too old to be asked; its own number was judged
    return f"Triton 2.51 needs compute capability {CAPABILITY} or later" if known < CAPABILITY else ""


def slices(nvidia_smi: str, cards: list[Card], make: bool) -> Check:
    """What slices there are, or on demand that one can be made: Triton sees one slice a process."""
    able = [card for card in cards if card.mig == "Enabled"]
    if not able:
        off = "MIG is off: one Triton has the whole card"
        remedy = "to cut it: nvidia-smi -i 0 -mig 1" if any(card.mig == "Disabled" for card in cards) else ""
        return Check("MIG slices", NOT_HERE, off, remedy)
    if make:
        made = [_made(nvidia_smi, card) for card in able]
        return next((check for check in made if check.result == FAIL), made[0])
    listed = [line.strip() for line in said(nvidia_smi, "-L").splitlines() if "MIG" in line]
    if listed:
        return Check("MIG slices", PASS, "; ".join(listed))
    return Check(
        "MIG slices", NOT_HERE, "MIG is on, no slice is there", "make sure that one can be made: --make-slices"
    )


def _made(nvidia_smi: str, card: Card) -> Check:
    mig = (nvidia_smi, "mig", "-i", card.index)
    code, profiles = run(*mig, "-lgip")
    found = PROFILE.search(profiles)
    if code or found is None:
        full = "free one of the slices that are there" if code == 0 else "run it as root"
        return Check("MIG slices", FAIL, f"GPU {card.index} has no free 1g slice: {_last(profiles)}", full)
    before = set(_uuids(said(nvidia_smi, "-L")))
    code, told = run(*mig, "-cgi", found[2], "-C")
    created = CREATED.search(told)
    try:
        new = [uuid for uuid in _uuids(said(nvidia_smi, "-L")) if uuid not in before]
    finally:
        # What was made to try goes again, also when it was made by half.
        gone = created is None or _destroyed(mig, created[1])
    if code or created is None or not new:
        return Check("MIG slices", FAIL, f"{found[1]} on GPU {card.index}: {_last(told)}", "run it as root, then again")
    evidence = f"{found[1]} made on GPU {card.index}, listed as {new[0]}"
    if not gone:
        remedy = f"nvidia-smi mig -i {card.index} -dci -gi {created[1]}; then -dgi -gi {created[1]}"
        return Check("MIG slices", FAIL, f"{evidence}, but it can't be taken away", remedy)
    return Check("MIG slices", PASS, f"{evidence}, taken away again")


def _destroyed(mig: tuple[str, ...], instance: str) -> bool:
    codes = [run(*mig, how, "-gi", instance)[0] for how in ("-dci", "-dgi")]
    return codes[-1] == 0


def _uuids(listing: str) -> list[str]:
    return re.findall(r"UUID: (MIG-[^)\s]+)", listing)


def _last(text: str) -> str:
    return text.splitlines()[-1].strip() if text else "nvidia-smi said nothing"
