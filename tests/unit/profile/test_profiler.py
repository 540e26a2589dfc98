"""The sweep's loop around a Model Analyzer and a Triton of paper, which speak as the real ones do."""

import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from resources.errors import ProfilerError
from resources.model_analyzer import Infeasible, Measurement, Outcome
from resources.profiler import Profiler
from tests.serving_stack import config

TRITON = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        if "die" in self.path:
            os._exit(9)
        self.send_response(200); self.end_headers(); self.wfile.write(b"[]")
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
ANALYZER = """
import json, sys, time, urllib.request
from pathlib import Path
asked = json.loads(Path(sys.argv[3]).read_text())
file = Path(asked["checkpoint_directory"]) / "0.ckpt"
file.parent.mkdir()
results = {}
print("[Model Analyzer] No checkpoint file found, starting a fresh run.")
if any("broken" in name for name in asked["profile_models"]):
    sys.exit("ImportError: numba")
for name in asked["profile_models"]:
    said = f"{name}_config_default"
    if "refused" in name:
        print(f"[Model Analyzer] Model {said} load failed: [StatusCode.INTERNAL] no memory")
        print("[Model Analyzer] No changes made to analyzer data, no checkpoint saved.", flush=True)
        continue
    print(f"[Model Analyzer] Profiling {said}: concurrency=4", flush=True)
    if "deadly" in name:
        try:
            urllib.request.urlopen("http://" + asked["triton_http_endpoint"] + "/die", b"")
        except OSError:
            time.sleep(60)
    values = {"perf_throughput": 1000.0, "perf_latency_p95": 1.5, "perf_latency_p99": 2.5}
    records = [[tag, {"_value": value}] for tag, value in values.items()]
    measured = {"_model_config_measurements": [{"_non_gpu_data": records}]}
    results[name] = {said: [{}, {"flags": measured}]}
    file.write_text(json.dumps({"ResultManager.results": {"_results": results}}))
    print(f"[Model Analyzer] Saved checkpoint to {file}", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "servers"
    analyzer, server = folder / "bin" / "model-analyzer", folder / "triton.py"
    analyzer.parent.mkdir(parents=True)
    analyzer.write_text(f"#!{sys.executable}\n{ANALYZER}")
    analyzer.chmod(analyzer.stat().st_mode | stat.S_IXUSR)
    server.write_text(TRITON)
    monkeypatch.setattr("resources.local.triton.prepare", lambda *_: None)
    monkeypatch.setattr("resources.local.triton.environment", lambda *_: {})
    monkeypatch.setattr("resources.local.triton.command", lambda *where: [sys.executable, str(server), str(where[3])])
    return folder


def sweep(servers: Path, *order: str, stop_after: int = 99) -> list[tuple[str, str]]:
    """Each name of the order once; what came out as (name, '' or reason)."""

    def plan(outcomes: Sequence[Outcome]) -> list[str]:
        done = [item.name for item in outcomes]
        return [] if len(done) >= stop_after else [name for name in order if name not in done]

    workdir = servers.parent / "work"
    configs = {name: config("m", 1) for name in order}
    probe = {"inputs": {"x": {"shape": [1, 1], "data": [1.0]}}}
    try:
        outcomes = Profiler(servers, workdir).sweep("m", b"onnx", configs, plan, probe, 4, print)
    finally:
        assert list(workdir.iterdir()) == []
        mine = [line for p in psutil.process_iter(["cmdline"]) if str(servers) in (line := str(p.info["cmdline"]))]
        assert mine == []
    for item in outcomes:
        assert isinstance(item, Infeasible) or item == Measurement(item.name, 4, 1000.0, 1.5, 2.5, item.source)
    return [(item.name, item.reason if isinstance(item, Infeasible) else "") for item in outcomes]


def test_all_is_measured_in_the_order_of_the_plan(servers: Path) -> None:
    assert sweep(servers, "b", "a", "c") == [("b", ""), ("a", ""), ("c", "")]


def test_the_sweep_ends_when_the_plan_asks_for_no_more(servers: Path) -> None:
    assert sweep(servers, "a", "b", "c", stop_after=2) == [("a", ""), ("b", "")]


def test_what_is_refused_and_what_takes_triton_down_are_infeasible_and_the_rest_is_measured(servers: Path) -> None:
    found = sweep(servers, "a", "refused", "b", "deadly", "c", "refused2")
    assert [name for name, _ in found] == ["a", "refused", "b", "deadly", "c", "refused2"]
    assert [reason for _, reason in found] == [
        "",
        "Triton did not load it: no memory",
        "",
        "it took Triton down, which ended with 9",
        "",
        "Triton did not load it: no memory",
    ]


def test_a_model_analyzer_that_does_not_run_is_an_error_with_its_words(servers: Path) -> None:
    with pytest.raises(ProfilerError, match="ImportError: numba"):
        sweep(servers, "a", "broken")
