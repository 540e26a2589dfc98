"""`trimtab sign` and `trimtab verify`: packages by hand, in a folder, as a tar, or in the store."""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import click

from pipelines.environments import Environment, enter, environment
from pipelines.local import read_addresses, stack_environment
from resources import packages, signing
from resources.errors import PackageRefused, ServingError, StackError
from resources.package_check import check_content
from resources.store import S3Store

stack_home = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".trimtab"),
    show_default=True,
    envvar="TRIMTAB_HOME",
    help="Folder of the stack whose keys and store are meant. [env: TRIMTAB_HOME]",
)


class KeyFile(click.Path):
    """A key's file, or the key itself as PEM text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(str(signing.key_file(str(value))), param, ctx)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--key",
    type=KeyFile(exists=True, dir_okay=False, path_type=Path),
    default=None,
    envvar="TRIMTAB_SIGNING_KEY",
    help="Private key, P-256: a PEM file, or its text in the variable; the stack's own without it. "
    "[env: TRIMTAB_SIGNING_KEY]",
)
@stack_home
def sign(folder: Path, key: Path | None, home: Path) -> None:
    """Sign the package in FOLDER: layout and content are checked, then FOLDER/model.sig is written over every file.

    The check reads config.pbtxt beside the ONNX, as publishing does, and names the field that does not fit.

    \b
    Examples
      trimtab sign build/flight_delay-7
      trimtab sign build/flight_delay-7 --key keys/2027.pem
    """
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]
    packages.check_names(names)
    model, version = _subject(folder)
    packages.check_layout(folder, model, version)
    check_content(folder, model, version)
    private = key or home / "keys" / "signing.pem"
    if not private.is_file():
        raise ServingError(f"{private}: no such key: name one with --key, or start a stack, which makes a pair")
    signing.sign(folder, private)
    click.echo(f"{model}:{version}: {len(names)} files signed with {private}; {folder / signing.SIGNATURE} written")


@click.command()
@click.argument("package")
@click.option(
    "--key",
    "keys",
    type=KeyFile(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    envvar="TRIMTAB_VERIFY_KEY",
    help="Public key, file or text; may be repeated: any of them will do. [env: TRIMTAB_VERIFY_KEY, separated by ':']",
)
@stack_home
def verify(package: str, keys: tuple[Path, ...], home: Path) -> None:
    """Check PACKAGE as an agent and then Triton do: a folder, a tar, or a key of the store.

    Exit code 1 with the file's name when one byte differs, a file is missing or was added, the signature is no
    trusted key's, or config.pbtxt does not fit the ONNX beside it. While keys are rotated both are trusted: put the
    new public key beside the old one as HOME/keys/NAME.pub.pem, restart the agents, then sign with the new private key.

    \b
    Examples
      trimtab verify build/flight_delay-7
      trimtab verify packages/flight_delay/7/SHA256.tar --key keys/2026.pub.pem --key keys/2027.pub.pem
    """
    trusted = keys or reach(home).verify_keys
    if Path(package).is_dir():
        click.echo(checked(Path(package), trusted))
        return
    body = Path(package).read_bytes() if Path(package).is_file() else _fetched(package, home)
    with tempfile.TemporaryDirectory(prefix="trimtab-verify-") as name:
        packages.unpack(body, Path(name))
        click.echo(f"{checked(Path(name), trusted)}, tar {hashlib.sha256(body).hexdigest()}")


def checked(folder: Path, trusted: tuple[Path, ...]) -> str:
    """One line about a package that holds; `PackageRefused` with the file's name about one that does not."""
    model, version = _subject(folder)
    packages.check_layout(folder, model, version)
    signing.verify(folder, trusted)
    check_content(folder, model, version)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    origin = {name: manifest.get(name) for name in ("mlflow_run_id", "snapshot_digest") if manifest.get(name)}
    told = "".join(f", {name} {value}" for name, value in origin.items())
    return f"{model}:{version} holds: {len(manifest.get('files', {}))} files as they were signed{told}"


def _subject(folder: Path) -> tuple[str, int]:
    """Model and version that the package says it is about."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        return str(manifest["model"]), int(manifest["version"])
    except FileNotFoundError as error:
        raise PackageRefused("manifest.json is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PackageRefused(f"manifest.json does not name model and version: {error!r}") from error


def reach(home: Path) -> Environment:
    """The stack in this home, else what the process's environment says."""
    try:
        return enter(stack_environment(read_addresses(home), home))
    except StackError:
        return environment()


def _fetched(key: str, home: Path) -> bytes:
    if not key.startswith("packages/"):
        raise PackageRefused(f"{key}: no such file or folder, and no key of the store, which begins with packages/")
    where = reach(home)
    return S3Store(where.bucket, where.s3_endpoint).get(key)
