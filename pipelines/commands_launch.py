"""`trimtab launch`: some rooms of a model, by hand."""

import sys
from pathlib import Path

import click

from pipelines import commands_models


@click.command()
@click.argument("purpose", type=click.Choice(["watch", "improve", "release", "page"]))
@click.argument("model")
@click.option("--partition", required=True, help="Key of the partition, as Dagster shows it: 2013-02-01.")
@click.option("--no-wait", is_flag=True, help="Return once the run is queued.")
@commands_models.accept_schema
@commands_models.models_folder
def launch(
    purpose: str, model: str, partition: str, no_wait: bool, accept_schema: str | None, home: Path, models: Path
) -> None:
    """Run some rooms of a model for one partition, and wait for the end.

    \b
    watch     snapshot and drift check
    improve   shadow, retrain, profile, canary: each only when the one before passed
    release   retrain, profile, canary: a first version
    page      the Evidently report of a window that was judged

    A model that keeps a fallback copy gets it renewed after its canary.

    \b
    Example
      trimtab launch watch flight_delay --partition 2013-02-01
    """
    from pipelines import local
    from pipelines.factory import rooms_of
    from pipelines.jobs import PURPOSES, job_name
    from pipelines.launch import Webserver
    from pipelines.spec import load_specs

    specs = {spec.name: spec for spec in load_specs(models)}
    if model not in specs:
        raise click.BadParameter(f"{model!r} is no model: there are {', '.join(specs)}", param_hint="MODEL")
    webserver = Webserver(local.read_addresses(home).url("dagster-webserver"))
    rooms = rooms_of(specs[model], PURPOSES[purpose][0])
    tags = {"model": model, "trigger": "command line"} | ({} if purpose == "watch" else {"rollout/model": model})
    tags |= commands_models.accepted(accept_schema)
    run = webserver.launch(job_name(purpose, specs[model].cadence), [[model, room] for room in rooms], partition, tags)
    click.echo(webserver.page(run))
    if not no_wait:
        status = webserver.wait(run, 3600)
        click.echo(status.lower())
        sys.exit(0 if status == "SUCCESS" else 1)
