"""Envoy's routes file as data: which requests pass, and by which split. Pure; `gateway.py` writes it."""

from collections.abc import Mapping, Sequence

from resources.envoy_config import (
    CELL_HEADER,
    INFER_ROUTE,
    METADATA,
    ROUTE_TABLE,
    TYPE,
    UNIT,
    Json,
    named,
    paired,
)
from resources.envoy_fallback import with_fallback

_TIMEOUT = "300s"
# Not by the cluster: a second try may have been answered by the other pool.
ANSWERED_BY = f"%UPSTREAM_METADATA({METADATA}:pool)%"
_GRPC_SERVICE = "/inference.GRPCInferenceService/"
_GRPC_ABOUT_MODEL = "Model(Ready|Metadata|Config|Statistics)"
_GRPC_ABOUT_SERVER = "Server(Live|Ready|Metadata)"
# Which model it is was decided by x-model, which the Lua filter took from this very path.
_HTTP_MODEL = "/v2/models/[^/]+(/versions/[^/]+)?"
_HTTP_ABOUT_SERVER = "/v2(/health/(live|ready))?"

_GRPC_UNIMPLEMENTED, _GRPC_NOT_FOUND = "12", "5"
_NOT_OPEN = "not open here: the gateway serves infer, ready, metadata, config and stats of models, and server health"
_UNKNOWN = "unknown model: the gateway has no split for it"


def routes(
    splits: Mapping[str, tuple[Mapping[str, int], str | None]],
    version: str,
    sticky: Mapping[str, str] | None = None,
    copied: Mapping[str, int] | None = None,
    needed: Mapping[str, tuple[Sequence[int], Mapping[str, int]]] | None = None,
    fallbacks: Mapping[str, float | None] | None = None,
) -> Json:
    """The whole routes file: model to (weights in percent by pool, mirror pool), side by side.

    sticky: models of which a request's pool is chosen by a header, and that header. copied: models of which not all
    requests are copied to the mirror, and how many percent are. needed: model to (cells, weights of requests whose
    header names one of them). fallbacks: models that the lite tier answers for in need, and the ms after which it is
    asked as well, or None.

    Models are found by one hash lookup of `x-model`, which the Lua filter wrote: a thousand models cost what one costs.
    """
    host: Json = {"name": "all", "domains": ["*"]}
    if splits:
        header = {"@type": TYPE + "type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": "x-model"}
        models = {
            model: [
                *_needed_routes(*(needed or {}).get(model, ((), {}))),
                *(
                    _by_header(_mirrored(route, (copied or {}).get(model, 100)), (sticky or {}).get(model))
                    for route in _model_routes(weights, mirror)
                ),
            ]
            for model, (weights, mirror) in splits.items()
        }
        models |= {
            model: [with_fallback(route, after_ms) for route in models[model]]
            for model, after_ms in (fallbacks or {}).items()
            if model in models
        }
        host["matcher"] = {
            "matcher_tree": {
                "input": {"name": "model", "typed_config": header},
                "exact_match_map": {"map": {model: _route_list(entries) for model, entries in models.items()}},
            },
            "on_no_match": _route_list(_other_routes()),
        }
    else:
        host["routes"] = _other_routes()
    table = {"@type": TYPE + "config.route.v3.RouteConfiguration", "name": ROUTE_TABLE, "virtual_hosts": [host]}
    return {"version_info": version, "resources": [table]}


def _route_list(entries: list[Json]) -> Json:
    return {"action": named("routes", "config.route.v3.RouteList", routes=entries)}


def _needed_routes(cells: Sequence[int], weights: Mapping[str, int]) -> list[Json]:
    """Before all others: a request that names one of these cells is split at random too, by other weights."""
    if not cells:
        return []
    exact = {"safe_regex": {"regex": "|".join(str(cell) for cell in cells)}}
    header = {"headers": [{"name": CELL_HEADER, "string_match": exact}]}
    return [{**route, "match": {**route["match"], **header}} for route in _infer_routes(weights, None)]


