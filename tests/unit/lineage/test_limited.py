"""A command beside this process: its lines, its end, and the kernel's count of what ran out of memory."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from resources import limited


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_lines_come_as_they_are_written_and_the_end_of_the_errors_is_kept() -> None:
    heard: list[str] = []
    ended = limited.run(python("import sys; print('a'); print('b'); sys.exit('x' * 9000 + 'last')"), heard.append)
    assert heard == ["a", "b"]
    assert ended.code == 1
    assert ended.said.endswith("last")
    assert len(ended.said) <= limited.SAID


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_told_by_its_number(number: int) -> None:
    assert limited.run(python(f"import os; os.kill(os.getpid(), {number})"), print).code == -number


def test_an_error_of_the_listener_ends_the_command_too() -> None:
    pids: list[int] = []

    def listener(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        limited.run(python("import os, time; print(os.getpid(), flush=True); time.sleep(60)"), listener)
    assert not psutil.pid_exists(pids[0])


@pytest.mark.parametrize(
    ("text", "count"),
    [("low 0\nhigh 3\noom 4\noom_kill 2\n", 2), ("oom_kill_disable 0\nunder_oom 0\noom_kill 5", 5), ("max 1\n", 0)],
)
def test_the_kernels_count_is_read_in_both_its_forms(tmp_path: Path, text: str, count: int) -> None:
    file = tmp_path / "memory.events"
    file.write_text(text)
    assert limited.oom_kills([tmp_path / "none", file]) == count


def test_processes_ended_for_want_of_memory_while_it_ran_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 3\n")
    code = f"import os, pathlib; pathlib.Path({str(file)!r}).write_text('oom_kill 4'); os.kill(os.getpid(), 9)"
    ended = limited.run(python(code), print, [file])
    assert (ended.code, ended.oom_kills) == (-9, 1)
