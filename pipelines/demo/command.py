"""`trimtab demo`: a stack of its own, the replay, the table, the page; nothing is left running."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipelines import local
from pipelines.demo.page import page
from pipelines.demo.sabotage import run as spoil
from pipelines.demo.story import START, Stage, run, to_json
from pipelines.environments import enter
from pipelines.screen import Progress as Starting
from resources.local.stack import down, status
from resources.local.stack import up as bring_up

COLOURS = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "dim", "ERROR": "yellow"}


def play(
    home: Path,
    through: datetime,
    servers: Path | None,
    json_file: Path | None,
    stay: bool,
    sabotage: str | None = None,
) -> dict[str, Any]:
    """Bring up a fresh stack in `home`, replay, report. The stack ends with this call, whatever happens in it."""
    began = time.monotonic()
    console = Console(stderr=True, highlight=False)
    _forget(home)
    try:
        blueprint = local.blueprint(home, servers or local.SERVERS)
        with Starting() as starting:
            bring_up(home, blueprint, report=starting.report)
        up_s = time.monotonic() - began
        addresses = local.read_addresses(home)
        where = enter(local.stack_environment(addresses, home))
        dagster, mlflow = addresses.url("dagster-webserver"), addresses.url("mlflow")
        with _telling(console, through) as (say, progress):
            say(f"everything is up after {up_s:.0f} s: Dagster {dagster}  MLflow {mlflow}  gateway {addresses.gateway}")
            stage = Stage(where, addresses.gateway, dagster, say, progress)
            found = run(stage, through) if sabotage is None else spoil(stage, sabotage)
        total_s = time.monotonic() - began
        if sabotage is None:
            result = _complete(found, up_s, total_s, _rss_mb(home, blueprint))
            _report(console, result, home, json_file)
        else:
            result = {**found, "seconds": {**found["seconds"], "up": round(up_s, 1), "total": round(total_s, 1)}}
            _report_sabotage(console, result, home, json_file)
        if stay:
            console.print(f"\nlook around: Dagster {dagster}   MLflow {mlflow}   (Ctrl-C stops everything)")
            while True:
                time.sleep(1)
        return result
    finally:
        console.print("stopping the stack")
        down(home, local.strays(home))


def _forget(home: Path) -> None:
    """An earlier demo's stack and data: each demo starts from nothing."""
    if not home.exists():
        return
    down(home, local.strays(home))
    for name in ("data", "dagster", "logs"):
        shutil.rmtree(home / name, ignore_errors=True)


def _complete(found: dict[str, Any], up_s: float, total_s: float, rss_mb: float) -> dict[str, Any]:
    promoted = [loop for loop in found["loops"] if loop["promoted"]]
    seconds = {
        "up": round(up_s, 1),
        "total": round(total_s, 1),
        "alarm_to_promoted": max((loop["seconds"] for loop in promoted), default=None),
        "published_to_loaded": max((loop["published_to_loaded"] for loop in promoted), default=None),
    }
    return {**found, "seconds": {**found["seconds"], **seconds}, "rss_mb": rss_mb}


def _rss_mb(home: Path, blueprint: Any) -> float:
    addresses = local.read_addresses(home)
    flat = {f"{part}.{name}": port for part, ports in addresses.ports.items() for name, port in ports.items()}
    return round(sum(part.memory_mb for part in status(home, blueprint.build(flat), datetime.now(UTC))), 1)


@contextmanager
def _telling(console: Console, through: datetime) -> Iterator[tuple[Any, Any]]:
    """Words as they happen, and on a terminal a bar of simulated time below them."""
    began = time.monotonic()
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[requests]:>7} requests"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("setting up", total=(through - START).days, requests=0)
    sent = 0

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}", soft_wrap=True)

    def progress(day: datetime, requests: int) -> None:
        nonlocal sent
        sent += requests
        bar.update(task, completed=(day - START).days, description=f"{day:%d %b %Y}", requests=sent)

    with bar:
        yield say, progress


def _report(console: Console, result: Mapping[str, Any], home: Path, json_file: Path | None) -> None:
    html = home / "demo.html"
    html.write_text(page(result))
    _write(result, home, json_file)
    Console(width=None if sys.stdout.isatty() else 160).print(_table(result))
    seconds = result["seconds"]
    console.print(
        f"up {seconds['up']} s · total {seconds['total']} s · alarm to promoted {seconds['alarm_to_promoted']} s · "
        f"published to loaded {seconds['published_to_loaded']} s · {result['rss_mb']:.0f} MB · "
        f"{result['failed_requests']} failed requests · access records {result['completeness']['access']:.2%} · "
        f"bodies {result['completeness']['answers']:.2%}"
    )
    for loop in result["loops"]:
        phases = ", ".join(f"{name} {value} s" for name, value in loop["phases"].items())
        console.print(f"loop of {loop['as_of'][:10]}: {loop['outcome']} after {loop['seconds']} s ({phases})")
    console.print(f"page: {html}   JSON: {json_file or home / 'demo.json'}")


def _report_sabotage(console: Console, result: Mapping[str, Any], home: Path, json_file: Path | None) -> None:
    _write(result, home, json_file)
    word = "[green]caught and rolled back[/]" if result["rolled_back"] else "[red]NOT CAUGHT[/]"
    seconds = result["seconds"]
    console.print(
        f"sabotage {result['sabotage']}: {word} as {result['verdict']}: {result['reason']}\n"
        f"{result['detected_after_requests']} clients' requests reached the challenger, "
        f"{result['copies']} copies before; {result['failed_requests']} of "
        f"{result['failed_requests'] + result['served_requests']} requests failed; rolled back "
        f"{seconds['start_to_detected']} s after its start, {seconds['detected_to_rolled_back']} s after the order"
    )
    console.print(f"JSON: {json_file or home / 'demo.json'}")


def _write(result: Mapping[str, Any], home: Path, json_file: Path | None) -> None:
    text = to_json(result)
    (home / "demo.json").write_text(text)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(text)


def _table(result: Mapping[str, Any]) -> Table:
    table = Table(title=f"{result['model']}: the managed model beside the never-retrained one", show_lines=True)
    for name, justify in (("week", "left"), ("verdicts and reason", "left"), ("champion", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("AUC\nstatic → managed", "Brier\nstatic → managed", "served", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for week in result["weeks"]:
        words = " ".join(f"[{COLOURS[v]}]{gate} {v}[/]" for gate, v in week["verdicts"].items())
        table.add_row(
            week["start"][:10],
            f"{words}\n{shorten(week['reason'], 200, placeholder=' …')}",
            str(week["champion"]),
            _pair(week["auc_static"], week["auc_managed"], 3),
            _pair(week["brier_static"], week["brier_managed"], 4),
            str(week["served"]),
            str(week["failed"]),
        )
    return table


def _pair(static: float | None, managed: float | None, digits: int) -> str:
    return " → ".join("–" if value is None else f"{value:.{digits}f}" for value in (static, managed))
