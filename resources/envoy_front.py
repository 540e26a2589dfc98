"""What clients meet first: TLS and a limit of requests a second, as the operator asked for when the stack started.

Both are off unless asked for: one machine listens on loopback only. The certificate and its key are named, not copied;
Envoy reads them when it starts.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resources.errors import StackError

Json = dict[str, Any]

FRONT_FILE = "front.json"
_TYPE = "type.googleapis.com/envoy."


@dataclass(frozen=True, slots=True)
class Front:
    """certificate, key: PEM files, both or neither. requests_per_s: of all clients together; beyond it the answer is
    429, or RESOURCE_EXHAUSTED, and the access log counts it with no pool.
    """

    certificate: str | None = None
    key: str | None = None
    requests_per_s: int | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise StackError("gateway: TLS needs a certificate and its key: give both, or neither")
        for name in (self.certificate, self.key):
            if name is not None and not (Path(name).is_absolute() and Path(name).is_file()):
                raise StackError(f"gateway: {name}: no such file, or no absolute path: name a PEM file")
        if self.requests_per_s is not None and self.requests_per_s < 1:
            raise StackError(f"gateway: {self.requests_per_s} requests a second: give at least 1, or none for no limit")

    def filters(self) -> list[Json]:
        """HTTP filters before those that route."""
        if self.requests_per_s is None:
            return []
        always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
        limit = {
            "@type": _TYPE + "extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "clients",
            "token_bucket": {
                "max_tokens": self.requests_per_s,
                "tokens_per_fill": self.requests_per_s,
                "fill_interval": "1s",
            },
            "filter_enabled": always,
            "filter_enforced": always,
            "rate_limited_as_resource_exhausted": True,
        }
        return [{"name": "limit", "typed_config": limit}]

    def chain(self, filters: list[Json]) -> Json:
        """The listener's filter chain. Both protocols share the port, so both are offered."""
        if self.certificate is None:
            return {"filters": filters}
        pair = {"certificate_chain": {"filename": self.certificate}, "private_key": {"filename": self.key}}
        context = {
            "@type": _TYPE + "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": [pair]},
        }
        return {"filters": filters, "transport_socket": {"name": "tls", "typed_config": context}}


def read_front(folder: Path) -> Front:
    """What the gateway of this folder was asked for; nothing in a new one. `StackError` when its files are gone."""
    try:
        saved = json.loads((folder / FRONT_FILE).read_text())
    except FileNotFoundError:
        return Front()
    return Front(**saved)


def write_front(folder: Path, front: Front) -> None:
    """For the next start of the gateway, by whomever."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{FRONT_FILE}.new"
    fresh.write_text(json.dumps(asdict(front)))
    os.replace(fresh, folder / FRONT_FILE)
