"""Runs in MLflow: created, filled and closed by explicit ids, in the experiment of their model."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from resources.mlflow_connection import Connection
from resources.mlflow_entities import MAX_PARAM, MAX_TAG, Dataset, dataset_input, metrics_at, short
from resources.mlflow_model import written
from resources.training import Training


class Runs(Connection):
    """What a connection does with runs."""

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

    def _upload(self, run_id: str, artifacts: Mapping[str, bytes]) -> None:
        if artifacts:
            with written(artifacts) as folder:
                self._client.log_artifacts(run_id, str(folder))

    def _closed(self, model: str, tags: Mapping[str, str]) -> str | None:
        """A run of an earlier try with these tags that was finished."""
        said = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        wanted = f"{said} and attributes.status = 'FINISHED'"
        runs = self._client.search_runs([self._experiment(model)], wanted, max_results=1)
        return str(runs[0].info.run_id) if runs else None
