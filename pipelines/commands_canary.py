"""`trimtab rollout` and `trimtab rollback`: looking at a release, and taking it back."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.commands_models import models_folder
from resources.errors import NotFound, SpecError

if TYPE_CHECKING:
    from click.decorators import FC

    from assets.canary.rollout import Rollout
    from pipelines.environments import Ports

WATCH_S = 0.5
# A log is told so often where a rollout stands.
STANDING_S = 5.0


@click.command()
@click.argument("model")
@click.option("--watch", is_flag=True, help="Follow it to its end; exit code 0 when promoted, else 1.")
@click.option(
    "--rehearse",
    is_flag=True,
    help="Roll out the champion as its own challenger, and take it back at the end; exit code 0 when no guard fired.",
)
@models_folder
def rollout(model: str, watch: bool, rehearse: bool, home: Path, models: Path, as_json: bool) -> None:
    """Show the latest rollout of a model: state, rung, every guard against its bound, what happened.

    A rehearsal climbs the ladder with real traffic and ends below 100 %: equal models, so what fires is the noise of
    the machines. It takes the free pool; the version that was kept warm there can't be rolled back to any more.

    \b
    Examples
      trimtab rollout flight_delay --watch
      trimtab rollout flight_delay --rehearse
    """
    if rehearse:
        _rehearse(model, home, models, as_json)
        return
    from rich.console import Console
    from rich.live import Live

    from pipelines.rollout_view import picture, plain

    doors = _doors(home)
    found = _load(doors, model)
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    if watch and not as_json and console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            while not found.closed:
                live.update(picture(found, datetime.now(UTC)))
                time.sleep(WATCH_S)
                found = _load(doors, model)
    elif watch:
        found = _follow(doors, model, found)
    if as_json:
        click.echo(json.dumps(plain(found, datetime.now(UTC)), indent=2))
    else:
        console.print(picture(found, datetime.now(UTC)))
    sys.exit(0 if not watch or found.phase == "PROMOTED" else 1)


def front(command: "FC") -> "FC":
    """Options of what clients meet first."""
    pem = click.Path(exists=True, dir_okay=False, resolve_path=True)
    for option in (
        click.option("--rate-limit", type=click.IntRange(min=1), help="Requests a second, of all clients together."),
        click.option("--tls-key", type=pem, help="Its private key, PEM."),
        click.option("--tls-cert", type=pem, help="Certificate of the gateway, PEM. Without it: no TLS."),
    ):
        command = option(command)
    return command


def ask_front(home: Path, asked: Mapping[str, Any]) -> None:
    """Keep what `up` was asked for, for this and every later start of the gateway. Nothing asked: as before."""
    from resources.envoy_front import Front, write_front

    if any(value is not None for value in asked.values()):
        front = Front(asked["tls_cert"], asked["tls_key"], asked["rate_limit"])
        write_front(home.resolve() / "data" / "gateway", front)


@click.command()
@click.argument("model")
@click.option("--reason", default="no reason given", help="Kept in the record.")
def rollback(model: str, reason: str, home: Path, as_json: bool) -> None:
    """Take back the latest release of a model: the version before serves again.

    A version that was promoted goes back by one change of weights, as long as the one before is still warm. A rollout
    on its way up is ended. Refused, with the reason, when there is nothing warm to go back to.

    \b
    Example
      trimtab rollback flight_delay --reason "complaints from the airport"
    """
    from pipelines.rollback import Operator

    doors = _doors(home)
    operator = Operator(
        doors.store, doors.pools, doors.gateway, doors.traffic, doors.lineage, lambda text: click.echo(text, err=True)
    )
    done = operator.roll_back(model, reason)
    if as_json:
        click.echo(json.dumps(asdict(done), indent=2))
    else:
        back = "nothing" if done.back_to is None else f"version {done.back_to}"
        click.echo(f"{model}: {back} serves again in place of version {done.version}, after {done.seconds:.2f} s")


def _rehearse(model: str, home: Path, models: Path, as_json: bool) -> None:
    from rich.console import Console

    from assets.verdict import Verdict
    from pipelines.rehearse import Rehearsal
    from pipelines.rollout_view import picture, plain
    from pipelines.spec import load_specs

    specs = {spec.name: spec for spec in load_specs(models)}
    if model not in specs:
        raise SpecError(models, "MODEL", model, f"is no model: there are {', '.join(specs)}")
    doors = _doors(home)
    ports = (doors.store, doors.pools, doors.gateway, doors.traffic, doors.lineage)
    rehearsal = Rehearsal(*ports, lambda text: click.echo(text, err=True))
    ended, decision = rehearsal.rehearse(model, specs[model].canary)
    if as_json:
        click.echo(json.dumps(plain(ended, datetime.now(UTC)), indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(picture(ended, datetime.now(UTC)))
    sys.exit(0 if decision.verdict is Verdict.PASS else 1)


def _doors(home: Path) -> "Ports":
    from pipelines import local
    from pipelines.environments import enter, ports

    return ports(enter(local.stack_environment(local.read_addresses(home), home)))


def _load(doors: "Ports", model: str) -> "Rollout":
    from assets.canary.driver import load

    found = load(doors.store, model)
    if found is None:
        raise NotFound(f"{model}: nothing was rolled out yet: `trimtab launch release {model} --partition ...`")
    return found[0]


def _follow(doors: "Ports", model: str, found: "Rollout") -> "Rollout":
    """Line by line to its end, for logs: what happens, and every few seconds where it stands."""
    from pipelines.rollout_view import standing

    told, due = 0, 0.0
    while True:
        for at, text in found.diary[told:]:
            click.echo(f"{at:%H:%M:%S}  {text}", err=True)
        told = len(found.diary)
        if found.closed:
            return found
        if time.monotonic() >= due and not found.first_release:
            now, due = datetime.now(UTC), time.monotonic() + STANDING_S
            click.echo(f"{now:%H:%M:%S}  {standing(found, now)}", err=True)
        time.sleep(WATCH_S)
        found = _load(doors, model)
