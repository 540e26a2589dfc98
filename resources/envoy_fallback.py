"""The fallback as Envoy's data: a tier behind every pool, reached only by a second try. Pure.

The lite tier is the last priority of each pool's cluster. Nothing is sent there at first, whatever happens to the
pool: a route with a fallback asks the next priority when it tries again. So HTTP and gRPC, which carries the model's
name in its body, reach the copy under the same name; and where another pool serves the model as well, that comes first.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

# Answers of the lite tier carry it; the endpoint that answered says so, not the route.
DEGRADED = "x-degraded"
_MARK = "trimtab"


def behind(cluster: Json, pools: Mapping[str, tuple[int, int]], lite: tuple[int, int]) -> Json:
    """The cluster with the lite tier behind it, if it is one of a pool's. lite: HTTP and gRPC port."""
    name, _, kind = cluster["name"].rpartition("-")
    if name.partition("+")[0] not in pools:
        return cluster
    address = {"address": "127.0.0.1", "port_value": lite[0] if kind == "http" else lite[1]}
    endpoint = {
        "endpoint": {"address": {"socket_address": address}},
        "metadata": {"filter_metadata": {_MARK: {"pool": "lite", "degraded": "true"}}},
    }
    load = cluster["load_assignment"]
    last = {"priority": len(load["endpoints"]), "lb_endpoints": [endpoint]}
    return {**cluster, "load_assignment": {**load, "endpoints": [*load["endpoints"], last]}}


def with_fallback(route: Json, after_ms: float | None) -> Json:
    """The route, its next try in the lite tier. Routes that don't split requests stay as they are.

    after_ms: the copy is asked as well after so long, the first good answer counts; the first try goes on meanwhile.
    """
    action = route.get("route", {})
    if "weighted_clusters" not in action:
        return route
    retry = {
        **action["retry_policy"],
        # Another pool or none, the copy, and without another pool once more the first: the copy may be down as well.
        "num_retries": 2,
        "retry_priority": {
            "name": "envoy.retry_priorities.previous_priorities",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.priority.previous_priorities.v3"
                ".PreviousPrioritiesConfig",
                "update_frequency": 1,
            },
        },
        # Another server is asked, so there is nothing to wait for.
        "retry_back_off": {"base_interval": "0.002s", "max_interval": "0.02s"},
    }
    action = {**action, "retry_policy": retry}
    if after_ms is not None:
        retry["per_try_timeout"] = f"{after_ms / 1e3:.3f}s"
        action["hedge_policy"] = {"hedge_on_per_try_timeout": True}
    value = f"%UPSTREAM_METADATA({_MARK}:degraded)%"
    header = {"header": {"key": DEGRADED, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {**route, "route": action, "response_headers_to_add": [*route.get("response_headers_to_add", []), header]}
