"""`trimtab`: the whole system on one machine, from a terminal.

A command is a function with `@main.command()`; `@stack_home` gives it the folder that the stack lives in. Imports that
take long belong inside the commands: `trimtab --help` answers at once.
"""

import json
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from pipelines import (
    commands_canary,
    commands_doctor,
    commands_launch,
    commands_models,
    commands_packages,
    commands_profile,
    commands_shadow,
)
from pipelines.commands_ack import ack
from pipelines.commands_drift import drift
from pipelines.demo.damage import KINDS
from resources.errors import StackError, TrimtabError

# Commands in the order in which people need them.
ORDER = (
    *("demo", "up", "status", "new", "check", "source", "launch", "drift", "shadow", "rollout", "rollback", "down"),
    *("ack", "profile", "sign", "verify", "doctor"),
)


class Guide(click.Group):
    """Keeps the order of commands, and turns our own errors into one line and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TrimtabError as error:
            raise click.ClickException(str(error)) from error


stack_home = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".trimtab"),
    show_default=True,
    envvar="TRIMTAB_HOME",
    help="Folder of the stack: data, logs, keys, addresses. [env: TRIMTAB_HOME]",
)
as_json = click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document on standard output.")
servers_folder = click.option(
    "--servers",
    type=click.Path(path_type=Path),
    default=None,
    envvar="TRIMTAB_SERVERS",
    help="Virtual environment of the servers; deploy/servers/.venv without it. [env: TRIMTAB_SERVERS]",
)


@click.group(cls=Guide, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="trimtab")
def main() -> None:
    """Keeps served models true: sees drift, retrains where it pays, rolls out on Triton under guard.

    \b
    First steps
      trimtab demo      a year of flights through the whole loop, in simulated time
      trimtab up        start everything on this machine, real servers on loopback only
      trimtab status    what runs, where it listens, whether it works
      trimtab down      stop everything; data stay in the home folder

    Every server writes HOME/logs/PART.log. HOME/stack.json holds the addresses.
    """


for command in (commands_models.new, commands_models.check, commands_models.source, commands_shadow.shadow):
    main.add_command(command)


def _port(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal():
            raise click.BadParameter(f"{text!r} is not PART=NUMBER, as in mlflow=5001 or gateway.admin=9902")
        found[name] = int(number)
    return found


@main.command()
@stack_home
@click.option(
    "--port",
    "ports",
    multiple=True,
    callback=_port,
    metavar="PART=N",
    envvar="TRIMTAB_PORTS",
    help="A part's port, or PART.PORT=N for its others; may be repeated. Without it: the usual port, or the next "
    "free one. [env: TRIMTAB_PORTS, separated by spaces]",
)
@servers_folder
@commands_models.models_folder
@commands_canary.front
@as_json
def up(home: Path, ports: dict[str, int], servers: Path | None, models: Path, as_json: bool, **front: Any) -> None:
    """Start every part and wait until each really works.

    Again on a running stack it repairs: it starts what is not healthy and leaves the rest alone. When a part fails,
    or on Ctrl-C, what this command started is stopped again.

    \b
    Examples
      trimtab up
      trimtab up --home /tmp/trial --port mlflow=5001 --port dagster-webserver=3001
    """
    from pipelines import local
    from pipelines.environments import enter
    from pipelines.screen import Progress, summary
    from resources.local.stack import up as bring_up

    signal.signal(signal.SIGTERM, _interrupt)
    enter({"TRIMTAB_MODELS": str(models.absolute())})
    blueprint = local.blueprint(home, servers or local.SERVERS)
    explicit = local.explicit_ports(ports)
    commands_canary.ask_front(home, front)
    try:
        with Progress(quiet=as_json) as progress:
            contents = bring_up(home, blueprint, explicit, progress.report)
    except KeyboardInterrupt:
        raise StackError("interrupted: what was started is stopped again") from None
    if as_json:
        click.echo(json.dumps({"home": str(home.resolve()), "ports": dict(contents.ports)}, indent=2))
    else:
        summary(local.read_addresses(home), home)


@main.command()
@stack_home
@as_json
def status(home: Path, as_json: bool) -> None:
    """Ask every part whether it works, by a real request.

    Exit code 0 when all are healthy, else 1.
    """
    from dataclasses import asdict

    from pipelines import local
    from pipelines.screen import table
    from resources.local.stack import status as ask

    addresses = local.read_addresses(home)
    blueprint = local.blueprint(home, addresses.servers)
    flat = {f"{part}.{name}": port for part, ports in addresses.ports.items() for name, port in ports.items()}
    health = ask(home, blueprint.build(flat), datetime.now(UTC))
    if as_json:
        click.echo(json.dumps([asdict(part) for part in health], indent=2))
    else:
        table(health)
    sys.exit(0 if all(part.healthy for part in health) else 1)


@main.command()
@stack_home
@as_json
def down(home: Path, as_json: bool) -> None:
    """Stop every part, also those that a killed `up` left behind.

    Data, logs and keys stay; delete the home folder to forget them.
    """
    from pipelines import local
    from pipelines.screen import Progress
    from resources.local.stack import down as stop

    with Progress(quiet=as_json) as progress:
        stopped = stop(home, local.strays(home), progress.report)
    if as_json:
        click.echo(json.dumps({"stopped": stopped}, indent=2))
    else:
        click.echo(f"stopped {len(stopped)} parts" if stopped else "nothing was running")


@main.command()
@click.option(
    "--through",
    type=click.DateTime(["%Y-%m-%d"]),
    default="2013-03-31",
    show_default=True,
    help="Last day of 2013 that is replayed; 2013-12-31 is the whole year.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there.")
@click.option("--keep", is_flag=True, help="Leave everything running at the end, to look around, until Ctrl-C.")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".trimtab/demo"),
    show_default=True,
    help="Folder of the demo's own stack. What an earlier demo left there is deleted.",
)
@click.option(
    "--sabotage",
    type=click.Choice(KINDS),
    help="Instead of the replay: roll out a challenger that is really bad, or break the split, and see it caught.",
)
@servers_folder
def demo(
    through: datetime, json_file: Path | None, keep: bool, home: Path, sabotage: str | None, servers: Path | None
) -> None:
    """Replay real flights as live traffic through the whole loop, with nobody awake.

    A champion is trained on January 2013 and serves. From 1 February every flight is a request through the gateway,
    at a few hundred a second, and its label arrives after landing. Each simulated week is checked for drift; an alarm
    starts shadow, retrain, profile and canary while traffic goes on. At the end: a table, a JSON file, an HTML page.

    \b
    Examples
      trimtab demo                                   two months, some minutes
      trimtab demo --through 2013-12-31              the year
      trimtab demo --through 2013-02-14 --keep       two weeks, then look around in Dagster and MLflow
      trimtab demo --sabotage errors                 a bad challenger, caught before or by its first clients
    """
    from pipelines.demo.command import play
    from pipelines.demo.story import END_OF_DATA, START

    end = through.replace(tzinfo=UTC) + timedelta(days=1)
    if not START < end <= END_OF_DATA:
        raise click.BadParameter(f"{through:%Y-%m-%d} is not between 2013-02-01 and 2013-12-31", param_hint="--through")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = play(home, end, servers, json_file, keep, sabotage)
    except KeyboardInterrupt:
        click.echo("stopped: nothing is left running", err=True)
        sys.exit(130)
    if sabotage is not None and not result["rolled_back"]:
        sys.exit(1)


for _command in (commands_canary.rollout, commands_canary.rollback):
    main.add_command(stack_home(as_json(_command)))
main.add_command(stack_home(commands_launch.launch))


main.add_command(drift)
main.add_command(ack)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


main.add_command(commands_doctor.doctor)
main.add_command(commands_profile.profile)
main.add_command(commands_packages.sign)
main.add_command(commands_packages.verify)


if __name__ == "__main__":
    main()
