"""The full fit: once on the earlier rows, to be judged on later ones, and once on all, to be registered."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from assets.recipe import Recipe
from assets.reporting import Report, silent
from assets.retrain.export import framework, parity, to_onnx
from assets.task import Task


@dataclass(frozen=True, slots=True)
class Job:
    """What a full fit needs. frame: matured rows with the features, the target and nothing else.

    earlier, holdout: (n,) of bool: the rows that are fitted on for the judgement, and those that are judged on.
    recent: (n,) of bool: those that the registered fit sees, as long a window as the judged one's.
    """

    recipe: Recipe
    frame: pd.DataFrame
    earlier: pd.Series
    holdout: pd.Series
    recent: pd.Series
    features: Mapping[str, str]
    target: str
    seed: int
    task: Task = "binary"


@dataclass(frozen=True, slots=True)
class FullFit:
    """judged: ONNX of the fit without the hold-out; onnx: of the one with it, and how far that is from its ONNX."""

    judged: bytes
    onnx: bytes
    parity: float
    framework: str


def full_fit(job: Job, report: Report = silent) -> FullFit:
    """Both fits. What is registered has seen the hold-out too: its gates were passed by the same recipe without it.

    Only the fit that is registered reports: two would be drawn over each other.
    """
    earlier = job.recipe.fit(job.frame[job.earlier], job.target, job.seed)
    judged = to_onnx(earlier, job.features, job.task)
    estimator = job.recipe.fit(job.frame[job.recent], job.target, job.seed, report)
    onnx = to_onnx(estimator, job.features, job.task)
    difference = parity(estimator, onnx, job.frame[job.holdout], job.features, job.task)
    return FullFit(judged, onnx, difference, framework(estimator))
