"""Envoy's configuration as data: pure builders of the bootstrap and of the routes file. Only `gateway.py` writes them.

Field names are those of Envoy's v3 API: https://www.envoyproxy.io/docs/envoy/latest/api-v3/api.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resources.envoy_lua import MODEL_NAME

Json = dict[str, Any]

TYPE = "type.googleapis.com/envoy."
ROUTES_FILE = "routes.json"
ROUTE_TABLE = "models"
INFER_ROUTE = "infer"
REQUEST_COUNTER = "inference.requests"

# Lua buffers a gRPC request to read its model's name, and a retry needs the body again.
LARGEST_BUFFERED_BODY_BYTES = 64 * 1024 * 1024
INFERENCE_TIMEOUT = "300s"
# How far behind the observer may fall before Envoy's reset takes away what it has not read.
COPY_OPEN = "2s"

GRPC_SERVICE = "/inference.GRPCInferenceService/"
_GRPC_ABOUT_MODEL = "Model(Ready|Metadata|Config|Statistics)"
_GRPC_ABOUT_SERVER = "Server(Live|Ready|Metadata)"
# Which model it is was decided by x-model, which the Lua filter took from this very path.
_HTTP_MODEL = "/v2/models/[^/]+(/versions/[^/]+)?"
_HTTP_ABOUT_SERVER = "/v2(/health/(live|ready))?"

_COPIED = {
    "request_header_mode": "SEND",
    "response_header_mode": "SEND",
    "request_body_mode": "STREAMED",
    "response_body_mode": "STREAMED",
    "request_trailer_mode": "SKIP",
    "response_trailer_mode": "SKIP",
}

_GRPC_UNIMPLEMENTED, _GRPC_NOT_FOUND = "12", "5"
_NOT_OPEN = "not open here: the gateway serves infer, ready, metadata, config and stats of models, and server health"
_UNKNOWN = "unknown model: the gateway has no split for it"


def bootstrap(
    folder: Path,
    client_port: int,
    admin_port: int,
    pools: Mapping[str, tuple[int, int]],
    access_port: int,
    copies_port: int,
) -> Json:
    """What Envoy starts with. pools: name to (HTTP port, gRPC port); everything listens and connects on loopback.

    Routes come from `folder/routes.json`, which Envoy reads again whenever it is replaced by a rename.
    """
    https = {name: [ports[0]] for name, ports in pools.items()}
    grpcs = {name: [ports[1]] for name, ports in pools.items()}
    clusters = [_cluster(f"{name}-http", ports, http2=False) for name, ports in https.items()]
    clusters += [_cluster(f"{name}-grpc", ports, http2=True) for name, ports in grpcs.items()]
    clusters += [
        _cluster("any-http", [port for ports in https.values() for port in ports], http2=False),
        _cluster("any-grpc", [port for ports in grpcs.values() for port in ports], http2=True),
        _cluster("access", [access_port], http2=True),
        _cluster("copies", [copies_port], http2=True),
    ]
    manager = {"name": "envoy.filters.network.http_connection_manager", "typed_config": _connection_manager(folder)}
    listener = {
        "name": "clients",
        "address": _address(client_port),
        "per_connection_buffer_limit_bytes": LARGEST_BUFFERED_BODY_BYTES,
        "filter_chains": [{"filters": [manager]}],
    }
    return {
        "node": {"id": "gateway", "cluster": "gateway"},
        "admin": {"address": _address(admin_port)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def routes(splits: Mapping[str, tuple[Mapping[str, int], str | None]], version: str) -> Json:
    """The whole routes file: model to (weights in percent by pool, mirror pool), side by side.

    Models are found by one hash lookup of `x-model`, which the Lua filter wrote: a thousand models cost what one costs.
    """
    host: Json = {"name": "all", "domains": ["*"]}
    if splits:
        header = {"@type": TYPE + "type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": "x-model"}
        models = {model: _route_list(_model_routes(weights, mirror)) for model, (weights, mirror) in splits.items()}
        host["matcher"] = {
            "matcher_tree": {
                "input": {"name": "model", "typed_config": header},
                "exact_match_map": {"map": models},
            },
            "on_no_match": _route_list(_other_routes()),
        }
    else:
        host["routes"] = _other_routes()
    table = {"@type": TYPE + "config.route.v3.RouteConfiguration", "name": ROUTE_TABLE, "virtual_hosts": [host]}
    return {"version_info": version, "resources": [table]}


def _address(port: int) -> Json:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _cluster(name: str, ports: list[int], http2: bool) -> Json:
    protocol: Json = {"http2_protocol_options": {}} if http2 else {"http_protocol_options": {}}
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    # One stream a request is held open until deferred_close_timeout: the default of 1024 drops copies in silence,
    # and the default of three retries at a time is too few when a pool restarts under load.
    limits = {"max_connections": 10_000, "max_pending_requests": 100_000, "max_requests": 100_000, "max_retries": 1_000}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
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
        "http_filters": [_lua(), _copies(), _named("router", "extensions.filters.http.router.v3.Router")],
    }


def _named(name: str, kind: str, **fields: Any) -> Json:
    return {"name": name, "typed_config": {"@type": TYPE + kind, **fields}}


def _lua() -> Json:
    return _named("lua", "extensions.filters.http.lua.v3.Lua", default_source_code={"inline_string": MODEL_NAME})


def _local_replies() -> Json:
    """HTTP clients parse an error's body as JSON; of a gRPC error the text becomes the message as it stands."""
    is_grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    plain = {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}
    return {
        "mappers": [{"filter": {"header_filter": {"header": is_grpc}}, "body_format_override": plain}],
        "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
    }


