"""Lineage in MLflow: runs, registered versions, aliases. Explicit ids only, never an ambient run.

One experiment a model. Every run carries `kind` and `dagster.run_id`; a version carries the digests of its snapshot and
of its bytes. The registry's version number is Triton's version directory and the answer's `model_version`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from resources.errors import DataError, LineageError
from resources.mlflow_entities import MAX_TAG, Dataset, dataset_input, short
from resources.mlflow_model import model_files, written
from resources.mlflow_runs import Runs

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """One version of a registered model, and the run that made it."""

    model: str
    version: int
    run_id: str


class Lineage(Runs):
    """Runs and registered versions of all models."""

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
