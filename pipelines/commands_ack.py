"""`trimtab ack`: a person takes an alarm on; it starts no loop until it has recovered, or a new one comes."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from resources.errors import Conflict, NotFound
from resources.store import Store


@click.command()
@click.argument("model")
@click.option("--reason", required=True, help="Why this alarm needs no loop: it is kept for ever.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), default=Path(".trimtab"), show_default=True,
              envvar="TRIMTAB_HOME", help="Folder of the running stack. [env: TRIMTAB_HOME]")  # fmt: skip
def ack(model: str, reason: str, home: Path) -> None:
    """Acknowledge the open drift alarm of a model: no loop starts from it any more.

    It closes by itself once its checks pass, or another champion serves; a later alarm is a new one.

    \b
    Example
      trimtab ack flight_delay --reason "holiday traffic, seen last year too"
    """
    from pipelines import local
    from pipelines.environments import enter, ports

    store = ports(enter(local.stack_environment(local.read_addresses(home), home))).store
    opened = open_alarm(store, model)
    acknowledge(store, model, opened, reason, datetime.now(UTC))
    click.echo(f"{model}: the alarm since {opened} is acknowledged")


def open_alarm(store: Store, model: str) -> str:
    """The instant at which the alarm opened that the latest drift decision left open. `NotFound` without one."""
    from assets.drift.history import prefix

    keys = store.keys(prefix(model))
    if not keys:
        raise NotFound(f"{prefix(model)}: no drift check of {model} was ever made: run `trimtab launch watch {model}`")
    record = json.loads(store.get(keys[-1]))
    opened = record["details"].get("alarms", {}).get("open")
    if not opened:
        raise NotFound(f"no alarm of {model} is open: its check as of {record['as_of']} says {record['verdict']}")
    return str(opened)


def acknowledge(store: Store, model: str, opened: str, reason: str, now: datetime) -> None:
    """Keep a person's word about an alarm. `Conflict` when it was given before."""
    from assets.drift.alarms import acknowledgement_key

    key = acknowledgement_key(model, opened)
    try:
        store.put(key, json.dumps({"opened": opened, "reason": reason, "at": now.isoformat()}).encode())
    except Conflict as error:
        said = json.loads(store.get(key))["reason"]
        raise Conflict(f"{model}: the alarm since {opened} is acknowledged already: {said}") from error
