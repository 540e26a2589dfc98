"""The onnxruntime backend of the local servers, inside a real Triton."""

import signal
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from assets.profile.package import build_probe, warmup_files, warmup_samples
from assets.scoring import score
from resources.errors import ModelNotReady, ServingError
from resources.local import triton
from resources.packages import render_config
from resources.triton import CONTROL_HEADER, TritonServer
from tests.serving_stack import FEATURES, ROWS, LocalTriton, config, question, running_triton, tiny_onnx

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    with running_triton(tmp_path_factory.mktemp("triton")) as running:
        yield running


def place(local: LocalTriton, name: str, **changes: Any) -> Path:
    folder = local.repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(tiny_onnx())
    (folder / "config.pbtxt").write_text(render_config(config(name, 1, **changes)))
    return folder


def test_ready_means_that_an_inference_was_answered_rightly(local: LocalTriton) -> None:
    triton.ready(local.url, control_key=local.control_key)
    assert local.server.ready_versions(triton.PROBE) == {1}


def test_ready_says_why_when_nobody_listens() -> None:
    with pytest.raises(ServingError, match=r"127\.0\.0\.1:9 does not answer"):
        triton.ready("http://127.0.0.1:9", timeout_s=1)


def test_ready_says_why_when_the_probe_model_is_broken(local: LocalTriton) -> None:
    local.server.unload(triton.PROBE)
    file = local.repository / triton.PROBE / "1" / "model.onnx"
    kept = file.read_bytes()
    try:
        file.write_bytes(b"no model")
        with pytest.raises(ModelNotReady, match="trimtab_probe"):
            triton.ready(local.url, control_key=local.control_key)
    finally:
        file.write_bytes(kept)
    triton.ready(local.url, control_key=local.control_key)


def test_strings_floats_and_ints_give_the_answers_of_onnx_runtime(local: LocalTriton) -> None:
    place(local, "right")
    local.server.load("right")
    _, answers = local.answers("right")
    np.testing.assert_allclose(answers, score(tiny_onnx(), ROWS, FEATURES), atol=1e-6)


def test_one_bad_request_in_a_batch_fails_alone(local: LocalTriton) -> None:
    from tritonclient.grpc import InferenceServerClient, InferInput
    from tritonclient.utils import InferenceServerException

    place(local, "batched", dynamic_batching={"max_queue_delay_microseconds": 500_000, "preferred_batch_size": [8]})
    local.server.load("batched")

    def ask(carrier: bytes) -> float | str:
        tensors = []
        for name, datatype, value in (
            ("carrier", "BYTES", np.array([[carrier]], dtype=object)),
            ("temp", "FP32", np.zeros((1, 1), np.float32)),
            ("hour", "INT64", np.zeros((1, 1), np.int64)),
        ):
            tensors.append(InferInput(name, [1, 1], datatype))
            tensors[-1].set_data_from_numpy(value)
        client = InferenceServerClient(f"127.0.0.1:{local.ports[1]}")
        try:
            return float(client.infer("batched", tensors).as_numpy("probabilities")[0, 1])
        except InferenceServerException as error:
            return str(error)
        finally:
            client.close()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [b"UA", b"\xff\xfe", b"B6", "ÅÄ".encode()]))
    assert "input 'carrier' is not UTF-8" in str(answers[1])
    expected = [1 / (1 + np.exp(-effect)) for effect in (0.5, -0.5, 2.0)]
    np.testing.assert_allclose([float(answers[at]) for at in (0, 2, 3)], expected, atol=1e-6)
    stats = local.server.call("/v2/models/batched/versions/1/stats", None)["model_stats"][0]
    assert 4 in {line["batch_size"] for line in stats["batch_stats"]}, "the requests were not batched"


def test_a_missing_model_file_is_named(local: LocalTriton) -> None:
    folder = place(local, "hollow")
    (folder / "1" / "model.onnx").unlink()
    (folder / "1" / "readme").write_text("so that the version's folder stays")
    with pytest.raises(ModelNotReady, match=r"hollow/1/model\.onnx is missing"):
        local.server.load("hollow")


def test_a_wrong_type_in_the_configuration_is_named(local: LocalTriton) -> None:
    inputs = config("x", 1)["input"]
    inputs[1] = inputs[1] | {"data_type": "TYPE_FP64"}
    place(local, "mistyped", input=inputs, model_warmup=[])
    with pytest.raises(ModelNotReady, match=r"input 'temp' is TYPE_FP64 in the configuration and tensor\(float\)"):
        local.server.load("mistyped")


