"""The observer's HTTP interface on loopback: GET /healthz /metrics /status /completeness /drift, POST /flush."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipelines.observer.service import Observer
from resources.errors import TrimtabError


def serve(observer: Observer, port: int) -> ThreadingHTTPServer:
    """Answer in threads of its own until `shutdown()`."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(observer))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _handler(observer: Observer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            match url.path:
                case "/healthz":
                    self._json(lambda: {"ok": True})
                case "/status":
                    self._json(observer.status)
                case "/completeness":
                    self._json(lambda: observer.completeness(_since(url.query)))
                case "/drift":
                    self._json(observer.live.status)
                case "/metrics":
                    self._send(200, observer.metrics_text(), "text/plain; version=0.0.4; charset=utf-8")
                case _:
                    self._error(404, f"no {url.path} here: try /healthz, /metrics, /status, /completeness, /drift")

        def do_POST(self) -> None:
            if self.path == "/flush":
                self._json(observer.flush)
            else:
                self._error(404, f"no {self.path} here: POST /flush writes what is held")

        def _json(self, answer: Callable[[], Any]) -> None:
            try:
                body = json.dumps(answer())
            except TrimtabError as error:
                self._error(503, str(error))
            except ValueError as error:
                self._error(400, str(error))
            else:
                self._send(200, body.encode(), "application/json")

        def _error(self, code: int, reason: str) -> None:
            self._send(code, json.dumps({"error": reason}).encode(), "application/json")

        def _send(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet: Prometheus asks every few seconds."""

    return Handler


def _since(query: str) -> float | None:
    values = parse_qs(query).get("since")
    return float(values[0]) if values else None
