"""MLflow is waited for as long as the caller has patience, and no longer."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pipelines.environments import STEP_PATIENCE_S, environment, ports
from resources.errors import LineageError
from resources.lineage import Lineage
from resources.mlflow_health import reach
from tests.serving_stack import free_ports


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def test_a_person_hears_at_once_that_nothing_answers() -> None:
    slept: list[float] = []
    (port,) = free_ports(1)
    with pytest.raises(LineageError, match=rf"alias: MLflow at http://127\.0\.0\.1:{port} does not answer: .*start it"):
        reach(f"http://127.0.0.1:{port}", "alias", 1, 0, slept.append)
    assert slept == []


def test_a_step_waits_longer_between_tries_and_then_says_how_often_it_tried() -> None:
    slept: list[float] = []
    (port,) = free_ports(1)
    with pytest.raises(LineageError, match=r"does not answer \(7 tries\)"):
        reach(f"http://127.0.0.1:{port}", "registering", 1, 20, slept.append)
    assert slept == [0.5, 1, 2, 4, 8, 4.5]
    assert sum(slept) == 20


def test_a_server_that_comes_back_in_time_is_no_error() -> None:
    (port,) = free_ports(1)
    server: list[HTTPServer] = []

    def come_back(_: float) -> None:
        if not server:
            server.append(HTTPServer(("127.0.0.1", port), Healthy))
            threading.Thread(target=server[0].serve_forever, daemon=True).start()

    reach(f"http://127.0.0.1:{port}", "registering", 5, 60, come_back)
    server[0].shutdown()
    server[0].server_close()


def test_only_steps_wait_for_mlflow_a_command_does_not() -> None:
    made = ports(environment({}))
    assert made.lineage.patience_s == 0
    patient = made.as_resources()["lineage"]
    assert isinstance(patient, Lineage)
    assert patient.patience_s == STEP_PATIENCE_S
