"""What readiness probes share: plain HTTP to loopback, and a probe that can't hang its caller."""

import json
import threading
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

# Loopback is never behind the proxy that the environment may name.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TIMEOUT_S = 5


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """GET. Any answer but 2xx raises."""
    with _OPENER.open(url, timeout=timeout_s) as answer:
        return bytes(answer.read())


def post(url: str, body: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> Any:
    """POST of JSON, the answer's JSON. Any answer but 2xx raises."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with _OPENER.open(request, timeout=timeout_s) as answer:
        return json.loads(answer.read())


def reason(probe: Callable[[], None], timeout_s: float) -> str | None:
    """Why the probe fails, None when it passes. It runs in a thread of its own, left behind when it hangs."""
    found: list[str | None] = []

    def attempt() -> None:
        try:
            probe()
        except Exception as error:  # whatever keeps a server from answering is the reason
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append(None)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else f"no answer within {timeout_s:g} s"
