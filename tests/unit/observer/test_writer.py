import numpy as np
import pytest

from pipelines.observer.inbox import Inbox
from pipelines.observer.rows import Access, Answer
from pipelines.observer.writer import Writer
from resources.errors import StoreError
from resources.segments import ACCESS, ANSWERS
from tests.fakes import MemoryStore


def rows(count: int, model: str = "m", first: int = 0) -> list[Access]:
    return [
        Access(f"r{i}", model, 10**15 + i, 10**15 + i, "http", "blue", 200, 0, True, 1.0, 1, "")
        for i in range(first, first + count)
    ]


def answers(count: int) -> list[Answer]:
    return [Answer("m", f"r{i}", i, i, "1", (f"k{i}",), np.array([0.5]), {"x": np.array([1.0])}) for i in range(count)]


def test_rows_are_held_until_they_are_due_and_a_model_gets_its_own_segment() -> None:
    store = MemoryStore()
    writer = Writer(store, flush_s=1.0)
    writer.write(100.0)
    writer.add_access([*rows(3, "a"), *rows(2, "b")])
    writer.write(100.5)
    assert store.objects == {}
    writer.write(101.0)
    assert sorted(key.split("/")[1] for key in store.objects) == ["a", "b"]
    assert (writer.written[ACCESS], writer.held_rows[ACCESS]) == (5, 0)


def test_many_answers_do_not_wait() -> None:
    store = MemoryStore()
    writer = Writer(store, flush_s=1.0, answer_rows=10)
    writer.write(100.0)
    writer.add_answers(answers(9))
    writer.write(100.1)
    assert store.objects == {}
    writer.add_answers(answers(1))
    writer.write(100.2)
    assert writer.written[ANSWERS] == 10


def test_nothing_held_writes_nothing() -> None:
    store = MemoryStore()
    Writer(store).write(0.0, force=True)
    assert store.objects == {}


def test_rows_that_a_dead_store_refused_are_written_when_it_is_back() -> None:
    store = MemoryStore()
    writer = Writer(store, flush_s=1.0)
    store.down = True
    writer.add_access(rows(3))
    writer.write(100.0)
    writer.add_access(rows(2, first=3))
    writer.write(200.0)
    assert (writer.failures, writer.written[ACCESS]) == (2, 0)
    store.down = False
    writer.write(300.0)
    assert (writer.written[ACCESS], writer.held_rows[ACCESS], len(writer.pending)) == (5, 0, 0)


def test_a_dead_store_is_asked_less_and_less_often() -> None:
    store = MemoryStore()
    writer = Writer(store, flush_s=0.1)
    store.down = True
    writer.add_access(rows(1))
    for tenth in range(600):
        writer.write(tenth / 10)
    assert 5 <= writer.failures <= 9


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    writer = Writer(MemoryStore(), limit_rows=10)
    writer.add_access(rows(8))
    writer.add_access(rows(8))
    writer.add_answers(answers(11))
    assert writer.held_rows == {ACCESS: 10, ANSWERS: 10}
    assert writer.dropped == {ACCESS: 6, ANSWERS: 1}


def test_a_forced_write_says_that_the_store_is_down() -> None:
    store = MemoryStore()
    store.down = True
    writer = Writer(store)
    writer.add_access(rows(1))
    with pytest.raises(StoreError, match="down"):
        writer.write(0.0, force=True)
    store.down = False
    writer.write(0.1, force=True)
    assert writer.written[ACCESS] == 1


def test_the_inbox_takes_no_more_than_its_bytes() -> None:
    inbox = Inbox(limit_bytes=10)
    inbox.put(b"123456")
    inbox.put(b"12345")
    assert inbox.dropped == 1
    assert list(inbox.take()) == [b"123456"]
    assert inbox.held_bytes == 0
    inbox.put(b"1234567890")
    assert (inbox.held_bytes, inbox.dropped) == (10, 1)
