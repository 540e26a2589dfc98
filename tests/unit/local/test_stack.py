import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from resources.errors import PortTaken, StackError
from resources.local.ledger import Ledger, Record
from resources.local.part import Part
from resources.local.ports import HOST
from resources.local.processes import find, marked
from resources.local.stack import Blueprint, Health, down, status, up
from tests.killing import kill
from tests.unit.local.small_parts import STUBBORN, plan, sleeper, web_plan

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    yield folder
    down(folder)
    assert marked(folder.resolve()) == []


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def health(home: Path, *parts: Part, timeout_s: float = 5) -> dict[str, Health]:
    return {part.name: part for part in status(home, parts, datetime.now(UTC), timeout_s)}


def pids(home: Path) -> dict[str, int]:
    return {name: record.pid for name, record in Ledger(home).read().parts.items()}


def never(_started: datetime) -> None:
    raise ValueError("still asleep")


def test_a_part_starts_only_after_those_it_needs_are_ready(home: Path) -> None:
    events: list[tuple[str, str]] = []
    parts = [sleeper("web", after=("database", "store")), sleeper("database"), sleeper("store", after=("database",))]
    up(home, plan(*parts), report=lambda part, state, _s: events.append((part, state)))
    for before, after in (("database", "store"), ("store", "web"), ("database", "web")):
        assert events.index((before, "ready")) < events.index((after, "starting"))


def test_parts_that_need_nothing_of_each_other_start_together(home: Path) -> None:
    def after_a_second(started: datetime) -> None:
        if (datetime.now(UTC) - started).total_seconds() < 1:
            raise ValueError("not yet")

    start = time.monotonic()
    up(home, plan(*(sleeper(f"part-{n}", ready=after_a_second) for n in range(4))))
    assert 1 <= time.monotonic() - start < 3


def test_a_server_that_answers_is_healthy_and_is_gone_after_down(home: Path, free_port: int) -> None:
    blueprint = web_plan({"web.http": free_port})
    contents = up(home, blueprint)
    parts = blueprint.build(contents.ports)
    found = health(home, *parts)["web"]
    assert (found.state, found.address, found.pid) == ("healthy", f"http://{HOST}:{free_port}", pids(home)["web"])
    assert found.memory_mb > 1
    assert down(home) == ["web"]
    assert health(home, *parts)["web"].state == "stopped"


def test_up_again_leaves_healthy_parts_alone(home: Path) -> None:
    parts = [sleeper("database"), sleeper("web", after=("database",))]
    up(home, plan(*parts))
    before = pids(home)
    states: list[str] = []
    up(home, plan(*parts), report=lambda _part, state, _s: states.append(state))
    assert pids(home) == before
    assert states == ["running", "running"]


def test_up_again_starts_what_died_and_nothing_else(home: Path) -> None:
    parts = [sleeper("database"), sleeper("web", after=("database",))]
    up(home, plan(*parts))
    before = pids(home)
    kill(before["web"])
    assert health(home, *parts)["web"].reason == f"process {before['web']} is gone: see logs/web.log"
    up(home, plan(*parts))
    after = pids(home)
    assert after["database"] == before["database"]
    assert after["web"] != before["web"]
    assert all(part.healthy for part in health(home, *parts).values())


def test_up_again_replaces_a_part_that_runs_but_does_not_work(home: Path) -> None:
    up(home, plan(sleeper("web")))
    ill = pids(home)["web"]

    def only_the_next(_started: datetime) -> None:
        if pids(home)["web"] == ill:
            raise ValueError("ill")

    up(home, plan(sleeper("web", ready=only_the_next)))
    assert not psutil.pid_exists(ill)
    assert pids(home)["web"] != ill


def test_a_part_that_dies_while_starting_is_named_with_the_end_of_its_log(home: Path) -> None:
    died = ("sh", "-c", "seq 1 100; echo no room for me; exit 3")
    with pytest.raises(StackError) as caught:
        up(home, plan(sleeper("database"), sleeper("web", after=("database",), ready=never, command=died)))
    said = str(caught.value).splitlines()
    assert said[0] == f"web ended with code 3 while starting; last lines of {home}/logs/web.log:"
    assert [line.strip() for line in said[1:]] == [*(str(n) for n in range(82, 101)), "no room for me"]
    assert marked(home) == []
    assert pids(home) == {}


