"""Lineage in MLflow: runs, registered versions, aliases. Explicit ids only, never an ambient run.

One experiment a model. Every run carries `kind` and `dagster.run_id`; a version carries the digests of its snapshot and
of its bytes. The registry's version number is Triton's version directory and the answer's `model_version`.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from resources.errors import DataError, LineageError
from resources.mlflow_model import model_files

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput
    from mlflow.entities.model_registry import ModelVersion

# MLflow's own columns: a dataset's digest holds 36 characters, a parameter 6000, a tag 8000.
DATASET_DIGEST_LENGTH = 32
MAX_PARAM, MAX_TAG = 6000, 8000


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """One version of a registered model, and the run that made it."""

    model: str
    version: int
    run_id: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a run read: a snapshot by its digest."""

    name: str
    digest: str
    uri: str
    rows: int | None = None
    context: str = "training"


@dataclass(frozen=True)
class Lineage:
    """MLflow through its client. `public_url` is where people see it, when that is not the tracking URI.

    Every call raises `LineageError` with the address when MLflow does not answer.
    """

    tracking_uri: str
    public_url: str | None = None
    timeout_s: float = 5.0
    _experiments: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def run(
        self,
        model: str,
        kind: str,
        *,
        dagster_run_id: str,
        tags: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        artifacts: Mapping[str, bytes] | None = None,
        dataset: Dataset | None = None,
    ) -> str:
        """Create, fill and close one run; its id. artifacts: bytes by path. Metrics that are not finite stay out."""
        own = {"kind": kind, "dagster.run_id": dagster_run_id}
        with self._mapped(f"run {kind} of {model}"):
            run_id = self._open(model, kind, {**(tags or {}), **own})
            with self._closing(run_id):
                self._fill(run_id, params or {}, metrics or {}, dataset)
                self._upload(run_id, artifacts or {})
        return run_id

    def follow(
        self, run_id: str, metrics: Mapping[str, float], step: int, artifacts: Mapping[str, bytes] | None = None
    ) -> None:
        """Add one step of metrics to a run of `run`, and replace these of its artifacts: what goes on while it does."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        numbers = [Metric(key, float(value), now_ms, step) for key, value in metrics.items() if math.isfinite(value)]
        with self._mapped(f"following run {run_id}"):
            self._client.log_batch(run_id, metrics=numbers)
            self._upload(run_id, artifacts or {})

    def register(
        self,
        model: str,
        onnx: bytes,
        *,
        dagster_run_id: str,
        snapshot_digest: str,
        snapshot_uri: str,
        params: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        artifacts: Mapping[str, bytes] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RegisteredVersion:
        """A new version with these bytes. The same bytes from the same Dagster run are the same version: a retry after
        a crash finds what was done and does the rest.
        """
        digest = hashlib.sha256(onnx).hexdigest()
        own = {"dagster.run_id": dagster_run_id, "onnx.digest": digest, "dataset.digest": snapshot_digest}
        marks = {**(tags or {}), **own}
        dataset = Dataset(f"{model} snapshot", snapshot_digest, snapshot_uri)
        with self._mapped(f"registering {model}"):
            if found := self._registered(model, dagster_run_id, digest):
                return found
            run_id = self._finished(model, dagster_run_id, digest)
            if run_id is None:
                run_id = self._open(model, "candidate", {**marks, "kind": "candidate"})
                with self._closing(run_id):
                    self._fill(run_id, params or {}, metrics or {}, dataset)
                    self._upload(run_id, {**(artifacts or {}), **model_files(onnx, "model")})
            self._ensure_model(model)
            source = f"{self._client.get_run(run_id).info.artifact_uri}/model"
            made = self._client.create_model_version(
                model, source, run_id, tags=_short(marks, MAX_TAG), await_creation_for=0
            )
        return RegisteredVersion(model, int(made.version), run_id)

    def onnx(self, model: str, version: int) -> bytes:
        """The registered bytes. `DataError` when they are not those that were registered, or not one ONNX file."""
        from mlflow.artifacts import download_artifacts

        with self._mapped(f"{model} version {version}"), TemporaryDirectory() as folder:
            found = self._version(model, version)
            place = download_artifacts(self._home(found), dst_path=folder, tracking_uri=self.tracking_uri)
            files = sorted(Path(place).rglob("*.onnx"))
            if len(files) != 1:
                names = [file.name for file in files]
                raise DataError(f"{model} version {version} holds {names}: register exactly one .onnx file")
            body = files[0].read_bytes()
        wanted = found.tags.get("onnx.digest")
        if wanted is not None and hashlib.sha256(body).hexdigest() != wanted:
            raise DataError(
                f"{model} version {version}: the bytes are not those of its onnx.digest {wanted}: train anew"
            )
        return body

    def set_alias(self, model: str, alias: str, version: int) -> None:
        """Let `champion` or `challenger` name this version."""
        with self._mapped(f"alias {alias} of {model}"):
            self._client.set_registered_model_alias(model, alias, str(version))

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        """Write a tag on a version; a later value takes the place of an earlier one."""
        with self._mapped(f"tag {key} of {model} version {version}"):
            self._client.set_model_version_tag(model, str(version), key, value[:MAX_TAG])

    def version_of(self, model: str, alias: str) -> RegisteredVersion | None:
        """The version an alias names; None without the model or the alias."""
        from mlflow.exceptions import MlflowException

        with self._mapped(f"alias {alias} of {model}"):
            try:
                found = self._client.get_model_version_by_alias(model, alias)
            except MlflowException as error:
                # A missing alias is told as an invalid parameter.
                missing = error.error_code == "INVALID_PARAMETER_VALUE" and "alias" in str(error)
                if missing or error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise
        return RegisteredVersion(model, int(found.version), found.run_id or "")

    def tags(self, model: str, version: int) -> dict[str, str]:
        """The tags of a version."""
        with self._mapped(f"{model} version {version}"):
            return dict(self._version(model, version).tags)

    def page(self, run_id: str) -> str:
        """Where people read a run."""
        return f"{self._public}/#/runs/{run_id}"

    def file_page(self, model: str, run_id: str, path: str) -> str:
        """Where people see an artifact of a run."""
        with self._mapped(f"experiment of {model}"):
            experiment = self._experiment(model)
        return f"{self._public}/#/experiments/{experiment}/runs/{run_id}/artifacts/{path}"

    def model_page(self, model: str, version: int) -> str:
        """Where people read a version."""
        return f"{self._public}/#/models/{model}/versions/{version}"

    @property
    def _public(self) -> str:
        return (self.public_url or self.tracking_uri).rstrip("/")

    @cached_property
    def _client(self) -> "MlflowClient":
        from mlflow import MlflowClient

        return MlflowClient(self.tracking_uri, self.tracking_uri)

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        self._reach(what)
        try:
            yield
        except MlflowException as error:
            raise LineageError(f"{what}: MLflow at {self.tracking_uri} says {error.error_code}: {error}") from error
        except OSError as error:
            raise LineageError(f"{what}: MLflow at {self.tracking_uri} broke off: {error}: is it up?") from error

    def _reach(self, what: str) -> None:
        """The client retries a dead server for minutes; a person wants to hear of it at once."""
        if not self.tracking_uri.startswith("http"):
            return
        try:
            with urlopen(f"{self.tracking_uri.rstrip('/')}/health", timeout=self.timeout_s):
                return
        except (URLError, OSError) as error:
            raise LineageError(
                f"{what}: MLflow at {self.tracking_uri} does not answer: {error}: start it, or correct its address"
            ) from error

    def _experiment(self, model: str) -> str:
        from mlflow.exceptions import MlflowException

        if model not in self._experiments:
            found = self._client.get_experiment_by_name(model)
            if found is None:
                try:
                    self._experiments[model] = self._client.create_experiment(model)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                    found = self._client.get_experiment_by_name(model)
            if found is not None:
                self._experiments[model] = found.experiment_id
        return self._experiments[model]

    def _open(self, model: str, kind: str, tags: Mapping[str, str]) -> str:
        name = f"{kind} {tags['as_of'][:16]}" if "as_of" in tags else kind
        return str(
            self._client.create_run(self._experiment(model), tags=_short(tags, MAX_TAG), run_name=name).info.run_id
        )

    @contextmanager
    def _closing(self, run_id: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._reach(run_id)
                self._client.set_terminated(run_id, "FAILED")
            raise
        self._client.set_terminated(run_id, "FINISHED")

    def _fill(
        self, run_id: str, params: Mapping[str, str], metrics: Mapping[str, float], dataset: Dataset | None
    ) -> None:
        from mlflow.entities import Metric, Param

        now_ms = int(time.time() * 1000)
        # MLflow stores an infinity as the largest float, which draws as one on its page.
        numbers = [Metric(key, float(value), now_ms, 0) for key, value in metrics.items() if math.isfinite(value)]
        words = [Param(key, value) for key, value in _short(params, MAX_PARAM).items()]
        if numbers or words:
            self._client.log_batch(run_id, metrics=numbers, params=words)
        if dataset is not None:
            self._client.log_inputs(run_id, [_input(dataset)])

    def _upload(self, run_id: str, artifacts: Mapping[str, bytes]) -> None:
        if not artifacts:
            return
        with TemporaryDirectory() as place:
            folder = Path(place).resolve()
            for path, body in artifacts.items():
                target = (folder / path).resolve()
                if not target.is_relative_to(folder):
                    raise LineageError(f"artifact {path!r} leaves its run: name it by a relative path")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(body)
            self._client.log_artifacts(run_id, str(folder))

    def _registered(self, model: str, dagster_run_id: str, digest: str) -> RegisteredVersion | None:
        wanted = f"name = '{model}' and tags.`dagster.run_id` = '{dagster_run_id}'"
        same = [v for v in self._client.search_model_versions(wanted) if v.tags.get("onnx.digest") == digest]
        if not same:
            return None
        first = min(same, key=lambda item: int(item.version))
        return RegisteredVersion(model, int(first.version), first.run_id or "")

    def _finished(self, model: str, dagster_run_id: str, digest: str) -> str | None:
        """A run of an earlier try that has everything but its version."""
        wanted = (
            f"tags.kind = 'candidate' and tags.`dagster.run_id` = '{dagster_run_id}' "
            f"and tags.`onnx.digest` = '{digest}' and attributes.status = 'FINISHED'"
        )
        runs = self._client.search_runs([self._experiment(model)], wanted, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def _ensure_model(self, model: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _version(self, model: str, version: int) -> "ModelVersion":
        return self._client.get_model_version(model, str(version))

    def _home(self, version: "ModelVersion") -> str:
        """Where the files of a version lie, whoever registered it."""
        source = str(version.source)
        if source.startswith("models:/m-"):
            return str(self._client.get_logged_model(source.removeprefix("models:/")).artifact_location)
        return source


def _short(values: Mapping[str, Any], limit: int) -> dict[str, str]:
    return {key: str(value)[:limit] for key, value in values.items()}


def _input(dataset: Dataset) -> "DatasetInput":
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag

    entity = Entity(
        dataset.name,
        dataset.digest[:DATASET_DIGEST_LENGTH],
        source_type="s3",
        source=json.dumps({"uri": dataset.uri}),
        profile=None if dataset.rows is None else json.dumps({"num_rows": dataset.rows}),
    )
    return DatasetInput(entity, [InputTag("mlflow.data.context", dataset.context)])
