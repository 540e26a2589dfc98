"""The real Model Analyzer on a small real model with a string column."""

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from assets.decision import Decision
from assets.profile.cache import Profile
from assets.profile.choice import choose
from assets.profile.package import build_probe
from assets.profile.search import measure
from assets.profile.serving_config import serving_config, starting_choice
from assets.profile.settings import ProfileSettings, Setting
from assets.retrain.export import to_onnx
from assets.scoring import score
from assets.verdict import Verdict
from resources import analyzer_run
from resources.errors import StackError
from resources.local import triton
from resources.packages import render_config
from resources.profiler import Profiler, ended_process, free_ports
from resources.triton import TritonServer
from tests.serving_stack import FEATURES, SERVERS

pytestmark = pytest.mark.integration
SETTINGS = ProfileSettings(p99_latency_ms=2000)
NOW = datetime(2013, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    temp = rng.normal(size=2000).astype(np.float32)
    return pd.DataFrame(
        {"carrier": rng.choice(["UA", "AA", "B6"], 2000), "temp": temp, "hour": rng.integers(0, 24, 2000)}
    )


@pytest.fixture(scope="module")
def onnx(rows: pd.DataFrame) -> bytes:
    from lightgbm import LGBMClassifier
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("strings", encoder, ["carrier"])], remainder="passthrough")
    trees = LGBMClassifier(n_estimators=50, n_jobs=1, verbose=-1)
    late = ((rows.temp > 0) | (rows.carrier == "UA")).astype(int)
    return to_onnx(Pipeline([("columns", columns), ("trees", trees)]).fit(rows, late), FEATURES)


def profile(
    onnx: bytes,
    rows: pd.DataFrame,
    workdir: Path,
    progress: Callable[[str], None] = print,
    settings: ProfileSettings = SETTINGS,
    served: bytes = b"",
    shift: float = 0.0,
    servers: Path = SERVERS,
) -> Profile:
    head = rows.head(16)
    probe = build_probe(head, FEATURES, score(onnx, head, FEATURES) + shift)
    base = serving_config("flight", FEATURES, starting_choice(settings), version=7)
    return measure("flight", served or onnx, base, probe, settings, Profiler(servers, workdir), NOW, progress)


def decided(found: Profile, settings: ProfileSettings = SETTINGS) -> Decision:
    return choose("flight", found.points, settings, NOW, {}, found.failed)


