"""The demo's result: one row a week, read from the decision records and the inference log, never from memory."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from assets.drift.labels import auc
from pipelines.demo.replay import Week
from resources.store import Store

GATES = ("drift", "shadow", "retrain", "profile", "canary")


@dataclass(frozen=True, slots=True)
class WeekResult:
    """What happened in a week. AUC and Brier of the never-retrained model beside the managed one."""

    start: str
    verdicts: dict[str, str]
    reason: str
    champion: int
    auc_static: float | None
    auc_managed: float | None
    brier_static: float
    brier_managed: float
    served: int
    failed: int


def decisions(store: Store, model: str, as_of: datetime) -> dict[str, dict[str, Any]]:
    """Decision records taken at an instant, by gate, in walking order."""
    found = {}
    for gate in GATES:
        keys = store.keys(f"decisions/{model}/{gate}/{as_of:%Y%m%dT%H%MZ}/")
        if keys:
            found[gate] = json.loads(store.get(keys[-1]))
    return found


def verdict_of(store: Store, model: str, week: Week) -> tuple[str, str] | None:
    """Verdict and reason of a week's drift check."""
    record = decisions(store, model, week.end).get("drift")
    return (record["verdict"], record["why"]) if record else None


def week_result(
    week: Week,
    records: Mapping[str, Mapping[str, Any]],
    answers: pd.DataFrame,
    access: pd.DataFrame,
    flights: pd.DataFrame,
) -> WeekResult:
    """answers, access: the week's log. flights: entity, label, static (the first model's probability)."""
    joined = answers.merge(flights, left_on="key", right_on="entity", how="inner", suffixes=("", "_flight"))
    labels = joined["label"].to_numpy(dtype=float)
    managed, static = joined["answer"].to_numpy(), joined["static"].to_numpy()
    last = list(records.values())[-1:]
    versions = answers.sort_values("event_time")["version"]
    return WeekResult(
        start=week.start.isoformat(),
        verdicts={gate: record["verdict"] for gate, record in records.items()},
        reason=str(last[0]["why"]) if last else "the week was not over: not checked",
        champion=int(versions.iloc[-1]) if len(versions) else 0,
        auc_static=_rounded(auc(labels, static)),
        auc_managed=_rounded(auc(labels, managed)),
        brier_static=round(float(np.mean((static - labels) ** 2)), 5),
        brier_managed=round(float(np.mean((managed - labels) ** 2)), 5),
        served=int(access["ok"].sum()),
        failed=int((~access["ok"]).sum()),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def refusals(store: Store, model: str, weeks: Sequence[Week]) -> list[dict[str, str]]:
    """Every recorded 'no' after an alarm: gate, instant, reason."""
    found = []
    for week in weeks:
        for gate, record in decisions(store, model, week.end).items():
            if gate != "drift" and record["verdict"] != "PASS":
                found.append(
                    {"as_of": record["as_of"], "gate": gate, "verdict": record["verdict"], "why": record["why"]}
                )
    return found


def promotions(store: Store, model: str, weeks: Sequence[Week]) -> list[dict[str, Any]]:
    """Every promoted challenger: version, instant of the decision, what it replaced."""
    found = []
    for week in weeks:
        record = decisions(store, model, week.end).get("canary")
        if record and record["verdict"] == "PASS":
            found.append(
                {
                    "as_of": record["as_of"],
                    "version": record["details"].get("rollout", {}).get("version"),
                    "why": record["why"],
                }
            )
    return found


def static_scores(onnx: bytes, flights: pd.DataFrame, features: Mapping[str, str]) -> pd.DataFrame:
    """What the first model would have answered: entity, label, static."""
    from assets.scoring import score

    return flights[["entity", "label"]].assign(static=score(onnx, flights, features))
