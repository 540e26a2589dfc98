"""The process that starts parts of the local stack again when they died. `python -m pipelines.supervisor --help`

It stays small: the stack's own modules are imported only by the short processes that do a restart.
"""

import argparse
import logging
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from resources.errors import StackError
from resources.local.supervisor import BUSY, Supervisor


def main(arguments: list[str] | None = None) -> int:
    """Supervise until told to stop; with `--revive`, do one restart."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.supervisor", description=__doc__)
    parser.add_argument("--home", required=True, type=Path, help="folder of the stack")
    parser.add_argument("--definitions", required=True, help="the code location's module")
    parser.add_argument("--revive", nargs="+", metavar="PART", help="start these if they are dead, and end")
    given = parser.parse_args(arguments)
    if given.revive:
        return _revive(given.home, given.definitions, given.revive)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    itself = [sys.executable, "-m", "pipelines.supervisor", "--home", str(given.home)]
    revival = [*itself, "--definitions", given.definitions, "--revive"]
    Supervisor(given.home.resolve(), revival, lambda: datetime.now(UTC)).run(stop)
    return 0


def _revive(home: Path, definitions: str, names: list[str]) -> int:
    from pipelines import local
    from resources.local.stack import Busy, revive

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        revive(home, local.blueprint(home, local.read_addresses(home).servers, definitions), names)
    except Busy:
        return BUSY
    except (StackError, KeyboardInterrupt) as error:
        print(error or "interrupted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
