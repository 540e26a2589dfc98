import socket
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.errors import StackError
from resources.local.ports import HOST, choose, is_free

PORTS = st.integers(1024, 60000)
NAMES = st.sampled_from([f"{part}.{port}" for part in ("s3", "mlflow", "gateway") for port in ("http", "grpc")])


@given(st.dictionaries(NAMES, PORTS), st.sets(st.integers(1024, 1064)))
def test_every_name_gets_a_free_port_of_its_own_at_or_above_the_preferred(
    preferred: dict[str, int], taken: set[int]
) -> None:
    with mock.patch("resources.local.ports.is_free", lambda port: port not in taken):
        chosen = choose(preferred, {})
    assert list(chosen) == list(preferred)
    assert len(set(chosen.values())) == len(chosen)
    assert not taken & set(chosen.values())
    assert all(chosen[name] >= preferred[name] for name in preferred)


def test_a_preferred_port_gives_way_to_one_asked_for() -> None:
    assert choose({"a.http": 61234, "b.http": 61235}, {"b.http": 61234}) == {"a.http": 61235, "b.http": 61234}


def test_a_running_part_keeps_its_port_though_it_is_taken() -> None:
    with socket.socket() as own:
        own.bind((HOST, 0))
        own.listen()
        port = own.getsockname()[1]
        assert choose({"a.http": 3000}, {}, {"a.http": port}) == {"a.http": port}
        assert choose({"a.http": 3000}, {"a.http": port}, {"a.http": port}) == {"a.http": port}


@pytest.mark.parametrize(
    ("explicit", "pinned", "words"),
    [
        ({"a.http": 0}, {}, "a: port 0 is none"),
        ({"a.http": 70000}, {}, "a: port 70000 is none"),
        ({"a.http": 61234, "b.http": 61234}, {}, "b: port 61234 is wanted by two parts"),
        ({"a.http": 61234}, {"b.http": 61234}, "a: port 61234 is wanted by two parts"),
        ({"a.http": 61235}, {"a.http": 61234}, "a: runs already, on port 61234: `trimtab down` first"),
    ],
)
def test_a_port_that_can_not_be_had_is_refused_by_name(
    explicit: dict[str, int], pinned: dict[str, int], words: str
) -> None:
    with pytest.raises(StackError, match=words):
        choose({"a.http": 3000, "b.http": 3001}, explicit, pinned)


def test_a_port_shared_by_so_reuseport_counts_as_taken() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((HOST, 0))
        other.listen()
        assert not is_free(other.getsockname()[1])


def test_a_port_whose_last_connection_is_closing_counts_as_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)):
            accepted, _ = server.accept()
            accepted.close()
    assert is_free(port)
