"""`trimtab drift`: the record of a drift check, for people or programs."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from assets.drift.alarms import sentence
from resources.errors import NotFound
from resources.store import Store

MARK = {"PASS": "pass", "INCONCLUSIVE": "????", "ERROR": "ERR ", "FAIL": "FAIL"}


@click.command()
@click.argument("model")
@click.option("--partition", required=True, help="Key of the partition, as Dagster shows it: 2013-02-01.")
@click.option("--json", "as_json", is_flag=True, help="The record itself, as the store keeps it.")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".trimtab"),
    show_default=True,
    envvar="TRIMTAB_HOME",
    help="Folder of the stack. [env: TRIMTAB_HOME]",
)
def drift(model: str, partition: str, as_json: bool, home: Path) -> None:
    """What the drift check of a partition found: verdict, features, statistics, thresholds, reason.

    Reads the record; computes nothing anew.

    \b
    Example
      trimtab drift flight_delay --partition 2013-02-01 --home .trimtab/demo
    """
    from pipelines import local
    from pipelines.environments import enter, ports
    from pipelines.factory import partitions_by_cadence
    from pipelines.spec import load_specs

    where = enter(local.stack_environment(local.read_addresses(home), home))
    specs = {spec.name: spec for spec in load_specs(where.models)}
    if model not in specs:
        raise click.BadParameter(f"{model!r} is no model: there are {', '.join(specs)}", param_hint="MODEL")
    partitions = partitions_by_cadence(specs.values())[specs[model].cadence]
    if not partitions.has_partition_key(partition):
        span = f"{partitions.get_first_partition_key()} to {partitions.get_last_partition_key()}"
        raise click.BadParameter(f"{partition!r} is none of {model}: they go from {span}", param_hint="--partition")
    end = partitions.time_window_for_partition_key(partition).end
    record = latest(ports(where).store, model, end)
    click.echo(json.dumps(record, indent=1) if as_json else "\n".join(page(record)))


def latest(store: Store, model: str, as_of: datetime) -> dict[str, Any]:
    """The record taken at an instant; of several the one about the newest champion. `NotFound` names the remedy."""
    prefix = f"decisions/{model}/drift/{as_of:%Y%m%dT%H%MZ}/"
    records: list[dict[str, Any]] = [json.loads(store.get(key)) for key in store.keys(prefix)]
    if not records:
        raise NotFound(f"{prefix}: no drift check of {model} ended there: run `trimtab launch watch {model}`")
    return max(records, key=lambda record: int(record["inputs"].get("champion", 0)))


def page(record: Mapping[str, Any]) -> Iterator[str]:
    """The record as lines of a terminal."""
    yield f"{record['model']}, as of {record['as_of']}: {record['verdict']}"
    yield f"  {record['why']}"
    yield ""
    for item in record["evidence"]:
        numbers = f"{_number(item['statistic'])} against {_number(item['threshold'])}"
        mark = MARK[item["verdict"]] if item.get("decides", True) or item["verdict"] == "PASS" else "hint"
        yield f"  {mark}  {item['name']:<10} {numbers:<22} {item['why']}"
    details = record["details"]
    if details.get("features"):
        yield ""
        yield f"  {'feature':<18} distance  weight  p-value   nulls  named"
    for item in details.get("features", []):
        share = f"{item['distance']:>8.4f}  {item['weight']:>6.1%}  {item['p_value']:>7.2g}  {item['null_share']:>6.1%}"
        yield f"  {item['feature']:<18} {share}  {'*' if item['named'] else ''}".rstrip()
    guess = details.get("estimated")
    if guess and guess["brier"] is not None:
        measured = details.get("brier")
        known = "no label yet" if measured is None else f"{_number(measured)} by labels"
        yield ""
        yield f"  mean loss: {_number(guess['brier'])} if the answers are true (blind to concept drift); {known}"
    if details.get("alarms"):
        yield f"  {sentence(details['alarms'])}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
