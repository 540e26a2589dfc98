import json
from pathlib import Path
from typing import Any

import pytest

from resources.envoy_config import bootstrap
from resources.envoy_front import Front, read_front, write_front
from resources.errors import StackError
from resources.local import envoy

POOLS = {"blue": (8000, 8001), "green": (8100, 8101)}


@pytest.fixture
def pem(tmp_path: Path) -> tuple[str, str]:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("pem")
    return str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")


def listener(front: Front) -> dict[str, Any]:
    found: dict[str, Any] = bootstrap(Path("/x"), 1, 2, POOLS, 3, front=front)["static_resources"]["listeners"][0]
    return found


def filters(front: Front) -> list[str]:
    manager = listener(front)["filter_chains"][0]["filters"][0]["typed_config"]
    return [item["name"] for item in manager["http_filters"]]


def test_neither_tls_nor_a_limit_unless_asked_for() -> None:
    assert "transport_socket" not in listener(Front())["filter_chains"][0]
    assert "limit" not in filters(Front())


def test_a_limit_stands_after_the_model_is_known_and_before_it_is_routed() -> None:
    assert filters(Front(requests_per_s=5)) == ["lua", "limit", "router"]


def test_tls_offers_both_protocols_and_names_the_files(pem: tuple[str, str]) -> None:
    context = listener(Front(*pem))["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    assert context["alpn_protocols"] == ["h2", "http/1.1"]
    assert context["tls_certificates"] == [
        {"certificate_chain": {"filename": pem[0]}, "private_key": {"filename": pem[1]}}
    ]


def test_what_was_asked_for_holds_for_every_later_start(tmp_path: Path, pem: tuple[str, str]) -> None:
    assert read_front(tmp_path) == Front()
    write_front(tmp_path, Front(*pem, requests_per_s=7))
    assert read_front(tmp_path) == Front(*pem, requests_per_s=7)
    envoy.prepare(tmp_path, 1, 2, POOLS, 3)
    assert pem[0] in (tmp_path / "bootstrap.json").read_text()


def test_half_a_pair_a_missing_file_and_a_limit_of_nothing_are_refused(tmp_path: Path, pem: tuple[str, str]) -> None:
    with pytest.raises(StackError, match="give both"):
        Front(certificate=pem[0])
    with pytest.raises(StackError, match="at least 1"):
        Front(requests_per_s=0)
    with pytest.raises(StackError, match=r"gone\.pem"):
        Front(pem[0], str(tmp_path / "gone.pem"))
    (tmp_path / "front.json").write_text(json.dumps({"certificate": "/gone.pem", "key": "/gone.pem"}))
    with pytest.raises(StackError, match=r"/gone\.pem"):
        read_front(tmp_path)
