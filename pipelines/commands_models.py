"""Commands about model folders: make one, check all, put a source table into the running store."""

import io
import json
import sys
from pathlib import Path

import click

from assets.task import SERVED, Task
from resources.errors import SpecError
from resources.store import Store


def _own_models() -> Path:
    from pipelines.environments import MODELS

    return MODELS


models_folder = click.option(
    "--models",
    type=click.Path(file_okay=False, path_type=Path),
    default=_own_models,
    envvar="TRIMTAB_MODELS",
    help="Folder of model folders; pipelines/models without it. [env: TRIMTAB_MODELS]",
)
accept_schema = click.option(
    "--accept-schema",
    help="Inputs that may differ from the champion's, separated by commas. Without it such a candidate is refused.",
)
table_file = click.option(
    "--from",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV or Parquet file.",
)


def accepted(names: str | None) -> dict[str, str]:
    """The run tag that says so."""
    from assets.retrain.schema import ACCEPT_TAG

    return {ACCEPT_TAG: names} if names else {}


@click.command()
@click.argument("model")
@table_file
@click.option("--target", required=True, help="Column of the outcome that is predicted.")
@click.option(
    "--time", required=True, help="Column of the instant a row speaks of, ISO 8601; without a zone it is UTC."
)
@click.option("--key", help="Column that names each row once. Without it the time and a number do.")
@click.option("--positive", help="Value of the target that is the event; needed unless it is plain, as yes or 1.")
@click.option("--task", type=click.Choice(SERVED), help="What is answered: the chance of an event, or a number. "
              "Without it the target's values say: more than ten different numbers are amounts.")  # fmt: skip
@click.option("--label-delay-hours", type=click.FloatRange(min=0, min_open=True), default=24.0, show_default=True,
              help="How long after its row an outcome is known.")  # fmt: skip
@click.option("--cadence", type=click.Choice(["hourly", "daily", "weekly"]), default="daily", show_default=True,
              help="How often inputs are checked.")  # fmt: skip
@click.option("--owner", default="team:ml", show_default=True, help="'team:NAME' or an e-mail address.")
@models_folder
def new(
    model: str,
    file: Path,
    target: str,
    time: str,
    key: str | None,
    positive: str | None,
    task: Task | None,
    label_delay_hours: float,
    cadence: str,
    owner: str,
    models: Path,
) -> None:
    """Make a working model folder from a table: spec, feature set, recipe.

    \b
    Example
      trimtab new churn --from customers.csv --target churned --time signed_up
    """
    from pipelines import new_model
    from pipelines.draft import draft, read_table

    found = draft(_name(model), file, read_table(file), target, time, key, positive, task)
    folder = models / model
    new_model.write(folder, new_model.files(found, owner, cadence, label_delay_hours))
    click.echo(f"{folder}: {len(found.inputs)} inputs from {found.rows} rows; {found.outcome.seen}")
    click.echo(f"task {found.outcome.task}: {found.outcome.meaning}")
    for name, why in found.left_out:
        click.echo(f"left out {name}: {why}")
    where = "" if models == _own_models() else f" --models {models}"
    click.echo(f"next: trimtab check{where}; trimtab up{where}; trimtab source {model} --from {file}")


@click.command()
@models_folder
@click.option("--sources", type=click.Path(file_okay=False, path_type=Path), metavar="HOME",
              help="Home of a running stack, as .trimtab: hold the SQL against its source tables too.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON document on standard output.")
def check(models: Path, sources: Path | None, as_json: bool) -> None:
    """Check every model folder: specs, feature sets, recipes, and whether they go together.

    Exit code 0 when all hold, else 1; each flaw names file, line, field, value and remedy.
    """
    from pipelines.check import check as look

    found = look(models, _store(sources) if sources else None)
    if as_json:
        flaws = {
            str(item.file): [
                {"file": f.file, "line": f.line, "field": f.field, "value": repr(f.value), "remedy": f.remedy}
                for f in item.flaws
            ]
            for item in found
        }
        click.echo(json.dumps(flaws, indent=2))
    else:
        for item in found:
            for flaw in item.flaws:
                click.echo(f"✗ {flaw}")
            if not item.flaws:
                click.echo(f"✓ {item.summary}")
    sys.exit(1 if any(item.flaws for item in found) else 0)


@click.command()
@click.argument("name")
@table_file
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), default=Path(".trimtab"), show_default=True,
              envvar="TRIMTAB_HOME", help="Folder of the running stack. [env: TRIMTAB_HOME]")  # fmt: skip
def source(name: str, file: Path, home: Path) -> None:
    """Put a table into the running store, as a source that feature sets read by NAME.

    Again it replaces the table: snapshots taken before stay as they are.

    \b
    Example
      trimtab source churn --from customers.csv
    """
    import pyarrow.parquet as pq

    from pipelines.draft import read_table

    table = read_table(file)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    store = _store(home)
    key = f"raw/{_name(name)}.parquet"
    held = store.pointer(key)
    store.swap(key, sink.getvalue(), held.etag if held else None)
    click.echo(f"{key}: {table.num_rows} rows")


def _store(home: Path) -> Store:
    from pipelines import local
    from pipelines.environments import enter, ports

    return ports(enter(local.stack_environment(local.read_addresses(home), home))).store


def _name(model: str) -> str:
    import re

    if not re.fullmatch(r"[a-z][a-z0-9_]{1,59}", model):
        remedy = "has to be 2 to 60 lower-case letters, digits and _, beginning with a letter"
        raise SpecError("command line", "MODEL", model, remedy)
    return model