def ours(workdir: Path) -> list[list[str]]:
    """Command lines of processes that a sweep in this folder left behind."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any(str(workdir) in part for part in line)]


def kill(*parts: str) -> None:
    """kill -9 of the processes that have each of these in their command lines, not of what watches over them."""
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if all(part in line for part in parts) and "bound.py" not in line:
            os.kill(process.pid, signal.SIGKILL)


def test_every_configuration_is_measured_the_default_twice_and_the_chosen_one_answers_as_onnx_runtime(
    onnx: bytes, rows: pd.DataFrame, tmp_path: Path
) -> None:
    lines: list[str] = []
    found = profile(onnx, rows, tmp_path / "work", lines.append)
    print("\n".join([*lines, *map(repr, found.points)]))
    assert [point.config[:2] for point in found.points[:5]] == [(1, 0), (1, 500), (2, 0), (2, 500), (1, 0)]
    assert all(point.throughput_per_s > 50 for point in found.points)
    assert all(0 < point.p95_latency_ms <= point.p99_latency_ms < 1000 for point in found.points)
    assert {point.concurrency for point in found.points} == {4}
    assert found.failed == ()
    assert found.difference is not None
    assert found.difference < 1e-6
    assert list((tmp_path / "work").iterdir()) == []
    assert ours(tmp_path) == []
    decision = decided(found)
    assert decision.verdict is Verdict.PASS, decision.why


def test_what_leads_is_measured_again_by_turns_and_each_trial_is_started_once(
    onnx: bytes, rows: pd.DataFrame, tmp_path: Path
) -> None:
    waits = ProfileSettings(instances=(1,), queue_delays_us=(20_000, 0), p99_latency_ms=2000)
    starts: list[int] = []

    def progress(line: str) -> None:
        if "clients" in line:
            source = line.split(": ")[1].split(",")[0]
            (log,) = (tmp_path / "work").glob("sweep-*/triton.log")
            starts.append(log.read_text().count(f"ModelInstanceInitialize: {source}_0_0 "))

    found = profile(onnx, rows, tmp_path / "work", progress, waits)
    assert [point.max_queue_delay_us for point in found.points] == [20_000, 0] * 3
    # Model Analyzer's own load starts no second instance: what was loaded ahead is what it asks for.
    assert starts == [1] * 6
    decision = decided(found, waits)
    assert decision.details["choice"]["max_queue_delay_us"] == 0, decision.why


def test_a_wrong_answer_of_the_chosen_configuration_is_found(onnx: bytes, rows: pd.DataFrame, tmp_path: Path) -> None:
    lines: list[str] = []
    settings = ProfileSettings(instances=(1,), queue_delays_us=(0,), p99_latency_ms=2000)
    found = profile(onnx, rows, tmp_path / "work", lines.append, settings, shift=0.1)
    assert len(found.points) == 2
    assert found.difference == float("inf")
    assert any("answers differ from ONNX Runtime's by 0.1" in line for line in lines)


@pytest.mark.parametrize(
    ("victim", "reason"),
    [("triton_python_backend_stub", "requests failed while it was measured"), ("bin/tritonserver", "took Triton down")],
)
def test_a_configuration_that_dies_while_measured_is_infeasible_and_the_sweep_goes_on(
    onnx: bytes, rows: pd.DataFrame, tmp_path: Path, victim: str, reason: str
) -> None:
    settings = ProfileSettings(instances=(1, 2, 3), queue_delays_us=(0,), p99_latency_ms=2000)
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        if "flight--i2-" in line and "clients" in line:
            kill(victim, "flight--i2-" if "stub" in victim else str(tmp_path))

    found = profile(onnx, rows, tmp_path / "work", progress, settings)
    print("\n".join(lines))
    (failed,) = found.failed
    assert failed.config == Setting(2, 0)
    assert reason in failed.reason
    assert [point.config[0] for point in found.points[:3]] == [1, 3, 1]
    decision = decided(found, settings)
    assert decision.verdict is Verdict.PASS
    assert decision.details["choice"]["instances"] in (1, 3)
    assert ours(tmp_path) == []


def test_a_model_that_no_configuration_can_serve_fails_with_tritons_words(
    rows: pd.DataFrame, onnx: bytes, tmp_path: Path
) -> None:
    settings = ProfileSettings(instances=(1, 2, 3), queue_delays_us=(0,))
    found = profile(onnx, rows, tmp_path / "work", settings=settings, served=b"no model")
    assert found.points == ()
    assert len(found.failed) == 3
    assert found.difference is None
    decision = decided(found, settings)
    assert decision.verdict is Verdict.FAIL
    assert "INVALID_PROTOBUF" in decision.why
    assert list((tmp_path / "work").iterdir()) == []
    assert ours(tmp_path) == []


def test_a_configuration_that_takes_too_long_is_ended_and_says_so(
    rows: pd.DataFrame, onnx: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyzer_run, "TRIAL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(analyzer_run, "START_S", 1.0)
    settings = ProfileSettings(instances=(1,), queue_delays_us=(0,))
    found = profile(onnx, rows, tmp_path / "work", settings=settings)
    assert [item.reason for item in found.failed] == ["it took longer than 0.2 s"]
    assert decided(found, settings).verdict is Verdict.FAIL
    assert ours(tmp_path) == []


def test_a_cancelled_sweep_leaves_nothing(rows: pd.DataFrame, onnx: bytes, tmp_path: Path) -> None:
    class Cancelled(BaseException):
        """As Dagster interrupts a run."""

    def progress(line: str) -> None:
        if "clients" in line:
            raise Cancelled

    with pytest.raises(Cancelled):
        profile(onnx, rows, tmp_path / "work", progress)
    assert list((tmp_path / "work").iterdir()) == []
    assert ours(tmp_path) == []


def test_a_missing_environment_is_named(rows: pd.DataFrame, onnx: bytes, tmp_path: Path) -> None:
    with pytest.raises(StackError, match="nowhere"):
        profile(onnx, rows, tmp_path, servers=Path("/nowhere/.venv"))


def test_triton_serves_the_configuration_of_its_device(onnx: bytes, tmp_path: Path) -> None:
    choice = starting_choice(SETTINGS)
    repository, backends, ports = tmp_path / "repository", tmp_path / "backends", free_ports()
    triton.prepare(SERVERS, backends, repository)
    for model in ("known", "other"):
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "1" / "model.onnx").write_bytes(onnx)
        (repository / model / "configs").mkdir()
        config = serving_config(model, FEATURES, choice, version=1)
        (repository / model / "config.pbtxt").write_text(render_config(config))
        device = "this-cpu" if model == "known" else "that-gpu"
        (repository / model / "configs" / f"{device}.pbtxt").write_text(render_config(config | {"max_batch_size": 8}))
    command = triton.command(SERVERS, backends, repository, *ports, config_name="this-cpu")
    url, log = f"http://127.0.0.1:{ports[0]}", tmp_path / "triton.log"
    with log.open("wb") as out, ended_process(command, triton.environment(SERVERS), tmp_path, out) as process:
        triton.await_ready(url, process, log, 60)
        server = TritonServer(url)
        for model, rows_at_once in (("known", 8), ("other", 64)):
            server.load(model)
            assert server.call(f"/v2/models/{model}/config", None)["max_batch_size"] == rows_at_once
