"""The real Model Analyzer on a small real model with a string column."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from assets.profile.asset import measure
from assets.profile.choice import Point, choose
from assets.profile.package import build_probe
from assets.profile.serving_config import serving_config, starting_choice
from assets.profile.settings import ProfileSettings
from assets.retrain.export import to_onnx
from assets.scoring import score
from assets.verdict import Verdict
from resources import profiler
from resources.errors import ProfilerError
from resources.model_analyzer import Measurement
from resources.profiler import Profiler
from tests.serving_stack import FEATURES, SERVERS

pytestmark = pytest.mark.integration
SETTINGS = ProfileSettings()


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


def sweep(onnx: bytes, rows: pd.DataFrame, workdir: Path, lines: list[str], served: bytes = b"") -> list[Measurement]:
    head = rows.head(16)
    probe = build_probe(head, FEATURES, score(onnx, head, FEATURES))
    base = serving_config("flight", FEATURES, starting_choice(SETTINGS), version=7)
    return Profiler(SERVERS, workdir).sweep(
        "flight",
        served or onnx,
        base,
        probe,
        SETTINGS.instances,
        SETTINGS.queue_delays_us,
        SETTINGS.concurrency,
        lines.append,
    )


def ours(workdir: Path) -> list[list[str]]:
    """Command lines of processes that a sweep in this folder left behind."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any(str(workdir) in part for part in line)]


def test_every_pair_is_measured_the_default_twice_and_one_is_chosen(
    onnx: bytes, rows: pd.DataFrame, tmp_path: Path
) -> None:
    lines: list[str] = []
    measured = sweep(onnx, rows, tmp_path / "work", lines)
    print("\n".join([*lines, *map(str, measured)]))
    pairs = [(m.config.instances, m.config.max_queue_delay_us) for m in measured]
    assert pairs == [(1, 0), (1, 0), (1, 500), (2, 0), (2, 500)]
    assert all(m.throughput_per_s > 50 and 0 < m.p99_latency_ms < 1000 for m in measured)
    assert {m.concurrency for m in measured} == {4}
    assert sum("concurrency=4" in line for line in lines) == 5
    assert list((tmp_path / "work").iterdir()) == []
    assert ours(tmp_path) == []
    points = [
        Point(
            m.config.instances,
            m.config.max_queue_delay_us,
            m.concurrency,
            m.throughput_per_s,
            m.p99_latency_ms,
            m.source,
        )
        for m in measured
    ]
    decision = choose("flight", points, ProfileSettings(p99_latency_ms=2000), datetime(2013, 3, 1, tzinfo=UTC), {})
    assert decision.verdict is Verdict.PASS, decision.why
    print(decision.why)


@pytest.mark.parametrize(("shift", "right"), [(0.0, True), (0.1, False)])
def test_the_chosen_configuration_is_asked_for_its_answers_on_the_same_triton(
    onnx: bytes, rows: pd.DataFrame, tmp_path: Path, shift: float, right: bool
) -> None:
    head = rows.head(16)
    probe = build_probe(head, FEATURES, score(onnx, head, FEATURES) + shift)
    base = serving_config("flight", FEATURES, starting_choice(SETTINGS), version=7)
    settings = ProfileSettings(instances=(1,), queue_delays_us=(0,), p99_latency_ms=2000)
    lines: list[str] = []
    points, difference = measure(
        "flight",
        onnx,
        base,
        probe,
        settings,
        Profiler(SERVERS, tmp_path / "work"),
        datetime(2013, 3, 1, tzinfo=UTC),
        lines.append,
    )
    assert len(points) == 2
    assert difference is not None
    assert (difference < 1e-6) is right
    assert any("answers differ from ONNX Runtime's by 0.1" in line for line in lines) is not right


def test_a_model_that_does_not_load_fails_with_tritons_words_and_leaves_nothing(
    rows: pd.DataFrame, onnx: bytes, tmp_path: Path
) -> None:
    with pytest.raises(ProfilerError, match="flight") as caught:
        sweep(onnx, rows, tmp_path / "work", [], served=b"no model")
    assert "INVALID_PROTOBUF" in str(caught.value)
    assert list((tmp_path / "work").iterdir()) == []
    assert ours(tmp_path) == []


def test_a_sweep_that_takes_too_long_is_ended_and_says_so(
    rows: pd.DataFrame, onnx: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "VARIANT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(profiler, "ANALYZER_START_S", 5.0)
    with pytest.raises(ProfilerError, match="took longer than 6 s"):
        sweep(onnx, rows, tmp_path / "work", [])
    assert ours(tmp_path) == []


def test_a_cancelled_sweep_leaves_nothing(rows: pd.DataFrame, onnx: bytes, tmp_path: Path) -> None:
    class Cancelled(BaseException):
        """As Dagster interrupts a run."""

    class Lines(list[str]):
        def append(self, line: str) -> None:
            if "concurrency" in line:
                raise Cancelled

    with pytest.raises(Cancelled):
        sweep(onnx, rows, tmp_path / "work", Lines())
    assert list((tmp_path / "work").iterdir()) == []
    assert ours(tmp_path) == []


def test_a_missing_environment_is_named(rows: pd.DataFrame, onnx: bytes, tmp_path: Path) -> None:
    from resources.errors import StackError

    head = rows.head(2)
    probe = build_probe(head, FEATURES, score(onnx, head, FEATURES))
    base = serving_config("flight", FEATURES, starting_choice(SETTINGS), version=7)
    with pytest.raises(StackError, match="nowhere"):
        Profiler(Path("/nowhere/.venv"), tmp_path).sweep("flight", onnx, base, probe, [1], [0], 1, print)
