"""What MLflow is told, in its own words: tags and parameters of bounded length, datasets, metrics with their owner."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric

# MLflow's own columns: a dataset's digest holds 36 characters, a parameter 6000, a tag 8000.
DATASET_DIGEST_LENGTH = 32
MAX_PARAM, MAX_TAG = 6000, 8000


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a run read: a snapshot by its digest."""

    name: str
    digest: str
    uri: str
    rows: int | None = None
    context: str = "training"


def short(values: Mapping[str, Any], limit: int) -> dict[str, str]:
    """Values as text that fits MLflow's columns."""
    return {key: str(value)[:limit] for key, value in values.items()}


def dataset_input(dataset: Dataset) -> "DatasetInput":
    """A dataset as the input of a run."""
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


def metrics_at(
    values: Mapping[str, float], at_ms: int, step: int = 0, model_id: str | None = None, dataset: Dataset | None = None
) -> "list[Metric]":
    """Those that are finite: MLflow stores an infinity as the largest float, which draws as one on its page.

    With model_id and dataset each is told to be of that model on that dataset.
    """
    from mlflow.entities import Metric

    owner = {
        "model_id": model_id,
        "dataset_name": dataset.name if dataset and model_id else None,
        "dataset_digest": dataset.digest[:DATASET_DIGEST_LENGTH] if dataset and model_id else None,
    }
    return [Metric(k, float(v), at_ms, step, **owner) for k, v in values.items() if math.isfinite(v)]
