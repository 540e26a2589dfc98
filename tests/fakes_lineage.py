"""`resources.lineage.Lineage` in memory, held to the contract that the real one passes (tests/contracts)."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from resources.errors import LineageError
from resources.lineage import RegisteredVersion
from resources.mlflow_entities import Dataset
from resources.training import Training


@dataclass(frozen=True)
class Run:
    """What one run was told."""

    model: str
    kind: str
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    artifacts: dict[str, bytes]
    dataset: Dataset | None


@dataclass
class MemoryLineage:
    """`down = True` makes every call raise `LineageError`, as a dead server does."""

    down: bool = False
    runs: dict[str, Run] = field(default_factory=dict)
    versions: dict[str, list[tuple[str, bytes, dict[str, str]]]] = field(default_factory=dict)
    aliases: dict[tuple[str, str], int] = field(default_factory=dict)

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
        self._reach()
        own = {"kind": kind, "dagster.run_id": dagster_run_id}
        if again:
            wanted = {**own, "decision": (tags or {}).get("decision", "")}
            same = (run_id for run_id, run in self.runs.items() if wanted.items() <= run.tags.items())
            if found := next(same, None):
                return found
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = Run(
            model,
            kind,
            {**(tags or {}), **own},
            dict(params or {}),
            dict(metrics or {}),
            dict(artifacts or {}),
            dataset,
        )
        return run_id

    def follow(
        self, run_id: str, metrics: Mapping[str, float], step: int, artifacts: Mapping[str, bytes] | None = None
    ) -> None:
        self._reach()
        if run_id not in self.runs:
            raise LineageError(f"run {run_id}: no such run")
        self.runs[run_id].metrics.update(metrics)
        self.runs[run_id].artifacts.update(artifacts or {})

    @contextmanager
    def training(
        self,
        model: str,
        *,
        dagster_run_id: str,
        tags: Mapping[str, str] | None = None,
        dataset: Dataset | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> Iterator[Training]:
        run_id = self.run(model, "training", dagster_run_id=dagster_run_id, tags=tags, dataset=dataset)

        def send(points: list[tuple[int, dict[str, float], int]]) -> None:
            self._reach()
            for _, values, _ in points:
                self.runs[run_id].metrics.update(values)

        told = Training(run_id, send, clock)
        try:
            yield told
        finally:
            told.flush()

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
        self._reach()
        digest = hashlib.sha256(onnx).hexdigest()
        own = {"dagster.run_id": dagster_run_id, "onnx.digest": digest, "dataset.digest": snapshot_digest}
        for number, (run_id, _, known) in enumerate(self.versions.get(model, []), start=1):
            if known["dagster.run_id"] == dagster_run_id and known["onnx.digest"] == digest:
                return RegisteredVersion(model, number, run_id)
        run_id = self.run(
            model,
            "candidate",
            dagster_run_id=dagster_run_id,
            tags={**(tags or {}), **own},
            params=params,
            metrics=metrics,
            artifacts={**(artifacts or {}), "model/model.onnx": onnx},
            dataset=Dataset(f"{model} snapshot", snapshot_digest, snapshot_uri),
        )
        self.versions.setdefault(model, []).append((run_id, onnx, {**(tags or {}), **own}))
        return RegisteredVersion(model, len(self.versions[model]), run_id)

    def onnx(self, model: str, version: int) -> bytes:
        return self._at(model, version)[1]

    def set_alias(self, model: str, alias: str, version: int) -> None:
        self._at(model, version)
        self.aliases[model, alias] = version

    def tag(self, model: str, version: int, key: str, value: str) -> None:
        self._at(model, version)[2][key] = value

    def version_of(self, model: str, alias: str) -> RegisteredVersion | None:
        self._reach()
        version = self.aliases.get((model, alias))
        return None if version is None else RegisteredVersion(model, version, self._at(model, version)[0])

    def tags(self, model: str, version: int) -> dict[str, str]:
        return dict(self._at(model, version)[2])

    def page(self, run_id: str) -> str:
        return f"http://lineage.test/#/runs/{run_id}"

    def file_page(self, model: str, run_id: str, path: str) -> str:
        return f"http://lineage.test/#/experiments/{model}/runs/{run_id}/artifacts/{path}"

    def model_page(self, model: str, version: int) -> str:
        return f"http://lineage.test/#/models/{model}/versions/{version}"

    def _at(self, model: str, version: int) -> tuple[str, bytes, dict[str, str]]:
        self._reach()
        found = self.versions.get(model, [])
        if not 1 <= version <= len(found):
            raise LineageError(f"{model} version {version}: no such version")
        return found[version - 1]

    def _reach(self) -> None:
        if self.down:
            raise LineageError("MLflow is down")
