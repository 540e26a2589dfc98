"""Triton's own HTTP API, as far as we need it, on the standard library: the agent beside each server stays small."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from resources.errors import ModelNotReady, ServingError

# Carries the key of model control where that is restricted; by gRPC it is `triton-grpc-protocol-<this>`.
CONTROL_HEADER = "x-trimtab-control"
# A Triton is never behind the proxy that the environment may name.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """One line of the repository index. state: READY, LOADING, UNLOADING or UNAVAILABLE."""

    model: str
    version: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class TritonServer:
    """One Triton. A refusal raises `ModelNotReady` with the server's own words, silence raises `ServingError`."""

    url: str
    timeout_s: float = 60
    control_key: str = field(default="", repr=False)

    def index(self) -> list[LoadedVersion]:
        """What was loaded since the start, in whatever state; folders never loaded are left out."""
        lines = self.call("/v2/repository/index", {})
        return [
            LoadedVersion(line["name"], int(line["version"]), line.get("state", ""), line.get("reason", ""))
            for line in lines
            if "version" in line
        ]

    def ready_versions(self, model: str) -> set[int]:
        return {line.version for line in self.index() if line.model == model and line.state == "READY"}

    def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Load or reload; returns when done. A version without its folder is dropped in silence: ask the index.

        config: in place of the repository's own; it stays in force until the files change.
        """
        body = {} if config is None else {"parameters": {"config": json.dumps(config)}}
        self.call(f"/v2/repository/models/{quote(model)}/load", body)

    def unload(self, model: str) -> None:
        """Returns at once; queued requests still finish."""
        self.call(f"/v2/repository/models/{quote(model)}/unload", {})

    def infer(self, model: str, body: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
        """One inference by the Open Inference Protocol, JSON in and out."""
        part = f"/versions/{version}" if version is not None else ""
        answer: dict[str, Any] = self.call(f"/v2/models/{quote(model)}{part}/infer", body)
        return answer

    def statistics(self, model: str, version: int) -> dict[str, Any]:
        """Triton's inference statistics of one version; they begin again at zero when it is loaded again."""
        answer = self.call(f"/v2/models/{quote(model)}/versions/{version}/stats", None)
        stats: dict[str, Any] = answer["model_stats"][0]["inference_stats"]
        return stats

    def call(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """POST of the body, GET without one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.control_key and path.startswith("/v2/repository/"):
            headers[CONTROL_HEADER] = self.control_key
        request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            raise ModelNotReady(f"{self.url}{path}: {_message(error)}") from error
        except (OSError, ValueError) as error:
            raise ServingError(f"{self.url} does not answer {path}: {error}: is Triton up?") from error


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]).strip()
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code} {text}".strip()
