"""SIGKILL as tests want it: the signal is only sent by `os.kill`, the process dies a moment later."""

import os
import signal
import time

import psutil


def kill(pid: int, patience_s: float = 10) -> None:
    """Return when the process is gone, or a zombie that its parent has not yet read."""
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while _lives(process):
        assert time.monotonic() < deadline, f"process {pid} survived SIGKILL for {patience_s} s"
        time.sleep(0.01)


def _lives(process: psutil.Process) -> bool:
    """A zombie with other threads still holds its ports."""
    try:
        if not process.is_running():
            return False
        return process.status() != psutil.STATUS_ZOMBIE or len(os.listdir(f"/proc/{process.pid}/task")) > 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
