"""What is bound to a process ends with it, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from resources.local.bound import bound

PARENT = """
import subprocess, sys, time
from resources.local.bound import bound
started = subprocess.Popen(bound(sys.argv[1:]), start_new_session=True)
print(started.pid, flush=True)
time.sleep(60)
"""


def running(watcher: psutil.Process) -> dict[str, psutil.Process]:
    """By command line, what runs below it."""
    found = {}
    for child in watcher.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found[" ".join(child.cmdline())] = child
    return found


@pytest.mark.parametrize(
    ("command", "below"),
    [
        (["sleep", "60"], {"sleep 60"}),
        # Of a session of their own, and deaf to what a terminal or a supervisor says.
        (["sh", "-c", "trap '' TERM HUP INT; setsid sleep 61 & setsid sleep 62"], {"sleep 61", "sleep 62"}),
    ],
    ids=["program", "its children"],
)
def test_all_ends_with_its_starter_even_by_kill_9(command: list[str], below: set[str]) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    watcher = psutil.Process(int(parent.stdout.readline()))
    _until(lambda: below <= set(running(watcher)))
    processes = [watcher, *running(watcher).values()]
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(processes, timeout=10)[1] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_what_a_program_leaves_ends_with_it_and_its_signal_is_told(number: signal.Signals) -> None:
    started = subprocess.Popen(bound(["sh", "-c", "setsid sleep 63 & exec sleep 60"]), start_new_session=True)
    watcher = psutil.Process(started.pid)
    _until(lambda: {"sleep 60", "sleep 63"} <= set(running(watcher)))
    left = running(watcher)["sleep 63"]
    running(watcher)["sleep 60"].send_signal(number)
    assert started.wait(10) == -number
    assert not left.is_running()


def test_what_is_sent_to_the_group_is_the_programs_to_answer() -> None:
    script = "trap 'exit 7' TERM; while true; do sleep .05; done"
    started = subprocess.Popen(bound(["sh", "-c", script]), start_new_session=True)
    _until(lambda: any(line.startswith("sleep") for line in running(psutil.Process(started.pid))))
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(10) == 7


def test_it_is_the_program_itself_with_its_arguments_and_its_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(bound(["sh", "-c", f"echo $0 > {tmp_path / 'said'}; exit 3", "a b"]), check=False)
    assert done.returncode == 3
    assert (tmp_path / "said").read_text() == "a b\n"


def test_a_program_that_is_not_there_is_named() -> None:
    done = subprocess.run(bound(["no-such-program"]), check=False, capture_output=True, text=True)
    assert done.returncode == 127
    assert done.stderr.startswith("no-such-program does not start: ")


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
