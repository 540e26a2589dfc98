"""One question about a machine, answered: pass, fail or 'not here', with the evidence and the remedy."""

import subprocess
from dataclasses import dataclass

PASS, FAIL, NOT_HERE = "pass", "fail", "not here"


@dataclass(frozen=True, slots=True)
class Check:
    """result: pass, fail or 'not here'; remedy: what to do, '' where there is nothing to do."""

    name: str
    result: str
    evidence: str
    remedy: str = ""


def said(*command: str) -> str:
    """What a command printed; '' when it failed, hung or is not there."""
    code, text = run(*command)
    return text if code == 0 else ""


def run(*command: str) -> tuple[int, str]:
    """Exit code and all that a command printed; 127 with the reason when it can't be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, f"{done.stdout.strip()}\n{done.stderr.strip()}".strip()
