import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.envoy_config import bootstrap
from resources.envoy_routes import routes
from resources.gateway import Fallback, Split, read_fallbacks, read_splits, write_splits
from resources.local import envoy

POOLS = {"blue": (8000, 8001), "green": (8100, 8101)}


def model_routes(table: dict[str, Any], model: str) -> list[dict[str, Any]]:
    host = table["resources"][0]["virtual_hosts"][0]
    found: list[dict[str, Any]] = host["matcher"]["matcher_tree"]["exact_match_map"]["map"][model]["action"][
        "typed_config"
    ]["routes"]
    return found


def infer_routes(table: dict[str, Any], model: str) -> list[dict[str, Any]]:
    return [route for route in model_routes(table, model) if route["name"] == "infer"]


@given(st.integers(0, 100))
def test_a_pool_of_weight_zero_is_in_no_route(green: int) -> None:
    table = routes({"m": ({"blue": 100 - green, "green": green}, None)}, "1")
    for route in infer_routes(table, "m"):
        weights = {c["name"]: c["weight"] for c in route["route"]["weighted_clusters"]["clusters"]}
        assert sum(weights.values()) == 100
        assert all(weights.values())
        assert any(name.startswith("green") for name in weights) == (green > 0)


def retries(weights: dict[str, int]) -> list[dict[str, Any]]:
    return [route["route"]["retry_policy"] for route in infer_routes(routes({"m": (weights, None)}, "1"), "m")]


def test_a_second_try_goes_to_the_other_pool_only_where_that_serves_the_model_too() -> None:
    assert all("retry_priority" not in policy for policy in retries({"blue": 100}))
    for weights in ({"blue": 99, "green": 1}, {"blue": 0, "green": 100}):
        assert all("previous_priorities" in policy["retry_priority"]["name"] for policy in retries(weights))


def test_a_sticky_model_is_split_by_a_hash_of_its_header_and_the_log_is_told_whose_request_it_was() -> None:
    table = routes({"m": ({"blue": 90, "green": 10}, None), "n": ({"blue": 100}, None)}, "1", sticky={"m": "x-user"})
    for route in infer_routes(table, "m"):
        assert route["route"]["hash_policy"] == [{"header": {"header_name": "x-user"}}]
        assert route["route"]["weighted_clusters"]["use_hash_policy"]
        assert route["request_headers_to_add"][0]["header"] == {"key": "x-unit", "value": "%REQ(x-user)%"}
    assert all("hash_policy" not in route["route"] for route in infer_routes(table, "n"))


def test_a_pair_holds_the_first_pools_endpoints_first_and_each_says_whose_it_is() -> None:
    clusters = {c["name"]: c for c in bootstrap(Path("/x"), 1, 2, POOLS, 3)["static_resources"]["clusters"]}
    for protocol, at in (("http", 0), ("grpc", 1)):
        tiers = clusters[f"green+blue-{protocol}"]["load_assignment"]["endpoints"]
        assert [tier["priority"] for tier in tiers] == [0, 1]
        assert len(clusters[f"green-{protocol}"]["load_assignment"]["endpoints"]) == 1
        for tier, pool in zip(tiers, ("green", "blue"), strict=True):
            (endpoint,) = tier["lb_endpoints"]
            assert endpoint["metadata"]["filter_metadata"] == {"trimtab": {"pool": pool}}
            assert endpoint["endpoint"]["address"]["socket_address"]["port_value"] == POOLS[pool][at]


def test_only_infer_requests_are_mirrored_and_to_the_cluster_of_their_protocol() -> None:
    table = routes({"m": ({"blue": 100}, "green")}, "1")
    mirrors = [route["route"].get("request_mirror_policies") for route in model_routes(table, "m") if "route" in route]
    assert mirrors == [[{"cluster": "green-grpc"}], [{"cluster": "green-http"}], None, None]


def test_a_part_of_the_requests_may_be_copied() -> None:
    table = routes({"m": ({"blue": 100}, "green"), "n": ({"blue": 100}, "green")}, "1", copied={"m": 20})
    for route in infer_routes(table, "m"):
        (policy,) = route["route"]["request_mirror_policies"]
        assert policy["runtime_fraction"]["default_value"] == {"numerator": 20, "denominator": "HUNDRED"}
    assert all(
        "runtime_fraction" not in route["route"]["request_mirror_policies"][0] for route in infer_routes(table, "n")
    )


@pytest.mark.parametrize(
    ("path", "is_infer"),
    [
        ("/v2/models/m/infer", True),
        ("/v2/models/m/versions/7/infer", True),
        ("/v2/models/m/infer/x", False),
        ("/v2/models/m/versions/7/8/infer", False),
        ("/v2/models/infer", False),
        ("/v2/models/m/generate", False),
    ],
)
def test_what_counts_as_an_infer_request_is_exact(path: str, is_infer: bool) -> None:
    table = routes({"m": ({"blue": 100}, None)}, "1")
    pattern = infer_routes(table, "m")[1]["match"]["safe_regex"]["regex"]
    assert bool(re.fullmatch(pattern, path)) == is_infer


