"""The supervisor as a real process beside small real parts."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from resources.local.ledger import Ledger
from resources.local.processes import find, marked
from resources.local.stack import Health, down, status, up
from resources.local.supervisor import Journal, Restarts
from tests.unit.local.supervised import blueprint

NOW = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = (tmp_path / "home").resolve()
    yield folder
    down(folder)
    assert marked(folder) == []


def pid(home: Path, name: str) -> int | None:
    record = Ledger(home).read().parts.get(name)
    return record.pid if record and record.process() else None


def kill(home: Path, name: str) -> int:
    found = pid(home, name)
    assert found is not None
    os.kill(found, signal.SIGKILL)
    until(lambda: pid(home, name) != found)
    return found


def until(check: Callable[[], object], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def health(home: Path, plan: str, name: str) -> Health:
    parts = blueprint(home, plan).build({})
    return next(part for part in status(home, parts, datetime.now(UTC)) if part.name == name)


def test_a_part_that_died_is_started_again_and_status_says_so(home: Path) -> None:
    up(home, blueprint(home, "steady"))
    database = pid(home, "database")
    dead = kill(home, "web")
    until(lambda: pid(home, "web") not in (None, dead))
    assert pid(home, "database") == database
    until(lambda: health(home, "steady", "web").note.startswith("restarted once, last "))
    found = health(home, "steady", "web")
    assert found.healthy
    assert found.note.endswith(f"process {dead} was gone")
    assert health(home, "steady", "database").note == ""


def test_parts_that_died_together_come_back_together(home: Path) -> None:
    up(home, blueprint(home, "steady"))
    dead = {kill(home, "web"), kill(home, "database")}
    until(lambda: dead.isdisjoint({pid(home, "web"), pid(home, "database"), None} - {None}) and pid(home, "web"))
    until(lambda: pid(home, "database"))


def test_a_part_that_dies_again_and_again_is_started_after_growing_pauses(home: Path) -> None:
    up(home, blueprint(home, "mortal"))
    began = time.monotonic()
    until(lambda: len((home / "starts").read_text()) >= 3)
    assert time.monotonic() - began > 2
    until(lambda: "next start in" in health(home, "mortal", "web").note)
    time.sleep(2)
    assert len((home / "starts").read_text()) == 3
    assert health(home, "mortal", "database").healthy


def test_a_killed_supervisor_takes_nothing_with_it_and_down_finds_all_it_started(home: Path) -> None:
    up(home, blueprint(home, "steady"))
    dead = kill(home, "web")
    until(lambda: pid(home, "web") not in (None, dead))
    kill(home, "supervisor")
    assert pid(home, "web") is not None
    assert health(home, "steady", "supervisor").state == "stopped"
    assert set(down(home)) == {"web", "database"}
    assert marked(home) == []


def test_up_starts_a_killed_supervisor_again_and_leaves_the_rest(home: Path) -> None:
    up(home, blueprint(home, "steady"))
    web = pid(home, "web")
    kill(home, "supervisor")
    up(home, blueprint(home, "steady"))
    assert pid(home, "supervisor") is not None
    assert pid(home, "web") == web


def test_children_that_outlived_their_part_end_before_it_starts_again(home: Path) -> None:
    up(home, blueprint(home, "with_child"))
    until(lambda: psutil.Process(pid(home, "web")).children())
    (child,) = psutil.Process(pid(home, "web")).children()
    dead = kill(home, "web")
    until(lambda: pid(home, "web") not in (None, dead))
    assert find(child.pid, child.create_time()) is None


def test_down_in_the_middle_of_a_restart_ends_it_first(home: Path) -> None:
    up(home, blueprint(home, "slow_again"))
    dead = kill(home, "web")
    until(lambda: pid(home, "web") not in (None, dead))
    started = time.monotonic()
    down(home)
    assert time.monotonic() - started < 12
    assert marked(home) == []


def test_up_waits_for_a_restart_that_goes_on(home: Path) -> None:
    up(home, blueprint(home, "steady"))
    kill(home, "web")
    up(home, blueprint(home, "steady"))
    assert pid(home, "web") is not None


def test_the_supervisor_costs_next_to_nothing(home: Path) -> None:
    up(home, blueprint(home, "steady"))
    process = psutil.Process(pid(home, "supervisor"))
    before = process.cpu_times()
    time.sleep(3)
    after = process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) < 0.1
    assert process.memory_info().rss < 45e6


def test_a_part_that_lived_for_a_minute_is_forgiven() -> None:
    part = Restarts().died(NOW, "").revived(NOW).died(NOW, "")
    assert part.pause(NOW) == timedelta(seconds=2)
    later = NOW + timedelta(seconds=61)
    assert part.revived(NOW).died(later, "").pause(later) == timedelta(0)


def test_what_the_supervisor_wrote_is_read_again(tmp_path: Path) -> None:
    parts = {"web": Restarts().died(NOW, "gone").revived(NOW), "s3": Restarts().died(NOW, "gone")}
    Journal(tmp_path).write(NOW, parts)
    assert Journal(tmp_path).read() == (NOW, parts)
    (tmp_path / "supervisor.json").write_text("{half")
    assert Journal(tmp_path).read() == (None, {})
