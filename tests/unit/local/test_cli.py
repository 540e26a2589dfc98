import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.cli import main
from resources.local.ledger import Ledger


def test_help_teaches_the_first_steps_in_the_order_people_take_them() -> None:
    said = CliRunner().invoke(main, ["--help"]).output
    assert "trimtab up        start everything" in said
    commands = said[said.index("Commands:") :]
    assert commands.index("up ") < commands.index("status ") < commands.index("down ")


@pytest.mark.parametrize("command", ["up", "status", "down"])
def test_every_command_explains_itself(command: str) -> None:
    found = CliRunner().invoke(main, [command, "--help"])
    assert found.exit_code == 0
    assert "--home" in found.output


@pytest.mark.parametrize("value", ["mlflow", "mlflow=", "=1", "mlflow=many"])
def test_a_port_that_is_no_assignment_is_refused_with_an_example(tmp_path: Path, value: str) -> None:
    found = CliRunner().invoke(main, ["up", "--home", str(tmp_path / "h"), "--port", value])
    assert found.exit_code == 2
    assert "as in mlflow=5001" in found.output
    assert not (tmp_path / "h").exists()


def test_our_errors_are_one_line_without_a_traceback(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["status", "--home", str(tmp_path)])
    assert found.exit_code == 1
    assert found.output.startswith(f"Error: {tmp_path}: no stack was started here")
    assert "Traceback" not in found.output


def test_down_where_nothing_runs_is_no_error(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["down", "--home", str(tmp_path)])
    assert (found.exit_code, found.output) == (0, "nothing was running\n")
    assert json.loads(CliRunner().invoke(main, ["down", "--home", str(tmp_path), "--json"]).output) == {"stopped": []}


def test_status_of_a_stopped_stack_says_so_and_exits_1(tmp_path: Path) -> None:
    from pipelines import local

    Ledger(tmp_path).place(str(local.SERVERS), local.blueprint(tmp_path).preferred)
    found = CliRunner().invoke(main, ["status", "--home", str(tmp_path), "--json"])
    assert found.exit_code == 1
    parts = {part["name"]: part["state"] for part in json.loads(found.output)}
    assert len(parts) == 13
    assert set(parts.values()) == {"stopped"}
    assert "not started" in CliRunner().invoke(main, ["status", "--home", str(tmp_path)]).output