def test_everything_listens_and_connects_on_loopback() -> None:
    text = json.dumps(bootstrap(Path("/x"), 1, 2, POOLS, 3))
    addresses = re.findall(r'"address": "([^"]+)"', text)
    assert len(addresses) > 8
    assert set(addresses) == {"127.0.0.1"}


def test_the_version_is_in_the_answer_that_envoy_is_given() -> None:
    assert routes({}, "42")["version_info"] == "42"


def test_both_files_are_replaced_and_none_is_left_half_written(tmp_path: Path) -> None:
    splits = {"m": Split({"blue": 90, "green": 10}, "green", "x-user", 20), "n": Split({"green": 100})}
    write_splits(tmp_path, splits, 7)
    assert read_splits(tmp_path) == (splits, 7)
    assert json.loads((tmp_path / "routes.json").read_text())["version_info"] == "7"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["routes.json", "splits.json"]


def test_a_restart_serves_the_splits_that_the_folder_has(tmp_path: Path) -> None:
    envoy.prepare(tmp_path, 1, 2, POOLS, 3)
    assert read_splits(tmp_path) == ({}, 0)
    write_splits(tmp_path, {"m": Split({"green": 100})}, 3)
    envoy.prepare(tmp_path, 1, 2, POOLS, 3)
    assert read_splits(tmp_path) == ({"m": Split({"green": 100})}, 3)
    assert infer_routes(json.loads((tmp_path / "routes.json").read_text()), "m")


def test_without_a_lite_tier_every_cluster_has_its_pool_alone() -> None:
    text = json.dumps(bootstrap(Path("/x"), 1, 2, POOLS, 3))
    assert "lite" not in text


def test_the_lite_tier_stands_behind_every_pool_and_behind_nothing_else() -> None:
    clusters = bootstrap(Path("/x"), 1, 2, POOLS, 3, lite=(8200, 8201))["static_resources"]["clusters"]
    last = {}
    for cluster in clusters:
        tiers = cluster["load_assignment"]["endpoints"]
        pools = [tier["lb_endpoints"][0]["metadata"]["filter_metadata"]["trimtab"]["pool"] for tier in tiers]
        if pools[-1] == "lite":
            assert [tier["priority"] for tier in tiers] == list(range(len(tiers)))
            assert "lite" not in pools[:-1]
            (endpoint,) = tiers[-1]["lb_endpoints"]
            last[cluster["name"]] = endpoint["endpoint"]["address"]["socket_address"]["port_value"]
    names = ("blue", "green", "blue+green", "green+blue")
    assert last == {f"{name}-{kind}": port for name in names for kind, port in (("http", 8200), ("grpc", 8201))}


def test_only_a_model_with_a_fallback_asks_the_lite_tier() -> None:
    splits = {"m": ({"blue": 100}, "green"), "n": ({"blue": 100}, None)}
    table = routes(splits, "1", fallbacks={"m": 80.0, "unknown": None})
    for route in infer_routes(table, "m"):
        retry = route["route"]["retry_policy"]
        assert retry["retry_priority"]["name"] == "envoy.retry_priorities.previous_priorities"
        assert retry["per_try_timeout"] == "0.080s"
        assert route["route"]["request_mirror_policies"]
        assert route["response_headers_to_add"][0]["header"]["key"] == "x-degraded"
    for route in infer_routes(table, "n"):
        assert "retry_priority" not in route["route"]["retry_policy"]
    assert infer_routes(table, "n") == infer_routes(routes(splits, "1"), "n")


def test_without_a_time_only_a_failed_first_try_reaches_the_copy() -> None:
    for route in infer_routes(routes({"m": ({"blue": 100}, None)}, "1", fallbacks={"m": None}), "m"):
        assert "per_try_timeout" not in route["route"]["retry_policy"]
        assert "hedge_policy" not in route["route"]


def test_fallbacks_outlive_a_change_of_splits_and_a_restart(tmp_path: Path) -> None:
    write_splits(tmp_path, {"m": Split({"blue": 100})}, 1, {"m": Fallback(50.0)})
    write_splits(tmp_path, {"m": Split({"green": 100})}, 2)
    envoy.prepare(tmp_path, 1, 2, POOLS, 3, (5, 6))
    assert read_splits(tmp_path) == ({"m": Split({"green": 100})}, 2)
    assert read_fallbacks(tmp_path) == {"m": Fallback(50.0)}
    (first, *_) = infer_routes(json.loads((tmp_path / "routes.json").read_text()), "m")
    assert "retry_priority" in first["route"]["retry_policy"]


def test_splits_written_before_there_were_fallbacks_are_read(tmp_path: Path) -> None:
    (tmp_path / "splits.json").write_text('{"version":3,"splits":{"m":{"weights":{"blue":100},"mirror":null}}}')
    assert read_fallbacks(tmp_path) == {}
    assert read_splits(tmp_path)[1] == 3


def test_servers_without_envoy_are_named(tmp_path: Path) -> None:
    from resources.errors import StackError

    with pytest.raises(StackError, match=str(tmp_path)):
        envoy.command(tmp_path, tmp_path)
    with pytest.raises(StackError, match="refused"):
        envoy.ready("http://127.0.0.1:9")