def test_an_input_that_the_configuration_forgot_is_named(local: LocalTriton) -> None:
    place(local, "forgetful", input=config("x", 1)["input"][:2], model_warmup=[])
    with pytest.raises(ModelNotReady, match=r"misses the ONNX inputs \['hour'\]"):
        local.server.load("forgetful")


def test_an_unknown_model_is_answered_with_its_name(local: LocalTriton) -> None:
    with pytest.raises(ModelNotReady, match="nobody"):
        local.server.infer("nobody", question())


def test_it_listens_on_loopback_only(local: LocalTriton) -> None:
    import psutil

    assert local.process is not None
    listening = [c.laddr for c in psutil.Process(local.process.pid).net_connections() if c.status == "LISTEN"]
    assert {address.port for address in listening} >= set(local.ports)
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_nobody_loads_a_model_without_the_key_and_everybody_may_ask_it(local: LocalTriton) -> None:
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    place(local, "guarded")
    stranger = TritonServer(local.url)
    for ask in (stranger.index, lambda: stranger.load("guarded"), lambda: stranger.unload("guarded")):
        with pytest.raises(ModelNotReady, match=r"(?i)restricted"):
            ask()
    client = InferenceServerClient(f"127.0.0.1:{local.ports[1]}")
    header = {f"triton-grpc-protocol-{CONTROL_HEADER}": local.control_key}
    with pytest.raises(InferenceServerException, match=r"(?i)restricted"):
        client.load_model("guarded")
    client.load_model("guarded", headers=header)
    client.close()
    stranger.infer("guarded", question())
    assert stranger.statistics("guarded", 1)["success"]["count"] > 0


def test_the_key_shows_in_no_list_of_processes_and_in_no_log(local: LocalTriton) -> None:
    import psutil

    assert local.process is not None
    triton_ = psutil.Process(local.process.pid)
    assert triton_.name() == "tritonserver"
    for process in (triton_, *triton_.children(recursive=True)):
        assert local.control_key not in " ".join(process.cmdline())
    assert "@hidden0@" in triton_.cmdline()
    assert local.control_key not in (local.folder / "triton.log").read_text()
    assert stat.S_IMODE(Path(f"/proc/{local.process.pid}/environ").stat().st_mode) == 0o400


def test_a_model_is_warmed_with_real_rows_before_its_first_request(local: LocalTriton) -> None:
    probe = build_probe(ROWS, FEATURES, score(tiny_onnx(), ROWS, FEATURES))
    folder = place(local, "warmed", model_warmup=warmup_samples(probe))
    with pytest.raises(ModelNotReady, match="warmup"):
        local.server.load("warmed")
    for name, body in warmup_files(probe).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(body)
    local.server.load("warmed")
    assert local.server.statistics("warmed", 1)["success"]["count"] == len(warmup_samples(probe))
    _, answers = local.answers("warmed")
    np.testing.assert_allclose(answers, score(tiny_onnx(), ROWS, FEATURES), atol=1e-6)


def test_a_stopped_triton_is_gone_within_seconds(tmp_path: Path) -> None:
    with running_triton(tmp_path) as local:
        triton.ready(local.url, control_key=local.control_key)
        started = time.monotonic()
        local.stop()
        assert time.monotonic() - started < 10


def test_a_client_of_a_killed_triton_is_told_so_whatever_its_backends_hold(tmp_path: Path) -> None:
    with running_triton(tmp_path) as local:
        client = HTTPConnection("127.0.0.1", local.ports[0], timeout=10)
        client.request("GET", "/v2/health/live")
        assert client.getresponse().read() == b""
        place(local, "late")
        local.server.load("late")  # its process starts while the client is connected
        assert local.process is not None
        backends = psutil.Process(local.process.pid).children(recursive=True)
        assert backends
        try:
            for backend in backends:
                backend.suspend()  # it would end by itself in a second or two, and what it holds with it
            local.stop(signal.SIGKILL)
            assert client.sock.recv(1) == b""
        finally:
            for backend in backends:
                backend.kill()


def test_nothing_is_told_to_anyone_outside(local: LocalTriton) -> None:
    triton.ready(local.url, control_key=local.control_key)
    assert local.process is not None
    for backend in psutil.Process(local.process.pid).children(recursive=True):
        assert [file.path for file in backend.open_files() if "Microsoft" in file.path] == []
        assert [link for link in backend.net_connections() if link.raddr] == []