def test_a_command_that_does_not_exist_is_an_error_of_its_part(home: Path) -> None:
    with pytest.raises(StackError, match=r"web: .*no-such-server"):
        up(home, plan(sleeper("web", command=("no-such-server",))))


def test_a_part_that_never_gets_ready_says_why(home: Path) -> None:
    with pytest.raises(StackError, match=r"web is not ready after 0\.3 s: ValueError: still asleep"):
        up(home, plan(sleeper("web", ready=never, patience_s=0.3)))
    assert marked(home) == []


def test_a_failed_up_leaves_parts_that_ran_before_it(home: Path) -> None:
    up(home, plan(sleeper("database")))
    before = pids(home)
    with pytest.raises(StackError):
        up(home, plan(sleeper("database"), sleeper("web", ready=never, patience_s=0.2)))
    assert pids(home) == before
    assert health(home, sleeper("database"))["database"].healthy


def test_a_default_port_that_is_taken_falls_to_the_next(home: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        contents = up(home, web_plan({"web.http": taken}))
    assert contents.ports["web.http"] > taken


@pytest.mark.parametrize("explicit", [False, True])
def test_a_port_that_is_taken_between_choice_and_start_falls_to_the_next_unless_it_was_asked_for(
    home: Path, free_port: int, explicit: bool
) -> None:
    wanted = free_port
    with ExitStack() as others:

        def build(ports: Mapping[str, int]) -> list[Part]:
            if ports["web.http"] == wanted:
                others.enter_context(socket.create_server((HOST, wanted)))
            return list(web_plan({}).build(ports))

        raced = Blueprint(Path("servers"), {"web.http": wanted}, build)
        if explicit:
            with pytest.raises(PortTaken, match=f"^web: port {wanted} was taken meanwhile"):
                up(home, raced, {"web.http": wanted})
        else:
            assert up(home, raced).ports["web.http"] > wanted


def test_a_port_asked_for_that_is_taken_is_one_error_with_part_and_port(home: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(StackError, match=f"^web: port {taken} is taken by another process: choose another with"):
            up(home, web_plan({"web.http": 8000}), {"web.http": taken})
    assert marked(home) == []


def test_addresses_stay_over_down_and_up(home: Path, free_port: int) -> None:
    up(home, web_plan({"web.http": 8000}), {"web.http": free_port})
    down(home)
    assert up(home, web_plan({"web.http": 8000})).ports == {"web.http": free_port}


def test_a_second_up_at_the_same_time_gets_one_clear_error(home: Path) -> None:
    go, errors = threading.Event(), []

    def when_told(_started: datetime) -> None:
        if not go.is_set():
            raise ValueError("not yet")

    first = threading.Thread(target=lambda: up(home, plan(sleeper("web", ready=when_told))))
    first.start()
    while "web" not in pids(home):
        time.sleep(0.02)
    try:
        up(home, plan(sleeper("web")))
    except StackError as error:
        errors.append(str(error))
    go.set()
    first.join()
    assert errors == [f"{home}: another `trimtab up` or `down` (process {os.getpid()}) is at work: wait for it"]
    assert health(home, sleeper("web"))["web"].healthy


def test_a_full_disk_is_said_before_anything_starts(home: Path) -> None:
    with pytest.raises(StackError, match=r"0\.5 GB free, 2 GB needed"):
        up(home, plan(sleeper("web")), free_bytes=lambda _folder: 512 * 1024**2)
    assert not (home / "stack.json").exists()


def test_a_server_that_ignores_the_request_to_end_is_killed_with_its_children(home: Path) -> None:
    up(home, plan(sleeper("web", command=("bash", "-c", STUBBORN), grace_s=0.5)))
    time.sleep(0.2)
    tree = psutil.Process(pids(home)["web"]).children(recursive=True)
    assert tree
    start = time.monotonic()
    down(home)
    assert time.monotonic() - start < 4
    assert not any(find(process.pid, process.create_time()) for process in tree)


def test_down_is_harmless_when_nothing_runs(home: Path) -> None:
    assert down(home) == []
    up(home, plan(sleeper("web")))
    assert down(home) == ["web"]
    assert down(home) == []


def test_down_writes_nothing_into_a_folder_that_is_no_home(tmp_path: Path) -> None:
    down(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_down_ends_dependents_first(home: Path) -> None:
    order: list[str] = []
    up(home, plan(sleeper("database"), sleeper("store", after=("database",)), sleeper("web", after=("store",))))
    down(home, report=lambda part, state, _s: order.append(part) if state == "stopped" else None)
    assert order == ["web", "store", "database"]


def killed_up(home: Path, number: int) -> None:
    """Run `up` in a process of its own, and end that process while its second part is starting."""
    script = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(PROJECT)!r})
        from resources.local.stack import up
        from tests.unit.local.small_parts import plan, sleeper
        def never(_started): raise ValueError
        up(Path({str(home)!r}), plan(sleeper("database"), sleeper("web", after=("database",), ready=never)))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while "web" not in pids(home):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    process.wait(20)


def test_an_up_that_was_killed_leaves_parts_that_down_finds(home: Path) -> None:
    killed_up(home, signal.SIGKILL)
    assert len(marked(home)) == 2
    assert sorted(down(home)) == ["database", "web"]
    assert marked(home) == []


def test_an_interrupted_up_stops_what_it_started(home: Path) -> None:
    killed_up(home, signal.SIGINT)
    assert marked(home) == []
    assert pids(home) == {}


@pytest.mark.parametrize("recovery", ["down", "up"])
def test_a_part_that_was_started_but_never_noted_is_found(home: Path, recovery: str) -> None:
    up(home, plan(sleeper("web")))
    lost = pids(home)["web"]
    Ledger(home).remove("web")
    if recovery == "down":
        down(home)
    else:
        up(home, plan(sleeper("web")))
        assert pids(home)["web"] != lost
    assert not psutil.pid_exists(lost)


def test_children_of_a_part_survive_an_up_though_they_lead_sessions(home: Path) -> None:
    parent = ("bash", "-c", "setsid sleep 600 & wait")
    up(home, plan(sleeper("database", command=parent)))
    time.sleep(0.2)
    (child,) = psutil.Process(pids(home)["database"]).children()
    up(home, plan(sleeper("database", command=parent)))
    assert child.is_running()


def test_a_process_that_got_the_number_of_a_dead_part_is_never_touched(home: Path) -> None:
    up(home, plan(sleeper("web")))
    innocent = subprocess.Popen(["sleep", "600"])
    try:
        ledger = Ledger(home)
        old = ledger.read().parts["web"]
        kill(old.pid)
        ledger.add(
            Record("web", innocent.pid, old.created - 100, old.started_at, "", {}, (), old.stop_signal, old.grace_s)
        )
        assert find(innocent.pid, old.created - 100) is None
        assert down(home) == []
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_broken_ledger_stops_up_but_not_down(home: Path) -> None:
    up(home, plan(sleeper("web")))
    (home / "stack.json").write_text("{half")
    with pytest.raises(StackError, match=r"stack.json can't be read"):
        up(home, plan(sleeper("web")))
    down(home)
    assert marked(home) == []
    assert Ledger(home).read().parts == {}


def test_status_does_not_wait_for_a_probe_that_hangs(home: Path) -> None:
    up(home, plan(sleeper("web")))
    start = time.monotonic()
    found = health(home, sleeper("web", ready=lambda _started: time.sleep(30)), timeout_s=0.3)["web"]
    assert time.monotonic() - start < 2
    assert (found.state, found.reason) == ("unhealthy", "no answer within 0.3 s")


def test_the_log_of_the_last_start_is_kept_beside_that_of_this_one(home: Path) -> None:
    for word in ("first", "second"):
        up(home, plan(sleeper("web", command=("sh", "-c", f"echo {word}; exec sleep 600"))))
        time.sleep(0.1)
        down(home)
    assert (home / "logs" / "web.previous.log").read_text() == "first\n"
    assert (home / "logs" / "web.log").read_text() == "second\n"
