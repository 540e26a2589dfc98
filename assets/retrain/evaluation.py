"""A candidate before it has a version: the rows it is fitted and judged on, and what the gates say."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from assets.decision import Decision, Evidence
from assets.recipe import Recipe
from assets.retrain.full_fit import FullFit, Job
from assets.retrain.gates import judge
from assets.retrain.picture import figures
from assets.retrain.schema import SchemaChange
from assets.retrain.settings import TrainingSettings
from assets.retrain.window import Window
from assets.scoring import score
from assets.snapshot.maturity import matured
from assets.task import Task
from assets.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Rival:
    """The champion on the hold-out: no version before the first release, no scores where it cannot answer the rows.

    seen_until: event time of the last row that it was fitted on.
    """

    version: int | None = None
    change: SchemaChange | None = None
    scores: np.ndarray | None = None
    seen_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A candidate with its decision. scores: of the fit that has not seen the hold-out, on it."""

    job: Job
    fitted: FullFit
    holdout: pd.DataFrame
    scores: np.ndarray
    decision: Decision
    pictures: dict[str, bytes]
    training: str | None
    window: Window

    def seen(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a snapshot that the registered fit has seen."""
        return _recent(matured(frame, self.job.target, self.decision.as_of), self.window, self.decision.as_of)

    @property
    def labels(self) -> np.ndarray:
        return self.holdout[self.job.target].to_numpy(dtype=np.float64)


def too_little(name: str, earlier: int, holdout: int, as_of: datetime) -> Decision:
    """The decision where a fit or its judgement would have no rows."""
    why = f"{earlier} labelled rows to fit on and {holdout} later ones to judge on: both are needed"
    return Decision(name, "retrain", as_of, why, (Evidence("floor", Verdict.INCONCLUSIVE, why),))


def job_of(
    recipe: Recipe,
    task: Task,
    frame: pd.DataFrame,
    features: Mapping[str, str],
    label: str,
    earlier: pd.DataFrame,
    holdout: pd.DataFrame,
    window: Window,
    as_of: datetime,
    seed: int,
) -> Job:
    """The full fit on the matured rows of `frame`; earlier, holdout: its split in time, each as long as it may be."""
    known = matured(frame, label, as_of)
    return Job(
        recipe=recipe,
        frame=known[[*features, label]],
        earlier=pd.Series(known.index.isin(earlier.index), index=known.index),
        holdout=pd.Series(known.index.isin(holdout.index), index=known.index),
        recent=pd.Series(known.index.isin(_recent(known, window, as_of).index), index=known.index),
        features=features,
        target=label,
        seed=seed,
        task=task,
    )


def evaluated(
    name: str,
    job: Job,
    fitted: FullFit,
    holdout: pd.DataFrame,
    rival: Rival,
    settings: TrainingSettings,
    window: Window,
    snapshot: str,
    as_of: datetime,
    training: str | None,
) -> Evaluated:
    """The gates' word on a fit. snapshot: digest of its rows; training: the run of MLflow it was told to, if any."""
    scores = score(fitted.judged, holdout, job.features)
    inputs = {"snapshot": snapshot, "recipe": job.recipe.digest, **window.inputs()}
    if rival.version is not None:
        inputs["champion"] = str(rival.version)
    judged = judge(
        name,
        holdout,
        job.target,
        scores,
        rival.scores,
        settings,
        fitted.parity,
        as_of,
        inputs,
        rival.change,
        job.task,
        rival.seen_until,
    )
    details: dict[str, Any] = {**judged.details, "lookback_days": window.days}
    slices = judged.details.get("slices", ())
    pictures = figures(holdout[job.target].to_numpy(), scores, rival.scores, slices, job.task)
    return Evaluated(job, fitted, holdout, scores, replace(judged, details=details), pictures, training, window)


def _recent(known: pd.DataFrame, window: Window, as_of: datetime) -> pd.DataFrame:
    return known[known["event_time"] >= pd.Timestamp(as_of) - window.length]
