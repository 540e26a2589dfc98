"""One Triton and its repository, where only its agent writes: install, reload, remove. Nothing unverified is loaded."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.reconcile import Loaded
from resources import packages, signing
from resources.errors import ModelNotReady, PackageRefused, ServingError, TrimtabError
from resources.pools import Assignment
from resources.probe import largest_difference, probe_request
from resources.store import Store
from resources.triton import TritonServer

STAGING = ".staging"
# Loaded by whoever asks whether the server itself is up; no pool assigns it.
RESERVED = "trimtab_probe"


@dataclass(frozen=True)
class Installed:
    """How long each phase took, and how far the answers were from the expected ones."""

    seconds: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    difference: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 4)


@dataclass
class Replica:
    """The verbs of one replica. `known` holds the digests of packages whose signature was verified on this disk."""

    server: TritonServer
    repository: Path
    public_keys: Sequence[Path]
    known: dict[str, tuple[int, str]] = field(default_factory=dict)

    def open(self) -> None:
        """Take the repository over from whoever had it before, also from one that died in the middle of a change."""
        staging = self.repository / STAGING
        staging.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in staging.glob("*.old"):
            if not (self.repository / old.stem).exists():
                old.rename(self.repository / old.stem)
        shutil.rmtree(staging)
        staging.mkdir(mode=0o700)
        for folder in self._folders():
            self._recognise(folder.name)

    def look(self) -> dict[str, Loaded]:
        """What lies in the repository and what Triton serves. `ServingError` when Triton does not answer."""
        ready: dict[str, set[int]] = {}
        for line in self.server.index():
            if line.state == "READY" and line.model != RESERVED:
                ready.setdefault(line.model, set()).add(line.version)
        names = {folder.name for folder in self._folders()} | set(ready)
        found = {}
        for name in names:
            version, digest = self.known.get(name, (0, ""))
            found[name] = Loaded(version, digest, version in ready.get(name, set()))
        return found

    def install(self, model: str, assignment: Assignment, store: Store) -> Installed:
        """Serve this version in place of what is there; when it can't be, what was there goes on serving."""
        done = Installed()
        fresh = self.repository / STAGING / f"{model}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            with done.phase("fetch"):
                body = fetch(store, model, assignment)
            with done.phase("verify"):
                fresh.mkdir(mode=0o755)
                packages.unpack(body, fresh)
                packages.check_layout(fresh, model, assignment.version)
                signing.verify(fresh, self.public_keys)
            with self._in_place(model, fresh):
                with done.phase("load"):
                    self._load(model, assignment.version)
                with done.phase("probe"):
                    rows, difference = self.probe(model, assignment.version)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        self.known[model] = (assignment.version, assignment.digest)
        return Installed(done.seconds, rows, difference)

    def reload(self, model: str) -> Installed:
        """Load again what lies in the repository, after checking that it is still what was signed."""
        done = Installed()
        with done.phase("verify"):
            self._recognise(model)
            version, digest = self.known.get(model, (0, ""))
            if not digest:
                raise PackageRefused(f"{model}: its files in {self.repository} are not what was signed")
        with done.phase("load"):
            # A model whose process died is loaded again only if a file looks newer.
            _touch(self.repository / model)
            self._load(model, version)
        with done.phase("probe"):
            rows, difference = self.probe(model, version)
        return Installed(done.seconds, rows, difference)

    def confirm(self, model: str) -> Installed:
        """Probe what is served already."""
        done = Installed()
        with done.phase("probe"):
            rows, difference = self.probe(model, self.known[model][0])
        return Installed(done.seconds, rows, difference)

    def check(self, model: str) -> None:
        """The files are still what was signed; else `PackageRefused` names the file, and they are not loaded again."""
        folder = self.repository / model
        try:
            packages.check_layout(folder, model, self.known[model][0])
            signing.verify(folder, self.public_keys)
        except (TrimtabError, OSError) as error:
            self.known.pop(model)
            raise PackageRefused(f"{error}") from error

    def remove(self, model: str) -> None:
        """Serve the model no longer."""
        self.server.unload(model)
        self.known.pop(model, None)
        folder = self.repository / model
        if folder.exists():
            gone = self.repository / STAGING / f"{model}.gone"
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            shutil.rmtree(gone)

    def probe(self, model: str, version: int) -> tuple[int, float]:
        """Rows asked and largest difference from the answers that the package expects. Loading has warmed already."""
        probe = json.loads((self.repository / model / "probe.json").read_bytes())
        request = probe_request(probe)
        difference = largest_difference(probe, self.server.infer(model, request, version), version)
        return int(request["inputs"][0]["shape"][0]), difference

    def _load(self, model: str, version: int) -> None:
        self.server.load(model)
        lines = {line.version: line for line in self.server.index() if line.model == model}
        if version not in lines or lines[version].state != "READY":
            told = f"{lines[version].state} {lines[version].reason}" if version in lines else "not there"
            raise ModelNotReady(f"{model}:{version} is {told} after loading: was its folder {version}/ published?")

    @contextmanager
    def _in_place(self, model: str, fresh: Path) -> Iterator[None]:
        """The fresh folder under the model's name; on failure the old one is back, and Triton serves it."""
        folder, old = self.repository / model, self.repository / STAGING / f"{model}.old"
        shutil.rmtree(old, ignore_errors=True)
        before = folder.exists()
        if before:
            folder.rename(old)
        fresh.rename(folder)
        _touch(folder)
        try:
            yield
        except Exception:
            folder.rename(fresh)
            if before:
                old.rename(folder)
            self._restore(model, before)
            raise
        shutil.rmtree(old, ignore_errors=True)

    def _restore(self, model: str, before: bool) -> None:
        try:
            if not before:
                self.server.unload(model)
            elif self.known.get(model, (0, ""))[1]:
                version = self.known[model][0]
                if self.server.ready_versions(model) != {version}:
                    _touch(self.repository / model)
                    self._load(model, version)
        except ServingError:
            # The failure that led here is the one to report; the next look finds what is missing and loads it.
            return

    def _recognise(self, model: str) -> None:
        """Remember the package on disk by its digest if its signature holds: packing is deterministic."""
        folder = self.repository / model
        self.known.pop(model, None)
        try:
            version = int(json.loads((folder / "manifest.json").read_bytes())["version"])
            packages.check_layout(folder, model, version)
            signing.verify(folder, self.public_keys)
            self.known[model] = (version, hashlib.sha256(packages.pack(folder)).hexdigest())
        except (TrimtabError, OSError, ValueError, KeyError, TypeError):
            return

    def _folders(self) -> list[Path]:
        return [
            path
            for path in self.repository.iterdir()
            if path.is_dir() and not path.name.startswith(".") and path.name != RESERVED
        ]


def fetch(store: Store, model: str, assignment: Assignment) -> bytes:
    """The package's bytes, exactly those that were assigned."""
    if model == RESERVED or not packages.MODEL_NAME.fullmatch(model):
        raise PackageRefused(f"{model!r} is no name for a model")
    body = store.get(assignment.package)
    digest = hashlib.sha256(body).hexdigest()
    if digest != assignment.digest:
        raise PackageRefused(f"{assignment.package} has the digest {digest}, assigned was {assignment.digest}")
    return body


def _touch(folder: Path) -> None:
    """Triton reloads only what looks newer than what it saw last."""
    for path in folder.rglob("*"):
        os.utime(path)
