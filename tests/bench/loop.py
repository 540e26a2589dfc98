"""The whole loop: the demo through March, its own figures held against the targets."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.lines import Line, at_least, at_most


def lines() -> Iterator[Line]:
    """Runs the demo as a user would and reads its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo.json"
        trimtab = str(Path(sys.executable).parent / "trimtab")
        subprocess.run([trimtab, "demo", "--through", "2013-03-31", "--json", str(file)], check=True)
        result = json.loads(file.read_text())
    seconds, complete = result["seconds"], result["completeness"]
    yield at_most("loop", "stack up, all parts ready", seconds["up"], "s", 45)
    yield at_most("loop", "whole stack resident", result["rss_mb"], "MB", 5000)
    yield at_most("loop", "demo through March", seconds["total"], "s", 360)
    yield at_most("loop", "alarm to promoted, slowest", seconds["alarm_to_promoted"], "s", 180)
    yield at_most(
        "loop", "package published to loaded on every replica, slowest", seconds["published_to_loaded"], "s", 10
    )
    yield at_least("loop", "promoted challengers", float(len(result["promotions"])), "", 1)
    yield at_least("loop", "recorded refusals", float(len(result["refusals"])), "", 1)
    yield at_most("loop", "failed client requests", float(result["failed_requests"]), "", 0)
    yield at_least("loop", "access records of requests", 100 * complete["access"], "%", 100)
    yield at_least("loop", "body copies of requests", 100 * complete["answers"], "%", 99.9)
    weeks = result["weeks"]
    served = sum(week["served"] for week in weeks)
    static, managed = (
        sum(week[f"brier_{kind}"] * week["served"] for week in weeks) / served for kind in ("static", "managed")
    )
    yield Line(
        "loop",
        "mean Brier, managed",
        managed,
        "",
        "below the never-retrained model's",
        managed < static,
        managed / static,
        "never retrained",
    )
