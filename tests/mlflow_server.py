"""A real MLflow server on SQLite in a folder of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.serving_stack import SERVERS, free_ports


@contextmanager
def running_mlflow(
    folder: Path, timeout_s: float = 90, port: int | None = None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Its address, and what stops it at once. It stands in the servers' environment when that holds MLflow.

    In the same folder and on the same port it is the server that was stopped, started again.
    """
    port = free_ports(1)[0] if port is None else port
    url = f"http://127.0.0.1:{port}"
    apart = SERVERS / "bin/mlflow"
    program = [str(apart)] if apart.exists() else [sys.executable, "-m", "mlflow"]
    log = folder / "mlflow.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *program,
                "server",
                "--workers=1",
                "--host=127.0.0.1",
                f"--port={port}",
                f"--backend-store-uri=sqlite:///{folder}/mlflow.db",
                f"--artifacts-destination={folder}/artifacts",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            start_new_session=True,
        )

    def stop() -> None:
        # uvicorn's worker is a child in the same session.
        if process.poll() is None:
            os.killpg(process.pid, 15)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

    try:
        _await(url, process, log, timeout_s)
        yield url, stop
    finally:
        stop()


def _await(url: str, process: "subprocess.Popen[bytes]", log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            said = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"MLflow ended while starting:\n{said}"
            assert time.monotonic() < deadline, f"MLflow is not up within {timeout_s} s:\n{said}"
            time.sleep(0.2)
