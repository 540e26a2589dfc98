"""A tiny server of the Open Inference Protocol v2 for tests of what stands before it: HTTP and gRPC, any model name.

Run as `python -m tests.v2_server --http-port N --grpc-port N --version V`. It answers `probabilities` FP32 [n, 2] whose
last column is version / 100, counts infer requests (GET /count), and refuses nothing: not even model control.
With --delay-s every answer takes so long, with --unavailable it is 503 or UNAVAILABLE.
"""

import argparse
import gzip
import json
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda body: body,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


class Counts:
    def __init__(self) -> None:
        self.lock, self.infers = threading.Lock(), 0

    def add(self) -> None:
        with self.lock:
            self.infers += 1


def probabilities(rows: int, version: str) -> list[float]:
    return [1 - int(version) / 100, int(version) / 100] * rows


class Grpc(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, version: str, counts: Counts, unavailable: bool, delay_s: float) -> None:
        self.version, self.counts, self.unavailable, self.delay_s = version, counts, unavailable, delay_s

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self.counts.add()
        time.sleep(self.delay_s)
        if self.unavailable:
            context.abort(grpc.StatusCode.UNAVAILABLE, "queue is full")
        rows = request.inputs[0].shape[0]
        answer = service_pb2.ModelInferResponse(
            model_name=request.model_name, model_version=self.version, id=request.id
        )
        answer.outputs.add(name="probabilities", datatype="FP32", shape=[rows, 2])
        answer.raw_output_contents.append(struct.pack(f"<{2 * rows}f", *probabilities(rows, self.version)))
        return answer

    def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=True)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelMetadataResponse(name=request.name, versions=[self.version])

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        return service_pb2.RepositoryModelLoadResponse()


def http_handler(version: str, counts: Counts, unavailable: bool, delay_s: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if self.path == "/count":
                return self.answer(200, json.dumps(counts.infers).encode())
            self.answer(200, json.dumps({"path": self.path, "headers": dict(self.headers.items())}).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            body = UNPACK[self.headers.get("content-encoding", "")](body)
            found = re.fullmatch(r"/v2/models/([^/]+)(/versions/[^/]+)?/infer", self.path.partition("?")[0])
            if found is None:
                return self.answer(200, b"{}")
            counts.add()
            time.sleep(delay_s)
            if unavailable:
                return self.answer(503, b'{"error": "queue is full"}')
            length = int(self.headers.get("inference-header-content-length", len(body)))
            self.infer(found[1], json.loads(body[:length]))

        def infer(self, model: str, asked: dict[str, Any]) -> None:
            rows = asked["inputs"][0]["shape"][0]
            values = probabilities(rows, version)
            output: dict[str, Any] = {"name": "probabilities", "datatype": "FP32", "shape": [rows, 2]}
            parameters = asked.get("parameters", {}), *(o.get("parameters", {}) for o in asked.get("outputs", []))
            binary = any(p.get("binary_data_output") or p.get("binary_data") for p in parameters)
            raw = struct.pack(f"<{2 * rows}f", *values) if binary else b""
            output |= {"parameters": {"binary_data_size": len(raw)}} if binary else {"data": values}
            answer = {"model_name": model, "model_version": version, "id": asked.get("id", ""), "outputs": [output]}
            header = json.dumps(answer).encode()
            extra = {"Inference-Header-Content-Length": str(len(header))} if binary else {}
            self.answer(200, header + raw, extra)

        def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--version", default="1")
    parser.add_argument("--unavailable", action="store_true")
    parser.add_argument("--delay-s", type=float, default=0.0)
    args = parser.parse_args()
    counts = Counts()
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]  # as Triton
    server = grpc.server(ThreadPoolExecutor(8), options=options)
    servicer = Grpc(args.version, counts, args.unavailable, args.delay_s)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{args.grpc_port}")
    server.start()
    handler = http_handler(args.version, counts, args.unavailable, args.delay_s)
    ThreadingHTTPServer(("127.0.0.1", args.http_port), handler).serve_forever()


if __name__ == "__main__":
    main()
