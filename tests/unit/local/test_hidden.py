"""Arguments that a program gets and nobody else sees."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from resources.local import hidden
from resources.local.keys import ensure_keys
from resources.local.triton import restricted

TOLD = "import json,os,sys; print(json.dumps([sys.argv[1:], open('/proc/self/cmdline').read()]), flush=True); "
SECRETS = ["--key=s3cret", "--other=also secret"]


def command(code: str) -> tuple[list[str], dict[str, str]]:
    words, variables = hidden.hidden(SECRETS)
    program = [sys.executable, "-I", hidden.__file__, sys.executable, "-c", TOLD + code]
    return [*program, "before", words[0], "between", words[1]], {**os.environ, **variables}


def start(code: str) -> "subprocess.Popen[str]":
    words, environment = command(code)
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_a_program_reads_its_hidden_arguments_and_ps_shows_placeholders() -> None:
    with start("sys.stdin.read() if False else None; import time; time.sleep(30)") as process:
        arguments, shown = told(process)
        seen = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.kill()
    assert arguments == ["before", SECRETS[0], "between", SECRETS[1]]
    for text in (shown, seen):
        assert "s3cret" not in text
        assert text.rstrip("\0").split("\0")[-4:] == ["before", "@hidden0@", "between", "@hidden1@"]


def test_at_no_moment_of_its_start_does_ps_show_them() -> None:
    shown = set()
    with start("import time; time.sleep(0.3)") as process:
        while process.poll() is None:
            shown.add(Path(f"/proc/{process.pid}/cmdline").read_bytes())
    assert len(shown) >= 2
    assert not any(b"s3cret" in text for text in shown)


def test_the_program_is_the_process_that_was_started_and_has_no_child_it_does_not_know() -> None:
    import psutil

    with start("import time; time.sleep(30)") as process:
        told(process)
        assert psutil.Process(process.pid).children() == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == -signal.SIGTERM


def test_where_tracing_is_refused_it_starts_open_and_says_so(tmp_path: Path) -> None:
    """A process has one tracer at most: this test is the tracer of its child already."""
    words, environment = command("pass")
    libc = ctypes.CDLL(None)
    child = os.fork()
    if child == 0:
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            libc.ptrace(0, 0, 0, 0)  # TRACEME
            os.execve(words[0], words, environment)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            break
        number = os.WSTOPSIG(status)
        libc.ptrace(hidden.CONTINUE, child, 0, 0 if number == signal.SIGTRAP else number)
    assert os.WIFEXITED(status)
    assert json.loads((tmp_path / "out").read_text())[0] == ["before", "between"]
    assert (tmp_path / "err").read_text().startswith(hidden.OPEN)


def test_pointers_are_found_by_count_and_first_address() -> None:
    import struct

    arguments = ["program", "@hidden0@", "plain"]
    stack = b"junk" * 4 + struct.pack("<QQQQQ", 3, 5000, 5008, 5018, 0)
    environment = b"A=1\0TRIMTAB_HIDDEN_0=--key\0"
    found = hidden.patches(stack, 1000, arguments, 5000, environment, 6000)
    assert found == {1000 + 16 + 16: 6000 + len(b"A=1\0TRIMTAB_HIDDEN_0=")}


def test_the_key_of_model_control_is_a_file_of_its_owner_and_no_argument(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    key = keys.triton_control.read_text()
    assert len(key) == 40
    words, variables = restricted(["tritonserver"], key)
    assert key not in " ".join(words)
    assert all(text.endswith(f":x-trimtab-control={key}") for text in variables.values())
