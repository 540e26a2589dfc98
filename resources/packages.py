"""Packages: the signed directory that Triton loads, as one deterministic tar. Data only, never code.

config.pbtxt · configs/<device>.pbtxt · <version>/model.onnx · warmup/<digest> · manifest.json · probe.json · model.sig
"""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from resources.errors import PackageRefused, ServingError
from resources.package_check import check_content
from resources.pools import Assignment
from resources.signing import SIGNATURE
from resources.store import Store

MAX_BYTES = 2 * 1024**3
MAX_FILES = 512
NAMES = re.compile(
    r"config\.pbtxt|configs/[A-Za-z0-9_-]+\.pbtxt|[1-9][0-9]{0,17}/model\.onnx|warmup/[0-9a-f]{16}"
    r"|manifest\.json|probe\.json|model\.sig"
)
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


def pack(folder: Path) -> bytes:
    """The folder as a tar: the same files are the same bytes, whoever packs them and when."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    for name in names:
        if (folder / name).is_symlink():
            raise PackageRefused(f"{name} is a link: a package holds plain files only")
    check_names(names)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            body = (folder / name).read_bytes()
            member = tarfile.TarInfo(name)  # owner, time and mode keep TarInfo's constants
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def unpack(body: bytes, folder: Path) -> None:
    """Write the package's files into an empty folder. `PackageRefused` before anything unknown is written."""
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as tar:
            members = _plain_members(tar)
            check_names([member.name for member in members])
            for member in members:
                stream = tar.extractfile(member)
                content = stream.read() if stream else b""
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    except tarfile.TarError as error:
        raise PackageRefused(f"the package is not a tar: {error}") from error


def _plain_members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members: list[tarfile.TarInfo] = []
    total = 0
    for member in tar:
        total += member.size
        if len(members) >= MAX_FILES or total > MAX_BYTES:
            raise PackageRefused(f"{member.name}: more than {MAX_FILES} files or {MAX_BYTES} bytes")
        if not member.isfile() or member.issparse():
            raise PackageRefused(f"{member.name} is no plain file: a package holds data only")
        members.append(member)
    return members


def check_names(names: Iterable[str]) -> None:
    """Every name is one that a package may hold, once. `PackageRefused` names the first that is not."""
    seen: set[str] = set()
    for name in names:
        if not NAMES.fullmatch(name):
            raise PackageRefused(f"{name} does not belong into a package: allowed is data only")
        if name in seen:
            raise PackageRefused(f"{name} is there twice")
        seen.add(name)


def check_layout(folder: Path, model: str, version: int) -> None:
    """The package is complete and is about this version of this model. `PackageRefused` names the file."""
    for name in ("config.pbtxt", f"{version}/model.onnx", "manifest.json", "probe.json"):
        if not (folder / name).is_file():
            raise PackageRefused(f"{name} is missing")
    versions = {path.name for path in folder.iterdir() if path.name.isdigit()}
    if versions != {str(version)}:
        raise PackageRefused(f"{'/, '.join(sorted(versions))}/: a package holds exactly one version, {version}/")
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        named = (manifest["model"], int(manifest["version"]))
    except (ValueError, KeyError, TypeError) as error:
        raise PackageRefused(f"manifest.json does not name model and version: {error!r}") from error
    if named != (model, version):
        raise PackageRefused(f"manifest.json is about {named[0]}:{named[1]}, not about {model}:{version}")


def publish(store: Store, model: str, version: int, folder: Path) -> Assignment:
    """Put the signed package into the store, where it never changes again.

    Its content is checked before: `PackageRefused` names the field that Triton or a replica's agent would stumble over.
    """
    if not MODEL_NAME.fullmatch(model):
        raise ServingError(f"model name {model!r}: letters, digits, '_' and '-' only")
    check_layout(folder, model, version)
    if not (folder / SIGNATURE).is_file():
        raise PackageRefused(f"{SIGNATURE} is missing: sign the package before it is published")
    check_content(folder, model, version)
    body = pack(folder)
    digest = hashlib.sha256(body).hexdigest()
    assignment = Assignment(version, f"packages/{model}/{version}/{digest}.tar", digest)
    store.put(assignment.package, body)
    return assignment


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """The files of a package into a folder, ready to be signed."""
    check_names(files)
    for name, body in files.items():
        target = folder / PurePosixPath(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)


def render_config(config: Mapping[str, Any]) -> str:
    """A model configuration as protobuf text; `ServingError` names the field that Triton would not know."""
    from google.protobuf import json_format, text_format
    from tritonclient.grpc import model_config_pb2

    try:
        message = json_format.ParseDict(dict(config), model_config_pb2.ModelConfig())
    except json_format.ParseError as error:
        raise ServingError(f"model configuration of {config.get('name', '?')}: {error}") from error
    return str(text_format.MessageToString(message))
