"""How Triton starts on one machine: the nvidia-pytriton wheel's binary and our onnxruntime backend, on loopback."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

from resources.errors import ModelNotReady, ServingError, StackError
from resources.local import hidden
from resources.triton import CONTROL_HEADER, TritonServer

PROBE = "trimtab_probe"
# perf_analyzer asks for these names; the wheel carries them under names with a hash.
LINKS = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
# Closed to everyone without the key: whoever may load a model past its agent serves what nobody signed.
CONTROL = "model-repository,shared-memory,trace,logging"
PROBE_CONFIG = f"""name: "{PROBE}"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "probabilities" data_type: TYPE_FP32 dims: [ 2 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


def prepare(servers: Path, backends: Path, repository: Path) -> None:
    """Make the backends folder, the links for perf_analyzer and the probe model; safe to repeat. `StackError`.

    servers: the servers' virtual environment; our backend lies beside it in `onnxruntime/`.
    """
    wheel = _wheel(servers)
    stub = wheel / "python_backend_stubs" / _python(servers).name.removeprefix("python") / "triton_python_backend_stub"
    shim = servers.parent / "onnxruntime" / "model.py"
    for file in (stub, shim):
        if not file.is_file():
            raise StackError(f"triton: {file} is missing: sync the servers' environment from deploy/servers")
    for source in (*(wheel / "backends" / "python").iterdir(), stub):
        if source.is_file():
            _place(source, backends / "python" / source.name)
    _place(shim, backends / "onnxruntime" / "model.py")
    for binary in (backends / "python" / stub.name, wheel / "bin" / "tritonserver"):
        if not os.access(binary, os.X_OK):
            binary.chmod(binary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    _link_libraries(_libraries(servers))
    _write_probe(repository)


def command(
    servers: Path,
    backends: Path,
    repository: Path,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    *,
    config_name: str = "",
) -> list[str]:
    """Arguments of a Triton on loopback that loads what it is told to and nothing else.

    config_name: of this device; a model with `configs/<config_name>.pbtxt` is served by that instead of `config.pbtxt`.
    """
    return [
        str(_wheel(servers) / "bin" / "tritonserver"),
        f"--backend-directory={backends}",
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        # Strict readiness fails while any model loads, and for good after one failed load.
        "--strict-readiness=false",
        "--exit-timeout-secs=5",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--allow-gpu-metrics=false",
        *([f"--model-config-name={config_name}"] if config_name else []),
    ]


def restricted(command: list[str], key: str) -> tuple[list[str], dict[str, str]]:
    """The same Triton, whose model control asks for a key; what to add to its environment, which carries it.

    Triton takes the key as an argument only. `ps` does not show it: see `hidden`.
    """
    words, variables = hidden.hidden(
        [
            f"--http-restricted-api={CONTROL}:{CONTROL_HEADER}={key}",
            f"--grpc-restricted-protocol={CONTROL}:{CONTROL_HEADER}={key}",
        ]
    )
    return [sys.executable, "-I", hidden.__file__, *command, *words], variables


def environment(servers: Path) -> dict[str, str]:
    """The child's environment. The stub finds its Python by PATH and VIRTUAL_ENV."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LD_"))}
    return inherited | {
        "PATH": f"{servers / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "VIRTUAL_ENV": str(servers),
        "LD_LIBRARY_PATH": str(_libraries(servers)),
    }


def ready(http_url: str, timeout_s: float = 30, control_key: str = "") -> None:
    """A real inference on the probe model, loaded first when it is not; `ServingError` with the reason."""
    server = TritonServer(http_url, timeout_s, control_key)
    if not server.ready_versions(PROBE):
        server.load(PROBE)
    question = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.25]}
    outputs = server.infer(PROBE, {"inputs": [question]})["outputs"]
    if outputs[0]["data"] != [0.75, 0.25]:
        raise ModelNotReady(f"{http_url} {PROBE}: answered {outputs} instead of [0.75, 0.25]")


def await_ready(
    http_url: str, process: "subprocess.Popen[bytes]", log: Path, timeout_s: float, control_key: str = ""
) -> None:
    """Until the server answers; `ServingError` with the end of its log when it died or never does."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            ready(http_url, control_key=control_key)
            return
        except ServingError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise ServingError(f"Triton did not start: {error}\n{last}") from error
            time.sleep(0.1)


def _python(servers: Path) -> Path:
    found = sorted((servers / "lib").glob("python3.*"))
    if not found:
        raise StackError(f"triton: {servers} is no virtual environment: sync it from deploy/servers")
    return found[-1]


def _wheel(servers: Path) -> Path:
    return _python(servers) / "site-packages" / "pytriton" / "tritonserver"


def _libraries(servers: Path) -> Path:
    return _python(servers) / "site-packages" / "nvidia_pytriton.libs"


def _place(source: Path, target: Path) -> None:
    """Copy by rename when the content differs, so that a running server never sees half a file."""
    if target.is_file() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy(source, partial)
    partial.replace(target)


def _link_libraries(folder: Path) -> None:
    for name, pattern in LINKS.items():
        if not (folder / name).exists():
            found = sorted(folder.glob(pattern))
            if not found:
                raise StackError(f"triton: {folder} holds no {pattern}: perf_analyzer can't start")
            partial = folder / f".{name}.{os.getpid()}"
            partial.symlink_to(found[0].name)
            partial.replace(folder / name)


def _write_probe(repository: Path) -> None:
    """A model of one operation, [1 - x, x]: what readiness is asked of."""
    folder = repository / PROBE
    if (folder / "config.pbtxt").is_file():
        return
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["one", "x"], ["rest"]),
            helper.make_node("Concat", ["rest", "x"], ["probabilities"], axis=1),
        ],
        PROBE,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "config.pbtxt").write_text(PROBE_CONFIG)