def _access_logs() -> list[Json]:
    """The record of each inference request for the observer, and Envoy's own count of the same requests."""
    is_inference = {
        "extension_filter": _named(
            "cel",
            "extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            expression=f"xds.route_name == '{INFER_ROUTE}'",
        )
    }
    record = _named(
        "envoy.access_loggers.http_grpc",
        "extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
        common_config={
            "log_name": "requests",
            "transport_api_version": "V3",
            "buffer_flush_interval": "0.5s",
            "grpc_service": {"envoy_grpc": {"cluster_name": "access"}},
        },
        additional_request_headers_to_log=["x-model", "x-event-time"],
        # An answer without a body carries its grpc-status in the headers.
        additional_response_headers_to_log=["grpc-status"],
        additional_response_trailers_to_log=["grpc-status"],
    )
    tags = [{"name": "model", "value_format": "%REQ(x-model)%"}]
    count = _named(
        "envoy.access_loggers.stats",
        "extensions.access_loggers.stats.v3.Config",
        # Deprecated in 1.40 for a field that no earlier release and no published schema knows.
        stat_prefix=REQUEST_COUNTER.split(".")[0],
        counters=[{"stat": {"name": REQUEST_COUNTER.split(".")[1], "tags": tags}, "value_fixed": 1}],
    )
    return [{**record, "filter": is_inference}, {**count, "filter": is_inference}]


def _copies() -> Json:
    """Copies of bodies for the observer. Envoy does not wait for it, and serves on without it."""
    names = [
        "x-request-id",
        "x-model",
        "x-event-time",
        "content-type",
        "content-encoding",
        "inference-header-content-length",
        ":status",
    ]
    return _named(
        "copies",
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "copies"}, "timeout": "0.5s"},
        observability_mode=True,
        failure_mode_allow=True,
        deferred_close_timeout=COPY_OPEN,
        forward_rules={"allowed_headers": {"patterns": [{"exact": name} for name in names]}},
        processing_mode=_COPIED,
    )


def _route_list(entries: list[Json]) -> Json:
    return {"action": _named("routes", "config.route.v3.RouteList", routes=entries)}


