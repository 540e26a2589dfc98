"""What Model Analyzer is told, and what is made of what it says."""

import json
from pathlib import Path
from typing import Any

import pytest

from resources.analyzer_run import AnalyzerRun
from resources.errors import ProfilerError
from resources.model_analyzer import (
    REASON_CHARACTERS,
    Infeasible,
    Measurement,
    Outcome,
    Trial,
    analyzer_settings,
    read_checkpoint,
    reason_of,
    source_in,
)

TRIALS = [Trial("i1", "m--i1--1"), Trial("i2", "m--i2--2"), Trial("i1", "m--i1--3")]
SAYS = "[Model Analyzer] "


def checkpoint(folder: Path, **rates: float) -> None:
    """A checkpoint as version 1.58 writes it, of what matters here."""

    def measurement(rate: float) -> dict[str, Any]:
        numbers = {"perf_throughput": rate, "perf_latency_p95": 1.5, "perf_latency_p99": 2.5}
        records = [[tag, {"_value": value, "_timestamp": 0}] for tag, value in numbers.items()]
        return {"_model_config_measurements": [{"_non_gpu_data": records}]}

    results = {
        source.replace("_", "-"): {f"{source}_config_default": [{}, {"flags": measurement(rate)}]}
        for source, rate in rates.items()
    }
    file = folder / "checkpoints" / "0.ckpt"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"ResultManager.results": {"_results": results}}))


class Run:
    """An `AnalyzerRun` with what came out of it."""

    def __init__(self, folder: Path) -> None:
        self.outcomes: list[Outcome] = []
        self.unloaded: list[str] = []
        self.run = AnalyzerRun(folder, TRIALS, 4, self.outcomes, self.unloaded.append, lambda line: None)

    def hear(self, *lines: str) -> list[bool]:
        return [self.run.hear(SAYS + line) for line in lines]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_trial_ends_with_its_checkpoint_and_is_unloaded(run: Run, tmp_path: Path) -> None:
    assert run.hear("Profiling m--i1--1_config_default: concurrency=4") == [False]
    checkpoint(tmp_path, m__i1__1=1000)
    assert run.hear("Saved checkpoint to /x/0.ckpt", "Saved checkpoint to /x/0.ckpt") == [True, False]
    assert run.outcomes == [Measurement("i1", 4, 1000, 1.5, 2.5, "m--i1--1")]
    assert run.unloaded == ["m--i1--1"]


def test_requests_that_failed_make_it_infeasible_and_the_next_one_comes(run: Run, tmp_path: Path) -> None:
    run.hear("Profiling m--i1--1_config_default: concurrency=4", "Running perf_analyzer failed with exit status 99:")
    run.run.hear("error: Stub process 'm--i1--1_0_0' is not healthy.")
    assert run.hear("No changes made to analyzer data, no checkpoint saved.") == [True]
    assert run.outcomes == [
        Infeasible("i1", "requests failed while it was measured: error: Stub process 'm--i1--1_0_0' is not healthy.")
    ]
    run.hear("Profiling m--i2--2_config_default: concurrency=4")
    checkpoint(tmp_path, m__i2__2=500)
    run.hear("Saved checkpoint to /x/0.ckpt")
    run.run.close(0, "")
    assert [type(item) for item in run.outcomes] == [Infeasible, Measurement]


def test_a_refused_load_is_infeasible_with_tritons_words(run: Run) -> None:
    run.hear("Model m--i1--1_config_default load failed: [StatusCode.INTERNAL] failed to load, out of memory")
    run.hear("No changes made to analyzer data, no checkpoint saved.")
    assert run.outcomes == [Infeasible("i1", "Triton did not load it: failed to load, out of memory")]


@pytest.mark.parametrize("begun", [True, False])
def test_a_triton_taken_down_is_laid_to_the_trial_that_was_on(run: Run, begun: bool) -> None:
    if begun:
        run.hear("Profiling m--i1--1_config_default: concurrency=4")
    run.run.close(-9, "it took Triton down, which ended with -9")
    assert run.outcomes == [Infeasible("i1", "it took Triton down, which ended with -9")]


def test_a_model_analyzer_that_tried_nothing_is_an_error_not_a_verdict(run: Run) -> None:
    run.hear("ModuleNotFoundError: No module named 'numba'")
    with pytest.raises(ProfilerError, match=r"ended with 1 before it tried anything(?s:.)*numba"):
        run.run.close(1, "")


def test_a_run_is_wanted_while_all_it_has_left_is_still_asked_for(run: Run) -> None:
    assert run.run.wanted(["i1", "i2", "i1"])
    assert not run.run.wanted(["i2"])
    assert not run.run.wanted([])


def test_lines_are_told_apart_by_the_whole_name() -> None:
    trials = [Trial("a", "m--a--1"), Trial("b", "m--a--11")]
    assert source_in("Profiling m--a--11_config_default: concurrency=4", trials) == "m--a--11"
    assert source_in("Profiling server only metrics...", trials) is None


def test_no_checkpoint_is_nothing_measured_and_half_a_one_is_not_read(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path, TRIALS, 4) == {}
    checkpoint(tmp_path, m__i1__1=1000)
    file = tmp_path / "checkpoints" / "0.ckpt"
    file.write_text(file.read_text()[:20])
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        read_checkpoint(tmp_path, TRIALS, 4)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([], "not measured: nothing was said"),
        (["perf_analyzer took very long to exit, killing perf_analyzer"], "not measured within 30 s"),
        (["perf_analyzer was terminated by signal: SIGABRT"], "not measured: perf_analyzer was terminated"),
        (["x" * 5000], "not measured: xxx"),
    ],
)
def test_every_silence_has_a_reason_of_one_short_line(said: list[str], reason: str) -> None:
    told = reason_of([SAYS + line for line in said])
    assert told.startswith(reason)
    assert len(told) <= REASON_CHARACTERS
    assert "\n" not in told


def test_perf_analyzer_asks_the_rows_of_the_log_and_never_waits_for_stable_windows(tmp_path: Path) -> None:
    made = analyzer_settings(tmp_path / "run", tmp_path / "load.json", (1, 2, 3), TRIALS, 4)
    assert list(made["profile_models"]) == ["m--i1--1", "m--i2--2", "m--i1--3"]
    flags = made["profile_models"]["m--i1--1"]["perf_analyzer_flags"]
    assert flags["input-data"] == str(tmp_path / "load.json")
    assert made["triton_launch_mode"] == "remote"
