"""The whole loop: the demo as a user runs it, its own figures held against the targets.

YEAR=1 runs the year as well, some twenty minutes; without it the year's line says that it was not measured.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.bench import observer
from tests.bench.lines import Line, at_least, at_most

MARCH, DECEMBER = "2013-03-31", "2013-12-31"


def lines() -> Iterator[Line]:
    """Completeness of the log under 1000 requests a second, then the demo through March, then the year if asked."""
    yield from observer.lines()
    yield from _march(_demo(MARCH))
    yield _year(_demo(DECEMBER) if os.environ.get("YEAR") else None)


def _demo(through: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo.json"
        command = [sys.executable, "-m", "pipelines.cli", "demo", "--home", f"{folder}/stack", "--json", str(file)]
        subprocess.run([*command, "--through", through], check=True)
        result: dict[str, Any] = json.loads(file.read_text())
        return result


def _march(result: Mapping[str, Any]) -> Iterator[Line]:
    seconds, complete = result["seconds"], result["completeness"]
    loaded = seconds["published_to_loaded"]
    yield at_most("loop", "stack up, all parts ready", seconds["up"], "s", 45)
    yield at_most("loop", "whole stack resident", result["rss_mb"], "MB", 5000)
    yield at_most("loop", "demo through March", seconds["total"], "s", 360)
    yield at_most("loop", "alarm to promoted, slowest", seconds["alarm_to_promoted"], "s", 180)
    yield at_most("loop", "package published to loaded on every replica, slowest", loaded, "s", 10)
    yield at_least("loop", "promoted challengers", float(len(result["promotions"])), "", 1)
    yield at_least("loop", "recorded refusals", float(len(result["refusals"])), "", 1)
    yield at_most("loop", "failed client requests", float(result["failed_requests"]), "", 0)
    yield at_least("loop", "access records of requests", 100 * complete["access"], "%", 100)
    yield at_least("loop", "body copies of requests", 100 * complete["answers"], "%", 99.9)


def _year(result: Mapping[str, Any] | None) -> Line:
    name, target = "mean Brier of the year, managed", "below the never-retrained model's"
    if result is None:
        return Line("loop", name, None, "", f"{target} (YEAR=1 measures it)", False)
    static, managed = mean_brier(result["weeks"], "static"), mean_brier(result["weeks"], "managed")
    return Line("loop", name, managed, "", target, managed < static, managed / static, "never retrained")


def mean_brier(weeks: list[Mapping[str, Any]], kind: str) -> float:
    """Over requests: each week weighs as many as it served."""
    served = sum(week["served"] for week in weeks)
    return float(sum(week[f"brier_{kind}"] * week["served"] for week in weeks) / served)
