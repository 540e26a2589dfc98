from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from resources.errors import StackError
from resources.local.ledger import Contents, Ledger, Record


def record(name: str) -> Record:
    return Record(name, 1, 2.5, "2013-01-01T00:00:00+00:00", "http://x", {"http": 80}, ("a", "b"), 15, 5.0)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.place("/servers", {"web.http": 80})
    ledger.add(record("web"))
    assert Ledger(tmp_path).read() == Contents("/servers", {"web.http": 80}, {"web": record("web")})


def test_no_record_is_lost_when_many_threads_write(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    names = [f"part-{n}" for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: ledger.add(record(name)), names))
    assert sorted(ledger.read().parts) == sorted(names)
    assert [file.name for file in tmp_path.iterdir()] == ["stack.json"]


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"servers": "", "ports": {}, "parts": {"a": {}}}', "{half"])
def test_a_file_that_is_not_ours_is_an_error_that_names_it(tmp_path: Path, body: str) -> None:
    (tmp_path / "stack.json").write_text(body)
    with pytest.raises(StackError, match=r"stack.json can't be read"):
        Ledger(tmp_path).read()