def _infer_routes(weights: Mapping[str, int], mirror: str | None) -> list[Json]:
    return [
        _route({"path": _GRPC_SERVICE + "ModelInfer"}, _split("grpc", weights, mirror), INFER_ROUTE),
        _route(_regex(_HTTP_MODEL + "/infer"), _split("http", weights, mirror), INFER_ROUTE),
    ]


def _model_routes(weights: Mapping[str, int], mirror: str | None) -> list[Json]:
    return [
        *_infer_routes(weights, mirror),
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
    return _GRPC_SERVICE.replace(".", r"\.")


def _regex(expression: str) -> Json:
    return {"safe_regex": {"regex": expression}}


def _route(match: Json, action: Json, name: str = "about") -> Json:
    return {"name": name, "match": match, "route": action}


def _split(kind: str, weights: Mapping[str, int], mirror: str | None) -> Json:
    """Each request goes to one pool at random by weight, and a copy to the mirror, whose answer Envoy drops.

    A pool of weight 0 gets second tries only.
    """
    behind = {pool: next((other for other in sorted(weights) if other != pool), None) for pool in weights}
    names = {pool: pool if other is None else paired(pool, other) for pool, other in behind.items()}
    clusters = [
        {
            "name": f"{names[pool]}-{kind}",
            "weight": percent,
            "response_headers_to_add": [_header("x-pool", ANSWERED_BY)],
        }
        for pool, percent in sorted(weights.items())
        if percent > 0
    ]
    action: Json = {
        "weighted_clusters": {"clusters": clusters},
        "timeout": _TIMEOUT,
        "retry_policy": _second_try(elsewhere=len(weights) > 1),
    }
    if mirror is not None:
        action["request_mirror_policies"] = [{"cluster": f"{mirror}-{kind}"}]
    return action


def _mirrored(route: Json, percent: int) -> Json:
    """The route, with copies of that share of its requests."""
    policies = route.get("route", {}).get("request_mirror_policies", [])
    if percent == 100 or not policies:
        return route
    part = {"default_value": {"numerator": percent, "denominator": "HUNDRED"}}
    some = [{**policy, "runtime_fraction": part} for policy in policies]
    return {**route, "route": {**route["route"], "request_mirror_policies": some}}


def _by_header(route: Json, name: str | None) -> Json:
    """The route, its pool chosen by a hash of the header's value: a pool whose share grows keeps whom it has.

    The value goes into the access log as `UNIT`; the observer keeps no more of it than a hash.
    """
    if name is None or route["name"] != INFER_ROUTE:
        return route
    action = route["route"]
    clusters = {**action["weighted_clusters"], "use_hash_policy": True}
    chosen = {**action, "weighted_clusters": clusters, "hash_policy": [{"header": {"header_name": name}}]}
    return {**route, "route": chosen, "request_headers_to_add": [_header(UNIT, f"%REQ({name})%")]}


def _second_try(*, elsewhere: bool) -> Json:
    """Inference changes nothing, so it may be asked twice, even when the connection broke after it was sent.

    elsewhere: another pool serves the model too, be it with weight 0, and gets the second try.
    """
    policy: Json = {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes,unavailable",
        "retriable_status_codes": [503],
        "num_retries": 1,
        "retry_back_off": {"base_interval": "0.05s", "max_interval": "0.5s"},
    }
    if elsewhere:
        policy["retry_priority"] = named(
            "envoy.retry_priorities.previous_priorities",
            "extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
            update_frequency=1,
        )
    return policy


def _anywhere(kind: str) -> Json:
    """Questions about the server are answered by any pool that is up."""
    return {
        "cluster": f"any-{kind}",
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset-before-request",
            "num_retries": 2,
            "retry_host_predicate": [
                named(
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
    common = {"name": "refused", "direct_response": answer}
    return [
        {
            **common,
            "match": {"prefix": "/", "headers": [is_grpc]},
            "response_headers_to_add": [_header("grpc-status", grpc_status)],
        },
        {**common, "match": {"prefix": "/"}},
    ]
