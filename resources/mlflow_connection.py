"""The connection to MLflow: one client, errors as ours, and where people read what it holds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from resources.errors import LineageError
from resources.mlflow_health import reach

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class Connection:
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
