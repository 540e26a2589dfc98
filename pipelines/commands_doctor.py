"""`trimtab doctor`: the acceptance check of a machine, before it is bought or used."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.option(
    "--servers",
    type=click.Path(path_type=Path),
    default=None,
    envvar="TRIMTAB_SERVERS",
    help="Virtual environment of the servers; deploy/servers/.venv without it. [env: TRIMTAB_SERVERS]",
)
@click.option(
    "--make-slices",
    is_flag=True,
    help="On a GPU with MIG on: make its smallest slice, list it, and take it away again. Needs root.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document on standard output.")
def doctor(servers: Path | None, make_slices: bool, as_json: bool) -> None:
    """Check this machine: cores, versions, GPU, a tiny model loaded and measured, metrics.

    What a slow or busy machine is, and what a badly configured one, is told apart: Triton is measured against ONNX
    Runtime alone on the same cores in the same minute.

    Each check says pass, fail or 'not here', with its evidence and the remedy. Exit code 1 when one failed.
    It starts a Triton of its own on free ports and ends it again; about 15 seconds.
    """
    from pipelines.local import SERVERS
    from resources.local.check import FAIL, NOT_HERE, PASS
    from resources.local.doctor import examine

    colours = {PASS: "green", FAIL: "red", NOT_HERE: "bright_black"}
    checks = []
    for check in examine((servers or SERVERS).absolute(), make_slices):
        checks.append(check)
        if not as_json:
            click.echo(
                f"{click.style(f'{check.result:8}', fg=colours[check.result])}  {check.name:13} {check.evidence}"
            )
            if check.remedy:
                click.echo(f"{'':25}{check.remedy}")
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    sys.exit(1 if any(check.result == FAIL for check in checks) else 0)
