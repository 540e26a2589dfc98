"""What every `resources.store.Store` promises, held against the fake and against a real S3."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from resources.errors import Conflict, NotFound
from resources.store import CLAIMS, S3Store, Store
from tests.fakes import MemoryStore
from tests.gateway_stack import running_store


@pytest.fixture(scope="module", params=["fake", pytest.param("seaweedfs", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "fake":
        yield MemoryStore()
        return
    folder: Path = tmp_path_factory.mktemp("s3") / "s3"
    with running_store(folder) as real:
        yield real


def test_what_was_put_is_got(store: Store) -> None:
    store.put("put/a", b"\x00body")
    assert store.get("put/a") == b"\x00body"


def test_the_same_bytes_may_be_put_again_and_other_bytes_may_not(store: Store) -> None:
    store.put("once/a", b"1")
    store.put("once/a", b"1")
    with pytest.raises(Conflict, match="once/a"):
        store.put("once/a", b"2")
    assert store.get("once/a") == b"1"


def test_of_two_writers_of_other_bytes_at_once_one_wins_and_the_other_is_told(store: Store, tmp_path: Path) -> None:
    if isinstance(store, S3Store):
        store = replace(store, part_bytes=5 << 20)
    for turn, size in enumerate([1] * 6 + [6 << 20] * 12):  # the last ones travel in parts
        key, bodies = f"two/{turn}", [letter * size for letter in (b"a", b"b", b"a", b"b")]

        def write(number: int, key: str = key, bodies: list[bytes] = bodies) -> bool:
            file = tmp_path / f"{number}"
            file.write_bytes(bodies[number])
            try:
                store.put_file(key, file)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(write, range(4)))
        kept = store.get(key)
        assert done == [body == kept for body in bodies]  # of equal bytes each writer may believe that it was the one


def test_what_a_dead_writer_of_parts_claimed_is_named_and_its_bytes_may_still_be_put(
    store: Store, tmp_path: Path
) -> None:
    if not isinstance(store, S3Store):
        pytest.skip("only S3 takes an object in parts")
    store = replace(store, part_bytes=5 << 20)
    (tmp_path / "own").write_bytes(b"a" * (6 << 20))
    (tmp_path / "other").write_bytes(b"b" * (6 << 20))
    store.put(f"{CLAIMS}dead/1", hashlib.sha256((tmp_path / "own").read_bytes()).hexdigest().encode())
    with pytest.raises(Conflict, match=f"dead/1 .* if it died, delete {CLAIMS}dead/1"):
        store.put_file("dead/1", tmp_path / "other")
    assert store.keys("dead/") == []
    store.put_file("dead/1", tmp_path / "own")
    assert store.get("dead/1") == (tmp_path / "own").read_bytes()


def test_a_missing_object_is_not_found_by_its_name(store: Store) -> None:
    with pytest.raises(NotFound, match="nowhere/a"):
        store.get("nowhere/a")
    assert store.pointer("nowhere/a") is None


@pytest.mark.parametrize("size", [0, 3, 13 << 20])
def test_a_file_of_any_size_is_put_once_and_fetched(store: Store, size: int, tmp_path: Path) -> None:
    """The real store sends thirteen megabytes in three parts."""
    if isinstance(store, S3Store):
        store = replace(store, part_bytes=5 << 20)
    (tmp_path / "a").write_bytes(bytes(range(256)) * (size // 256) + bytes(size % 256))
    key = f"file/{size}"
    store.put_file(key, tmp_path / "a")
    store.put_file(key, tmp_path / "a")
    store.fetch(key, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "a").read_bytes() == store.get(key)
    (tmp_path / "a").write_bytes(b"other" * (1 + size // 5))
    with pytest.raises(Conflict, match=key):
        store.put_file(key, tmp_path / "a")
    store.fetch(key, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "back").read_bytes()


def test_a_missing_object_leaves_no_file(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere/a"):
        store.fetch("nowhere/a", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_keys_come_in_order_under_their_prefix_and_after_a_key(store: Store) -> None:
    for key in ("list/b", "list/a", "list/c/d", "listed"):
        store.put(key, b"")
    assert store.keys("list/") == ["list/a", "list/b", "list/c/d"]
    assert store.keys("list/", after="list/a") == ["list/b", "list/c/d"]
    assert store.keys("list/", after="list/aa") == ["list/b", "list/c/d"]
    assert store.keys("list/x") == []


def test_more_keys_than_a_page_are_all_listed(store: Store) -> None:
    from concurrent.futures import ThreadPoolExecutor

    names = [f"many/{i:04d}" for i in range(1_050)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b""), names))
    assert store.keys("many/") == names


def test_a_pointer_moves_only_from_the_state_that_was_read(store: Store) -> None:
    first = store.swap("state/p", b"1", None)
    seen = store.pointer("state/p")
    assert seen is not None
    assert (seen.body, seen.etag) == (b"1", first)
    second = store.swap("state/p", b"2", first)
    for stale in (first, None):
        with pytest.raises(Conflict):
            store.swap("state/p", b"3", stale)
    seen = store.pointer("state/p")
    assert seen is not None
    assert (seen.body, seen.etag) == (b"2", second)


def test_of_many_writers_that_read_the_same_state_one_wins(store: Store) -> None:
    etag = store.swap("race/p", b"0", None)

    def swap(number: int) -> bool:
        try:
            store.swap("race/p", f"{number}".encode(), etag)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(swap, range(1, 9))) == 1
