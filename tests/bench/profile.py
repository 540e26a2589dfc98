"""Profile: what packages do once they are published, then a sweep, alone on the machine."""

from collections.abc import Iterator

from tests.bench import loads, sweep
from tests.bench.lines import Line


def lines() -> Iterator[Line]:
    yield from loads.lines()
    yield from sweep.lines()
