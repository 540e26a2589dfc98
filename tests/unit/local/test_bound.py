"""What is bound to a process ends with it, however that ends."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from resources.local.bound import bound

PARENT = """
import subprocess, sys, time
from resources.local.bound import bound
child = subprocess.Popen(bound(["sleep", "60"]), start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_program_ends_with_its_starter_even_by_kill_9() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    _until(lambda: child.cmdline()[:1] == ["sleep"])
    parent.kill()
    parent.wait()
    child.wait(10)


def test_it_is_the_program_itself_with_its_arguments_and_its_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(bound(["sh", "-c", f"echo $0 > {tmp_path / 'said'}; exit 3", "a b"]), check=False)
    assert done.returncode == 3
    assert (tmp_path / "said").read_text() == "a b\n"


def test_it_does_not_start_once_its_starter_is_gone(tmp_path: Path) -> None:
    command = bound(["touch", str(tmp_path / "started")])
    command[4] = str(os.getppid())  # as if another had adopted it
    assert subprocess.run(command, check=False).returncode == 1
    assert not (tmp_path / "started").exists()


def _until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)
