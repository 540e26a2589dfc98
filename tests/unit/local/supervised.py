"""A stack of small parts under a real supervisor: `python supervised.py HOME PLAN [--revive PART...]`."""

import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from resources.local.part import Part, inherited
from resources.local.stack import Blueprint, Busy, revive
from resources.local.supervisor import BUSY, NAME, Journal, Supervisor
from tests.unit.local.small_parts import plan, sleeper


def steady(_home: Path) -> list[Part]:
    return [sleeper("database"), sleeper("web", after=("database",))]


def with_child(_home: Path) -> list[Part]:
    """A part whose child goes on when it is killed."""
    return [sleeper("web", command=("bash", "-c", "sleep 600 & wait"))]


def mortal(home: Path) -> list[Part]:
    """A part that dies soon after every start, and tells each."""
    told = home / "starts"
    return [sleeper("database"), sleeper("web", command=("bash", "-c", f"echo >> {told}; sleep 0.3"))]


def slow_again(home: Path) -> list[Part]:
    """A part that is ready the first time and never after."""
    first = home / "first"

    def ready(_started: datetime) -> None:
        if first.exists():
            raise ValueError("still asleep")
        first.touch()

    return [sleeper("web", ready=ready, patience_s=60)]


PLANS = {made.__name__: made for made in (steady, with_child, mortal, slow_again)}


def blueprint(home: Path, name: str) -> Blueprint:
    journal = Journal(home)

    def ready(started: datetime) -> None:
        seen_at = journal.read()[0]
        if seen_at is None or seen_at < started:
            raise ValueError("no sign of life")

    others = PLANS[name](home)
    command = (sys.executable, __file__, str(home), name)
    after = tuple(part.name for part in others)
    itself = Part(NAME, command, ready, after=after, environment=inherited(), grace_s=10)
    return plan(*others, itself)


def main() -> int:
    home, name = Path(sys.argv[1]), sys.argv[2]
    if "--revive" in sys.argv:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            revive(home, blueprint(home, name), sys.argv[4:])
        except Busy:
            return BUSY
        return 0
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    revival = [sys.executable, __file__, str(home), name, "--revive"]
    Supervisor(home, revival, lambda: datetime.now(UTC)).run(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
