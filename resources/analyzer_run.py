"""One run of Model Analyzer while it runs: which trial it is at, what came out of each, and when to end it."""

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from resources.errors import ProfilerError
from resources.model_analyzer import Infeasible, Outcome, Trial, read_checkpoint, reason_of, source_in

START_S = 60.0
TRIAL_TIMEOUT_S = 60.0


class Watch(threading.Thread):
    """Ends Model Analyzer when its Triton dies or a trial takes too long, for it would wait for minutes itself.

    stop: ends Model Analyzer; `why` tells afterwards what was wrong, '' when nothing was.
    """

    def __init__(self, stop: Callable[[], None], server: "subprocess.Popen[bytes]") -> None:
        super().__init__(name="profiler-watch", daemon=True)
        self.stop, self.server = stop, server
        self.deadline = time.monotonic() + START_S + TRIAL_TIMEOUT_S
        self.why = ""
        self.over = threading.Event()

    def extend(self) -> None:
        self.deadline = time.monotonic() + TRIAL_TIMEOUT_S

    def end(self) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not self.over.wait(0.2):
            if self.server.poll() is not None:
                self.why = f"it took Triton down, which ended with {self.server.returncode}"
            elif time.monotonic() > self.deadline:
                self.why = f"it took longer than {TRIAL_TIMEOUT_S:g} s"
            if self.why:
                self.stop()
                return


@dataclass(slots=True)
class AnalyzerRun:
    """folder: of this run; unload: takes a model out of Triton; outcomes: grows as trials end."""

    folder: Path
    trials: Sequence[Trial]
    concurrency: int
    outcomes: list[Outcome]
    unload: Callable[[str], None]
    progress: Callable[[str], None]
    said: dict[str, list[str]] = field(default_factory=dict)
    current: str = ""
    done: set[str] = field(default_factory=set)

    def hear(self, line: str) -> bool:
        """Take in one line; True when a trial ended with it."""
        source, came = source_in(line, self.trials) or self.current, False
        if source != self.current:
            came = self._conclude(self.current)
            self.current = source
        if source and source not in self.done and f"Profiling {source}" in line:
            self.progress(f"{len(self.outcomes) + 1}: {source}, {self.concurrency} clients")
        self.said.setdefault(source, []).append(line)
        # A checkpoint follows every trial, or the remark that there was nothing to save.
        return ("heckpoint" in line and self._conclude(source)) or came

    def wanted(self, names: Sequence[str]) -> bool:
        """Whether what is left of this run is what is still to measure."""
        return bool(self.left and names) and all(trial.name in names for trial in self.left)

    @property
    def left(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.source not in self.done]

    def close(self, code: int, broken: str) -> None:
        """The run has ended with `code`: what was tried without a measurement can't be served.

        broken: why it had to be ended, ''. `ProfilerError` when nothing was tried at all.
        """
        self._collect(self.trials)
        left = self.left
        tried = [trial for trial in left if trial.source in self.said]
        if broken and left:
            self._fail((tried or left)[0], broken)
        elif tried:
            for trial in tried:
                self._fail(trial, reason_of(self.said[trial.source]))
        elif left and not self.done:
            told = "\n".join(line for lines in self.said.values() for line in lines[-30:])
            raise ProfilerError(f"Model Analyzer ended with {code} before it tried anything:\n{told}")

    def _conclude(self, source: str) -> bool:
        """The trial is over: take its measurement, or why there is none; it need not take memory any longer."""
        trial = next((trial for trial in self.trials if trial.source == source), None)
        if trial is None or source in self.done:
            return False
        self._collect([trial])
        if source not in self.done:
            self._fail(trial, reason_of(self.said[source]))
        self.unload(source)
        return True

    def _collect(self, trials: Sequence[Trial]) -> None:
        """Take over what was measured of these."""
        for _ in range(20):
            try:
                found = read_checkpoint(self.folder, trials, self.concurrency)
                break
            except ValueError:  # it is being written
                time.sleep(0.05)
        else:
            return
        fresh = [trial.source for trial in trials if trial.source in found and trial.source not in self.done]
        self.done.update(fresh)
        self.outcomes += [found[source] for source in fresh]

    def _fail(self, trial: Trial, reason: str) -> None:
        self.done.add(trial.source)
        self.outcomes.append(Infeasible(trial.name, reason))
        self.progress(f"{trial.name} is infeasible: {reason}")
