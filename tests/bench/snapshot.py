"""Snapshot: memory and time of a large one, in a process of its own; the same bytes again; a small one's cost."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from assets.model import Model
from assets.snapshot.asset import keeping
from resources.errors import NotFound
from resources.features import Column, FeatureRegistry, FeatureSet
from resources.store import Pointer
from tests.bench.lines import Line, at_most

ROWS, AGAIN_ROWS, COLUMNS, WORDS = 10_000_000, 500_000, 50, 5
LIMIT_GB = 2.0
ORIGIN, END = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
DISK_BYTES_A_ROW = 1600  # source, spilled sort and snapshot together


def lines() -> Iterator[Line]:
    """Some minutes of two cores. A disk that is too small for ten million rows gets fewer, and the line says so."""
    with TemporaryDirectory(prefix="trimtab-bench-") as name:
        folder = Path(name)
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        rows = min(ROWS, int(free * 0.8 / DISK_BYTES_A_ROW))
        child("source", folder, rows)
        found = child("keep", folder, rows)
        (folder / "raw/wide.parquet").unlink()
        gigabytes = found["peak_rss_bytes"] / 1e9
        raw = rows * COLUMNS * 8 / 1e9
        seconds = f"{found['wall_s']:.0f} s, {found['cpu_s']:.0f} CPU s"
        yield Line(
            "snapshot",
            f"{rows:,} rows × {COLUMNS} columns: peak memory of the process ({seconds})",
            gigabytes,
            "GB",
            f"≤ {LIMIT_GB:g} GB at {ROWS:,} rows",
            gigabytes <= LIMIT_GB and rows == ROWS,
            gigabytes / raw,
            f"{raw:.2g} GB of plain values",
        )
        child("source", folder, AGAIN_ROWS)
        first, second = (child("keep", folder, AGAIN_ROWS)["digest"] for _ in range(2))
        yield at_most(
            "snapshot", f"other bytes in a second run, {AGAIN_ROWS:,} rows", float(first != second), "runs", 0
        )
    yield _small()


def child(work: str, folder: Path, rows: int) -> dict[str, Any]:
    """Run one part in a process of its own; what it found."""
    command = [sys.executable, "-m", "tests.bench.snapshot", work, str(folder), str(rows)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True, slots=True)
class Folder:
    """A store in a folder: what is measured is the snapshot, not a server's memory beside it."""

    root: Path

    def put(self, key: str, body: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def put_file(self, key: str, path: Path) -> None:
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        os.link(path, target)

    def get(self, key: str) -> bytes:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(key) from error

    def fetch(self, key: str, path: Path) -> None:
        try:
            os.link(self.root / key, path)
        except FileNotFoundError as error:
            raise NotFound(key) from error

    def keys(self, prefix: str, after: str = "") -> list[str]:
        found = (str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())
        return sorted(key for key in found if key.startswith(prefix) and key > after)

    def pointer(self, key: str) -> Pointer | None:
        raise NotImplementedError("no pointer is read here")

    def swap(self, key: str, body: bytes, etag: str | None) -> str:
        raise NotImplementedError("no pointer moves here")


def _wide() -> FeatureSet:
    words = tuple(Column(f"w{number}", "string") for number in range(WORDS))
    return FeatureSet(
        name="wide",
        version="1",
        valid_from=ORIGIN,
        entity="id",
        event_time="at",
        known_at="at",
        label="bought",
        label_known_at="bought_known",
        columns=(*words, *(Column(f"f{number}", "float") for number in range(COLUMNS - WORDS))),
        sources=("wide",),
        sql="SELECT * FROM wide",
        file="features.yaml",
    )


def _source(folder: Path, rows: int) -> dict[str, Any]:
    """Numbers that compress to about half, as measured ones do, in no order of time."""
    import duckdb

    numbers = ", ".join(
        f"CASE WHEN i % 97 <> {n} THEN hash(i * {COLUMNS} + {n}) % 1000003 / 997.0 END AS f{n}"
        for n in range(COLUMNS - WORDS)
    )
    words = ", ".join(f"'word ' || hash(i + {n}) % {10 ** (n + 1)} AS w{n}" for n in range(WORDS))
    (folder / "raw").mkdir(exist_ok=True)
    file = folder / "raw/wide.parquet"
    at = f"TIMESTAMP '2030-01-01' + to_microseconds((i * 7919 % {rows}) * {365 * 86_400_000_000 // rows})"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2; SET memory_limit = '2GB'; SET preserve_insertion_order = false")
        connection.execute(
            f"COPY (SELECT 'e' || i AS id, {at} AS at, {at} + INTERVAL 1 HOUR AS bought_known, i % 2 AS bought, "
            f"{words}, {numbers} FROM range({rows}) AS t(i)) TO '{file}' (FORMAT parquet, COMPRESSION zstd)"
        )
    return {"bytes": file.stat().st_size}


def _keep(folder: Path, rows: int) -> dict[str, Any]:
    model = Model("wide", "", ("team:bench",), "wide", FeatureRegistry((_wide(),)), Path("recipe.py"))
    began, cpu = time.monotonic(), time.process_time()
    with keeping(model, Folder(folder), ORIGIN, END, END) as kept:
        assert kept.manifest["rows"] == rows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    took = {"wall_s": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
    return {"peak_rss_bytes": peak, "digest": kept.digest, **took}


def _small() -> Line:
    """A week's snapshot must not pay for the large ones."""
    with TemporaryDirectory(prefix="trimtab-bench-") as name:
        folder, rows = Path(name), 7_000
        _source(folder, rows)
        _keep(folder, rows)  # imports
        took = min(_keep(folder, rows)["cpu_s"] for _ in range(3))
    return at_most("snapshot", f"{rows:,} rows × {COLUMNS} columns, imports aside", took, "CPU s", 1.0)


if __name__ == "__main__":
    part, place, count = sys.argv[1:]
    print(json.dumps({"source": _source, "keep": _keep}[part](Path(place), int(count))))