def _model_routes(weights: Mapping[str, int], mirror: str | None) -> list[Json]:
    return [
        {
            **_route({"path": GRPC_SERVICE + "ModelInfer"}, _split("grpc", weights, mirror), INFER_ROUTE),
            "typed_per_filter_config": _grpc_copies(),
        },
        _route(_regex(_HTTP_MODEL + "/infer"), _split("http", weights, mirror), INFER_ROUTE),
        _route(_regex(_quoted_service() + _GRPC_ABOUT_MODEL), _split("grpc", weights, None)),
        _route(_regex(_HTTP_MODEL + "(/(ready|config|stats))?"), _split("http", weights, None)),
        *_refusals(_NOT_OPEN, _GRPC_UNIMPLEMENTED),
    ]


def _other_routes() -> list[Json]:
    named = {"headers": [{"name": "x-model", "present_match": True}]}
    return [
        _route(_regex(_quoted_service() + _GRPC_ABOUT_SERVER), _anywhere("grpc")),
        _route(_regex(_HTTP_ABOUT_SERVER), _anywhere("http")),
        *[
            {**route, "match": {**route["match"], "headers": route["match"].get("headers", []) + named["headers"]}}
            for route in _refusals(_UNKNOWN, _GRPC_NOT_FOUND)
        ],
        *_refusals(_NOT_OPEN, _GRPC_UNIMPLEMENTED),
    ]


def _quoted_service() -> str:
    return GRPC_SERVICE.replace(".", r"\.")


def _regex(expression: str) -> Json:
    return {"safe_regex": {"regex": expression}}


def _route(match: Json, action: Json, name: str = "about") -> Json:
    route = {"name": name, "match": match, "route": action}
    return route if name == INFER_ROUTE else {**route, "typed_per_filter_config": _uncopied()}


def _grpc_copies() -> Json:
    """Only trailers end a gRPC answer: with them the observer need not wait for the stream to be closed."""
    mode = {**_COPIED, "response_header_mode": "SKIP", "response_trailer_mode": "SEND"}
    kind = TYPE + "extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    return {"copies": {"@type": kind, "overrides": {"processing_mode": mode}}}


def _uncopied() -> Json:
    return {"copies": {"@type": TYPE + "extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "disabled": True}}


def _split(kind: str, weights: Mapping[str, int], mirror: str | None) -> Json:
    """Each request goes to one pool at random by weight, and a copy to the mirror, whose answer Envoy drops."""
    clusters = [
        {"name": f"{pool}-{kind}", "weight": percent, "response_headers_to_add": [_header("x-pool", pool)]}
        for pool, percent in sorted(weights.items())
        if percent > 0
    ]
    action: Json = {
        "weighted_clusters": {"clusters": clusters},
        "timeout": INFERENCE_TIMEOUT,
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes,unavailable",
            "retriable_status_codes": [503],
            "num_retries": 1,
            "retry_back_off": {"base_interval": "0.05s", "max_interval": "0.5s"},
        },
    }
    if mirror is not None:
        action["request_mirror_policies"] = [{"cluster": f"{mirror}-{kind}"}]
    return action


def _anywhere(kind: str) -> Json:
    """Questions about the server are answered by any pool that is up."""
    return {
        "cluster": f"any-{kind}",
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset-before-request",
            "num_retries": 2,
            "retry_host_predicate": [
                _named(
                    "envoy.retry_host_predicates.previous_hosts",
                    "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                )
            ],
            "host_selection_retry_max_attempts": 3,
        },
    }


def _header(key: str, value: str) -> Json:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _refusals(reason: str, grpc_status: str) -> list[Json]:
    answer = {"status": 404, "body": {"inline_string": reason}}
    is_grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    common = {"name": "refused", "direct_response": answer, "typed_per_filter_config": _uncopied()}
    return [
        {
            **common,
            "match": {"prefix": "/", "headers": [is_grpc]},
            "response_headers_to_add": [_header("grpc-status", grpc_status)],
        },
        {**common, "match": {"prefix": "/"}},
    ]
