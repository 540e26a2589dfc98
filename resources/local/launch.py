"""The start of many parts at once: each waits for those it needs; the first failure stops them all."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from resources.errors import PortTaken, StackError
from resources.local import ports as ports_of
from resources.local.ledger import Ledger, Record
from resources.local.part import Part
from resources.local.probes import TIMEOUT_S, reason
from resources.local.processes import MARK, Ending, end, remove

Report = Callable[[str, str, float], None]
"""Called with part, state and seconds since its start. States: waiting, starting, ready, running (before this `up`),
failed, stopping, stopped."""

LAST_LINES = 20
POLL_S = 0.1


class _Cancelled(Exception):
    """Another part failed, or somebody pressed Ctrl-C."""


@dataclass
class Launch:
    """One start of the parts that `kept` doesn't name."""

    home: Path
    parts: Sequence[Part]
    kept: frozenset[str]
    ledger: Ledger
    report: Report
    _ready: dict[str, threading.Event] = field(default_factory=dict)
    _cancel: threading.Event = field(default_factory=threading.Event)
    _started: dict[str, tuple[Part, psutil.Process]] = field(default_factory=dict)

    def run(self) -> None:
        """All parts ready, or none of those started here left. `StackError` of the first part that failed."""
        self._ready = {part.name: threading.Event() for part in self.parts}
        for part in self.parts:
            if part.name in self.kept:
                self._ready[part.name].set()
                self.report(part.name, "running", 0)
        missing = [part for part in self.parts if part.name not in self.kept]
        if not missing:
            return
        with ThreadPoolExecutor(len(missing)) as pool:
            futures = [pool.submit(self._bring_up, part) for part in missing]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                failed = [e for f in futures if f.done() and (e := f.exception()) and not isinstance(e, _Cancelled)]
                if failed:
                    raise failed[0]
            except BaseException:
                self._cancel.set()
                wait(futures)
                self._undo()
                raise

    def _bring_up(self, part: Part) -> None:
        self.report(part.name, "waiting", 0)
        for name in part.after:
            while not self._ready[name].wait(POLL_S):
                self._stop_if_cancelled()
        self._stop_if_cancelled()
        start = time.monotonic()
        self.report(part.name, "starting", 0)
        try:
            part.prepare()
            process, record = self._spawn(part)
            part.prime()
            self._await_ready(part, process, record)
            part.settle()
        except _Cancelled:
            raise
        except Exception as error:
            self.report(part.name, "failed", time.monotonic() - start)
            raise error if isinstance(error, StackError) else StackError(f"{part.name}: {error}") from error
        self.report(part.name, "ready", time.monotonic() - start)
        self._ready[part.name].set()

    def _spawn(self, part: Part) -> tuple["subprocess.Popen[bytes]", Record]:
        for port in part.ports.values():
            # Some servers would share the port in silence and take turns with its owner.
            if not ports_of.is_free(port):
                raise PortTaken(part.name, port)
        log = self._log(part)
        if log.exists():
            log.replace(log.with_suffix(".previous.log"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                part.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env={**part.environment, MARK: str(self.home)},
                # Ctrl-C in the terminal is for `up` alone, and parts outlive it.
                start_new_session=True,
            )
        handle = psutil.Process(process.pid)
        self._started[part.name] = (part, handle)
        record = Record(
            part.name,
            process.pid,
            handle.create_time(),
            datetime.now(UTC).isoformat(),
            part.address,
            dict(part.ports),
            part.after,
            int(part.stop_signal),
            part.grace_s,
            part.leftovers,
        )
        self.ledger.add(record)
        return process, record

    def _await_ready(self, part: Part, process: "subprocess.Popen[bytes]", record: Record) -> None:
        deadline = time.monotonic() + part.patience_s
        while why := reason(lambda: part.ready(record.started), TIMEOUT_S):
            self._stop_if_cancelled()
            self._check_alive(part, process)
            if time.monotonic() > deadline:
                raise StackError(
                    f"{part.name} is not ready after {part.patience_s:g} s: {why}; {self._last_lines(part)}"
                )
            time.sleep(POLL_S)
        # Another server on its port would have answered for it.
        self._check_alive(part, process)

    def _check_alive(self, part: Part, process: "subprocess.Popen[bytes]") -> None:
        code = process.poll()
        if code is not None:
            raise StackError(f"{part.name} ended with code {code} while starting; {self._last_lines(part)}")

    def _stop_if_cancelled(self) -> None:
        if self._cancel.is_set():
            raise _Cancelled

    def _undo(self) -> None:
        end([Ending(process, int(part.stop_signal), part.grace_s) for part, process in self._started.values()])
        for name, (part, _) in self._started.items():
            remove(part.leftovers)
            self.ledger.remove(name)
            self.report(name, "stopped", 0)

    def _log(self, part: Part) -> Path:
        return self.home / "logs" / f"{part.name}.log"

    def _last_lines(self, part: Part) -> str:
        log = self._log(part)
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 32_768))
            lines = file.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        return f"last lines of {log}:\n" + "\n".join(f"  {line}" for line in lines or ["(nothing)"])
