"""`trimtab profile`: what was measured of a version, what was chosen, and why."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from pipelines.commands_packages import reach, stack_home
from resources.errors import NotFound
from resources.store import S3Store, Store


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
    """The record for people; the chosen configuration is marked."""
    inputs, details = record["inputs"], record["details"]
    choice = details.get("choice") or {}
    chosen = (choice.get("instances"), choice.get("max_queue_delay_us"))
    yield f"{record['model']}:{inputs['challenger']} as of {record['as_of']}: {record['verdict']}"
    yield f"on {inputs.get('device', 'a device unknown')}, {inputs.get('threads', '?')} threads, {inputs.get('triton')}"
    yield f"{'instances':>10} {'delay us':>9} {'clients':>8} {'requests/s':>11} {'p99 ms':>8}"
    for point in details["points"]:
        mark = "  chosen" if (point["instances"], point["max_queue_delay_us"]) == chosen else ""
        yield (
            f"{point['instances']:>10} {point['max_queue_delay_us']:>9} {point['concurrency']:>8} "
            f"{point['throughput_per_s']:>11,.0f} {point['p99_latency_ms']:>8.2f}{mark}"
        )
    if "band" in details:
        yield f"noise band {details['band']:.1%}, the same configuration measured twice"
    yield f"choice: {record['why']}"
    yield from (f"{item['verdict']:>12}  {item['name']}: {item['why']}" for item in record["evidence"])
