"""`trimtab profile`: what was measured of a version, what was chosen, and why."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from pipelines.commands_packages import reach, stack_home
from resources.errors import NotFound
from resources.store import S3Store, Store

WIDTHS = (10, 9, 8, 6, 8, 11, 8, 8)


@click.command()
@click.argument("model")
@click.option("--version", type=click.IntRange(min=1), required=True, help="Version in MLflow, which is Triton's too.")
@stack_home
def profile(model: str, version: int, home: Path) -> None:
    """Print the measured points of a version, the noise band, the choice and its reason.

    \b
    Example
      trimtab profile flight_delay --version 2
    """
    where = reach(home)
    record = last_record(S3Store(where.bucket, where.s3_endpoint), model, version)
    for line in lines(record):
        click.echo(line)


def last_record(store: Store, model: str, version: int) -> dict[str, Any]:
    """The latest decision of the profile room about this version. `NotFound` without one."""
    for key in reversed(store.keys(f"decisions/{model}/profile/")):
        record: dict[str, Any] = json.loads(store.get(key))
        if record["inputs"].get("challenger") == str(version):
            return record
    raise NotFound(f"{model} version {version} was never profiled: its serving_profile does that")


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The record for people; the chosen configuration is marked. Records of older versions lack some columns."""
    inputs, details = record["inputs"], record["details"]
    chosen = _config(details.get("choice") or {})
    yield f"{record['model']}:{inputs['challenger']} as of {record['as_of']}: {record['verdict']}"
    yield (
        f"on {inputs.get('device', 'a device unknown')}, {inputs.get('threads', '?')} threads, "
        f"driver {inputs.get('driver', 'none')}, {inputs.get('triton')}"
    )
    yield _row("instances", "delay us", "threads", "batch", "clients", "requests/s", "p95 ms", "p99 ms")
    for point in details["points"]:
        rate, p99 = f"{point['throughput_per_s']:,.0f}", f"{point['p99_latency_ms']:.2f}"
        p95 = point.get("p95_latency_ms")
        row = _row(*_config(point), point["concurrency"], rate, "-" if p95 is None else f"{p95:.2f}", p99)
        yield f"{row}  chosen" if _config(point) == chosen else row
    for item in details.get("infeasible", []):
        yield f"{_row(*_config(item))}  infeasible: {item['reason']}"
    if "band" in details:
        loud = "" if details.get("quiet", True) else ": not a quiet machine, nothing of this is kept"
        yield f"noise band {details['band']:.1%}, of the same configuration measured again{loud}"
    yield f"choice: {record['why']}"
    cost = (details.get("choice") or {}).get("cost_per_million")
    if cost is not None:
        yield f"cost: {cost:.4g} a million requests at full load"
    yield from (f"{item['verdict']:>12}  {item['name']}: {item['why']}" for item in record["evidence"])


def _config(point: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("instances", "max_queue_delay_us", "intra_op_threads", "max_batch_size")
    return tuple(point.get(name, "-") for name in names)


def _row(*cells: Any) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=False))
