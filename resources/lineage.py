"""Lineage in MLflow: runs, registered versions, aliases. Explicit ids only, never an ambient run.

One experiment a model. Every run carries `kind` and `dagster.run_id`; a version carries the digests of its snapshot and
of its bytes. The registry's version number is Triton's version directory and the answer's `model_version`.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from resources.errors import DataError, LineageError
from resources.mlflow_entities import MAX_PARAM, MAX_TAG, Dataset, dataset_input, metrics_at, short
from resources.mlflow_health import reach
from resources.mlflow_model import model_files, written
from resources.training import Training

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """One version of a registered model, and the run that made it."""

    model: str
    version: int
    run_id: str


@dataclass(frozen=True)
class Lineage:
    """MLflow through its client. `public_url` is where people see it, when that is not the tracking URI.

    Every call raises `LineageError` with the address when MLflow does not answer. patience_s: how long each call waits
    for it to come back first: not at all for a person, who wants to hear of it; a minute for a step with work behind.
    """

    tracking_uri: str
    public_url: str | None = None
    timeout_s: float = 5.0
    patience_s: float = 0.0
    sleep: Callable[[float], None] = time.sleep
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
        again: bool = False,
    ) -> str:
        """Create, fill and close one run; its id. artifacts: bytes by path. Metrics that are not finite stay out.

        again: a step that is tried again finds the run that its earlier try finished for the same tag `decision`.
        """
        own = {"kind": kind, "dagster.run_id": dagster_run_id}
        with self._mapped(f"run {kind} of {model}"):
            if again and (found := self._closed(model, {**own, "decision": (tags or {}).get("decision", "")})):
                return found
            run_id = self._open(model, kind, {**(tags or {}), **own})
            with self._closing(run_id):
                self._fill(run_id, params or {}, metrics or {}, dataset)
                self._upload(run_id, artifacts or {})
        return run_id

    def follow(
        self, run_id: str, metrics: Mapping[str, float], step: int, artifacts: Mapping[str, bytes] | None = None
    ) -> None:
        """Add one step of metrics to a run of `run`, and replace these of its artifacts: what goes on while it does."""
        with self._mapped(f"following run {run_id}"):
            self._client.log_batch(run_id, metrics=metrics_at(metrics, int(time.time() * 1000), step))
            self._upload(run_id, artifacts or {})

    @contextmanager
    def training(
        self,
        model: str,
        *,
        dagster_run_id: str,
        tags: Mapping[str, str] | None = None,
        dataset: Dataset | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Iterator[Training]:
        """A run of kind `training` that is filled while a fit goes on; FAILED when the fit is."""
        own = {"kind": "training", "dagster.run_id": dagster_run_id}
        with self._mapped(f"training run of {model}"):
            run_id = self._open(model, "training", {**(tags or {}), **own})
            self._fill(run_id, {}, {}, dataset)

        def send(points: list[tuple[int, dict[str, float], int]]) -> None:
            rows = [metric for step, values, at_ms in points for metric in metrics_at(values, at_ms, step)]
            self._reach(run_id, patience_s=0)
            for start in range(0, len(rows), 1000):
                self._client.log_batch(run_id, metrics=rows[start : start + 1000])

        told = Training(run_id, send, clock)
        status = "FAILED"
        try:
            yield told
            status = "FINISHED"
        finally:
            told.flush()
            with suppress(Exception):
                self._reach(run_id, patience_s=0)
                self._client.set_terminated(run_id, status)

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
        """A new version with these bytes, of a model whose metrics are told of it and of the snapshot.

        The same bytes from the same Dagster run are the same version: a retry after a crash finds what was done and
        does the rest.
        """
        digest = hashlib.sha256(onnx).hexdigest()
        own = {"dagster.run_id": dagster_run_id, "onnx.digest": digest, "dataset.digest": snapshot_digest}
        marks = {**(tags or {}), **own}
        dataset = Dataset(f"{model} snapshot", snapshot_digest, snapshot_uri)
        with self._mapped(f"registering {model}"):
            if found := self._registered(model, dagster_run_id, digest):
                return found
            run_id = self._closed(model, {"kind": "candidate", "dagster.run_id": dagster_run_id, "onnx.digest": digest})
            if run_id is None:
                run_id = self._open(model, "candidate", {**marks, "kind": "candidate"})
                with self._closing(run_id):
                    self._client.log_inputs(run_id, [dataset_input(dataset)])
                    model_id = self._log_model(model, run_id, onnx, marks)
                    self._fill(run_id, params or {}, metrics or {}, dataset, model_id)
                    self._upload(run_id, artifacts or {})
            self._ensure_model(model)
            model_id = self._model_of(run_id)
            self._client.create_model_version(
                model,
                f"models:/{model_id}",
                run_id,
                tags=short(marks, MAX_TAG),
                await_creation_for=0,
                model_id=model_id,
            )
            # The client repeats a request whose answer was lost: a second version of it must not stay.
            return self._only(model, dagster_run_id, digest)

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

    def _reach(self, what: str, patience_s: float | None = None) -> None:
        if self.tracking_uri.startswith("http"):
            patience_s = self.patience_s if patience_s is None else patience_s
            reach(self.tracking_uri, what, self.timeout_s, patience_s, self.sleep)

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
            self._client.create_run(self._experiment(model), tags=short(tags, MAX_TAG), run_name=name).info.run_id
        )

    @contextmanager
    def _closing(self, run_id: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._reach(run_id, patience_s=0)
                self._client.set_terminated(run_id, "FAILED")
            raise
        self._client.set_terminated(run_id, "FINISHED")

    def _fill(
        self,
        run_id: str,
        params: Mapping[str, str],
        metrics: Mapping[str, float],
        dataset: Dataset | None,
        model_id: str | None = None,
    ) -> None:
        """With model_id the dataset is an input of the run already, and the metrics are of both."""
        from mlflow.entities import Param

        numbers = metrics_at(metrics, int(time.time() * 1000), model_id=model_id, dataset=dataset)
        words = [Param(key, value) for key, value in short(params, MAX_PARAM).items()]
        if numbers or words:
            self._client.log_batch(run_id, metrics=numbers, params=words)
        if dataset is not None and model_id is None:
            self._client.log_inputs(run_id, [dataset_input(dataset)])

    def _log_model(self, model: str, run_id: str, onnx: bytes, marks: Mapping[str, str]) -> str:
        """The bytes as a model of MLflow's own, an output of the run; its id."""
        from mlflow.entities import LoggedModelOutput

        files = model_files(onnx, "model")
        made = self._client.create_logged_model(
            self._experiment(model), name=model, source_run_id=run_id, tags=short(marks, MAX_TAG), model_type="onnx"
        )
        model_id = str(made.model_id)
        with written(files) as folder:
            self._client.log_model_artifacts(model_id, str(folder / "model"))
        self._client.finalize_logged_model(model_id, "READY")
        self._client.log_outputs(run_id, [LoggedModelOutput(model_id, 0)])
        return model_id

    def _model_of(self, run_id: str) -> str:
        """The model that a finished candidate run gave."""
        outputs = self._client.get_run(run_id).outputs
        if outputs is None or not outputs.model_outputs:
            raise LineageError(f"run {run_id} is finished and names no model: it was not made here: train anew")
        return str(outputs.model_outputs[0].model_id)

    def _upload(self, run_id: str, artifacts: Mapping[str, bytes]) -> None:
        if artifacts:
            with written(artifacts) as folder:
                self._client.log_artifacts(run_id, str(folder))

    def _versions(self, model: str, dagster_run_id: str, digest: str) -> "list[ModelVersion]":
        """Versions of these bytes from this Dagster run, the first first."""
        wanted = f"name = '{model}' and tags.`dagster.run_id` = '{dagster_run_id}'"
        found = [v for v in self._client.search_model_versions(wanted) if v.tags.get("onnx.digest") == digest]
        return sorted(found, key=lambda item: int(item.version))

    def _registered(self, model: str, dagster_run_id: str, digest: str) -> RegisteredVersion | None:
        first = next(iter(self._versions(model, dagster_run_id, digest)), None)
        return None if first is None else RegisteredVersion(model, int(first.version), first.run_id or "")

    def _only(self, model: str, dagster_run_id: str, digest: str) -> RegisteredVersion:
        first, *others = self._versions(model, dagster_run_id, digest)
        for other in others:
            self._client.delete_model_version(model, other.version)
        return RegisteredVersion(model, int(first.version), first.run_id or "")

    def _closed(self, model: str, tags: Mapping[str, str]) -> str | None:
        """A run of an earlier try with these tags that was finished."""
        said = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        wanted = f"{said} and attributes.status = 'FINISHED'"
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
