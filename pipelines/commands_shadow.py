"""`trimtab shadow`: does retraining pay? From the record, or asked anew."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.commands_models import models_folder
from resources.errors import NotFound, SpecError

if TYPE_CHECKING:
    from pipelines.environments import Ports
    from pipelines.spec import ModelSpec
    from resources.store import Store


@click.command()
@click.argument("model")
@click.option("--as-of", type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"]), help="Instant in UTC; now without it.")
@click.option("--fresh", is_flag=True, help="Evaluate now, with what was known then; nothing is recorded.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), default=Path(".trimtab"), show_default=True,
              envvar="TRIMTAB_HOME", help="Folder of the running stack. [env: TRIMTAB_HOME]")  # fmt: skip
@models_folder
@click.option("--picture", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Draw the confidence sequence over labels into this PNG file.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document on standard output.")
def shadow(
    model: str, as_of: datetime | None, fresh: bool, home: Path, models: Path, picture: Path | None, as_json: bool
) -> None:
    """Show champion and challenger on the same requests: interval, verdict, reason.

    Shows the latest record at or before the instant; --fresh evaluates it anew. Beside them the smallest gain that
    could be found and the labels still needed.

    \b
    Example
      trimtab shadow flight_delay --as-of 2013-03-01 --home .trimtab/demo
    """
    from pipelines import local
    from pipelines.environments import enter, ports
    from pipelines.spec import load_specs

    at = as_of.replace(tzinfo=UTC) if as_of else datetime.now(UTC)
    doors = ports(enter(local.stack_environment(local.read_addresses(home), home)))
    if fresh:
        specs = {spec.name: spec for spec in load_specs(models)}
        if model not in specs:
            raise SpecError(models, "MODEL", model, f"is no model: there are {', '.join(specs)}")
        found = evaluated(specs[model], doors, at)
    else:
        found = recorded(doors.store, model, at)
    click.echo(json.dumps(found, indent=2) if as_json else told(found))
    if picture is not None:
        click.echo(drawn(found, picture), err=as_json)


def recorded(store: "Store", model: str, at: datetime) -> dict[str, Any]:
    """The latest shadow decision at or before an instant. `NotFound` says what to do when there is none."""
    prefix = f"decisions/{model}/shadow/"
    keys = [key for key in store.keys(prefix) if key <= f"{prefix}{at:%Y%m%dT%H%MZ}/~"]
    if not keys:
        raise NotFound(f"{prefix}: no record of {model} at or before {at:%Y-%m-%dT%H:%MZ}: ask anew with --fresh")
    found: dict[str, Any] = json.loads(store.get(keys[-1]))
    return found


def evaluated(spec: "ModelSpec", doors: "Ports", at: datetime) -> dict[str, Any]:
    """The shadow room's own evaluation, outside a run."""
    from assets.shadow.asset import evaluate
    from pipelines.factory import model_of

    lookback = timedelta(days=spec.training.lookback_days)
    store, lineage, traffic = doors.store, doors.lineage, doors.traffic
    decision = evaluate(model_of(spec), spec.shadow, store, lineage, traffic, at, lookback, spec.training.seed)
    return decision.to_dict()


def drawn(record: Mapping[str, Any], file: Path) -> str:
    """Write the picture of a decision; a sentence about it."""
    from assets.shadow.picture import figure

    if not record["details"].get("path"):
        return "no picture: there is no block of labels yet"
    file.write_bytes(figure(record["details"]))
    return f"picture       {file}"


def told(record: Mapping[str, Any]) -> str:
    """A decision as people read it, one fact a line."""
    details, inputs = record["details"], record["inputs"]
    snapshot = inputs.get("challenger_snapshot", "–")[:12]
    counts = details["counts"]
    rows = [
        (record["model"], f"shadow as of {record['as_of']}"),
        ("champion", f"version {inputs.get('champion', '–')}{_losses(details, 'champion')}"),
        ("challenger", f"fitted on snapshot {snapshot}{_losses(details, 'challenger')}"),
        ("labels", f"{counts['labels']} in {details.get('blocks', 0)} blocks{_left_out(counts)}"),
        ("gain", _interval(details)),
        ("detectable", _detectable(details)),
        ("needed", _needed(details)),
        ("verdict", record["verdict"]),
        ("reason", record["why"]),
    ]
    rows += [(f"  {item['name']}", f"{item['verdict']}: {item['why']}") for item in record["evidence"]]
    rows += [(f"  {item['name']}", _challenger(item)) for item in details.get("challengers", [])]
    return "\n".join(f"{name:<14}{text}" for name, text in rows)


# What may have become of a request, in the words of a reader.
_LEFT_OUT = {
    "failed": "failed", "missing_labels": "without a label", "late_labels": "labelled late",
    "corrected_labels": "corrected", "duplicates": "seen twice", "not_mature": "too young",
}  # fmt: skip


def _left_out(counts: Mapping[str, int]) -> str:
    found = [f"{counts[name]} {word}" for name, word in _LEFT_OUT.items() if counts.get(name)]
    return f"; {', '.join(found)}" if found else ""


def _detectable(details: Mapping[str, Any]) -> str:
    smallest = details.get("detectable_gain")
    if smallest is None:
        return "not known until blocks differ"
    return f"a gain of {smallest:.5f} a request would be found four times in five"


def _needed(details: Mapping[str, Any]) -> str:
    """Records of earlier versions do not say."""
    more = details.get("labels_needed")
    if more is None:
        return "not foreseeable at the gain seen so far"
    return f"{more} labels more at the gain seen so far" if more else "no more labels at the gain seen so far"


def _challenger(item: Mapping[str, Any]) -> str:
    gain = "no gain known" if item["mean_gain"] is None else f"{item['mean_gain']:+.5f} a request"
    return f"{item['verdict']}: look-back of {item['lookback_days']:g} days, {gain}"


def _losses(details: Mapping[str, Any], model: str) -> str:
    losses = [
        f"{kind.replace('_', '-')} {values[model]:.5f}"
        for kind, values in details.get("loss", {}).items()
        if values[model] is not None
    ]
    return f" ({', '.join(losses)})" if losses else ""


def _interval(details: Mapping[str, Any]) -> str:
    last = (details.get("path") or [{}])[-1]
    if last.get("lower") is None:
        return "no interval yet: two blocks are needed"
    loss = details["settings"]["loss"]
    return f"{last['mean']:+.5f} {loss} a request, between {last['lower']:+.5f} and {last['upper']:+.5f}"
