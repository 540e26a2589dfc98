"""Envoy's bootstrap as data: what it listens to and logs. Pure; `local/envoy.py` writes it.

Field names are those of Envoy's v3 API: https://www.envoyproxy.io/docs/envoy/latest/api-v3/api.
"""

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from resources.envoy_fallback import DEGRADED, behind
from resources.envoy_front import Front
from resources.envoy_lua import LUA

Json = dict[str, Any]

TYPE = "type.googleapis.com/envoy."
ROUTES_FILE = "routes.json"
ROUTE_TABLE = "models"
INFER_ROUTE = "infer"
REQUEST_COUNTER = "inference.requests"
# The request header under which the access log finds whom a request is of, where a model's split is sticky.
UNIT = "x-unit"
# Which cell of the feature space a request lies in, by the client or the feature service before it.
CELL_HEADER = "x-trimtab-cell"
# Where an endpoint's metadata says of which pool it is.
METADATA = "trimtab"

# Lua buffers a gRPC request to read its model's name, and a retry needs the body again.
LARGEST_BUFFERED_BODY_BYTES = 64 * 1024 * 1024
BATCH_BYTES = 256 * 1024
# By these the observer reads a body.
BODY_HEADERS = ("content-type", "content-encoding", "inference-header-content-length")


def bootstrap(
    folder: Path,
    client_port: int,
    admin_port: int,
    pools: Mapping[str, tuple[int, int]],
    access_port: int,
    front: Front | None = None,
    lite: tuple[int, int] | None = None,
) -> Json:
    """What Envoy starts with. pools: name to (HTTP port, gRPC port); everything listens and connects on loopback.

    lite: ports of the tier that answers in need, behind every pool.

    Routes come from `folder/routes.json`, which Envoy reads again whenever it is replaced by a rename.
    """
    https = {name: [ports[0]] for name, ports in pools.items()}
    grpcs = {name: [ports[1]] for name, ports in pools.items()}
    clusters = [_cluster(f"{name}-http", [_endpoints({name: ports})], http2=False) for name, ports in https.items()]
    clusters += [_cluster(f"{name}-grpc", [_endpoints({name: ports})], http2=True) for name, ports in grpcs.items()]
    for first, second in permutations(pools, 2):
        for kind, ports in (("http", https), ("grpc", grpcs)):
            tiers = [_endpoints({name: ports[name]}) for name in (first, second)]
            clusters.append(_cluster(f"{paired(first, second)}-{kind}", tiers, http2=kind == "grpc"))
    clusters += [
        _cluster("any-http", [_endpoints(https)], http2=False),
        _cluster("any-grpc", [_endpoints(grpcs)], http2=True),
        # What the observer has not read yet waits here; beyond the limit entries are dropped.
        _cluster("access", [_endpoints({"observer": [access_port]})], http2=True)
        | {"per_connection_buffer_limit_bytes": LARGEST_BUFFERED_BODY_BYTES},
    ]
    if lite is not None:
        clusters = [behind(cluster, pools, lite) for cluster in clusters]
    front = front or Front()
    config = _connection_manager(folder)
    # The limit comes after the filter that finds the model, so that the log can count whose requests it refused.
    config["http_filters"] = [config["http_filters"][0], *front.filters(), *config["http_filters"][1:]]
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": config}
    listener = {
        "name": "clients",
        "address": _address(client_port),
        "per_connection_buffer_limit_bytes": LARGEST_BUFFERED_BODY_BYTES,
        "filter_chains": [front.chain([manager])],
    }
    return {
        "node": {"id": "gateway", "cluster": "gateway"},
        "admin": {"address": _address(admin_port)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def _address(port: int) -> Json:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _endpoints(ports: Mapping[str, list[int]]) -> list[Json]:
    """Each says of which pool it is."""
    return [
        {"endpoint": {"address": _address(port)}, "metadata": {"filter_metadata": {METADATA: {"pool": pool}}}}
        for pool, mine in ports.items()
        for port in mine
    ]


def paired(first: str, second: str) -> str:
    """A pool, and behind it another one for second tries: one cluster, so the access log names the first."""
    return f"{first}+{second}"


def _cluster(name: str, tiers: list[list[Json]], http2: bool) -> Json:
    """tiers: endpoints by priority; all traffic goes to the first but what a route's retry policy sends on."""
    protocol: Json = {"http2_protocol_options": {}} if http2 else {"http_protocol_options": {}}
    endpoints = [{"priority": priority, "lb_endpoints": tier} for priority, tier in enumerate(tiers)]
    # Envoy's defaults are too few when a pool restarts under load: of requests at once 1024, of retries three.
    limits = {"max_connections": 10_000, "max_pending_requests": 100_000, "max_requests": 100_000, "max_retries": 1_000}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": protocol,
            }
        },
    }


def _connection_manager(folder: Path) -> Json:
    source = {"path": str(folder / ROUTES_FILE), "watched_directory": {"path": str(folder)}}
    return {
        "@type": TYPE + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "codec_type": "AUTO",
        "rds": {"route_config_name": ROUTE_TABLE, "config_source": {"path_config_source": source}},
        # Nobody counts as internal, loopback neither: so x-envoy-* headers and request ids of clients are replaced.
        "use_remote_address": True,
        "internal_address_config": {"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        "generate_request_id": True,
        "always_set_request_id_in_response": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "local_reply_config": _local_replies(),
        "access_log": _access_logs(),
        "http_filters": [_lua(), named("router", "extensions.filters.http.router.v3.Router")],
    }


def named(name: str, kind: str, **fields: Any) -> Json:
    return {"name": name, "typed_config": {"@type": TYPE + kind, **fields}}


def _lua() -> Json:
    return named("lua", "extensions.filters.http.lua.v3.Lua", default_source_code={"inline_string": LUA})


def _local_replies() -> Json:
    """HTTP clients parse an error's body as JSON; of a gRPC error the text becomes the message as it stands."""
    is_grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    plain = {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}
    return {
        "mappers": [{"filter": {"header_filter": {"header": is_grpc}}, "body_format_override": plain}],
        "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
    }


def _access_logs() -> list[Json]:
    """The record of each inference request for the observer, bodies included, and Envoy's own count of the same."""
    is_inference = {
        "extension_filter": named(
            "cel",
            "extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            expression=f"xds.route_name == '{INFER_ROUTE}'",
        )
    }
    record = named(
        "envoy.access_loggers.http_grpc",
        "extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
        common_config={
            "log_name": "requests",
            "transport_api_version": "V3",
            "buffer_flush_interval": "0.5s",
            "buffer_size_bytes": BATCH_BYTES,
            "grpc_service": {"envoy_grpc": {"cluster_name": "access"}},
        },
        additional_request_headers_to_log=["x-model", "x-event-time", UNIT, CELL_HEADER, *BODY_HEADERS],
        # An answer without a body carries its grpc-status in the headers.
        additional_response_headers_to_log=["grpc-status", DEGRADED, *BODY_HEADERS],
        additional_response_trailers_to_log=["grpc-status"],
    )
    tags = [{"name": "model", "value_format": "%REQ(x-model)%"}]
    count = named(
        "envoy.access_loggers.stats",
        "extensions.access_loggers.stats.v3.Config",
        # Deprecated in 1.40 for a field that no earlier release and no published schema knows.
        stat_prefix=REQUEST_COUNTER.split(".")[0],
        counters=[{"stat": {"name": REQUEST_COUNTER.split(".")[1], "tags": tags}, "value_fixed": 1}],
    )
    return [{**record, "filter": is_inference}, {**count, "filter": is_inference}]
