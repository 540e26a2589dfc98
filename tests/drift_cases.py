"""A drift decision asked for in one line, and what tests read off it."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from assets.decision import Decision, Evidence
from assets.drift.judge import judge
from assets.drift.reference import Reference
from assets.drift.sample import Sample
from assets.drift.settings import DriftSettings
from assets.verdict import Verdict

Draw = Callable[..., pd.DataFrame]
START = datetime(2030, 1, 1, tzinfo=UTC)
PASS, INCONCLUSIVE, ERROR, FAIL = Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.FAIL


def decide(
    reference: Reference,
    rows: pd.DataFrame,
    first: float = 0,
    last: float = 7,
    previous: Mapping[str, Any] | None = None,
    labelled: pd.DataFrame | None = None,
    **changed: Any,
) -> Decision:
    """Judge days [first, last) of `rows`; its labels too unless others are given."""
    start, end = START + timedelta(days=first), START + timedelta(days=last)
    labels = rows if labelled is None else labelled
    return judge(
        "m", reference, rows, labels, previous, DriftSettings(**changed), start, end, end, {"reference": "r"}
    )  # fmt: skip


def found(decision: Decision, name: str) -> Evidence:
    return next(item for item in decision.evidence if item.name == name)


def verdicts(decision: Decision) -> dict[str, Verdict]:
    return {item.name: item.verdict for item in decision.evidence if item.decides}


def read(decision: Decision) -> dict[str, Any]:
    """Details as the next window gets them: from JSON."""
    details: dict[str, Any] = json.loads(decision.to_json())["details"]
    return details


def drawn(days: int, correlation: float, seed: int, rows: int = 2000) -> Sample:
    """Eight numbers with levels of their own each day, the first two correlated; two columns of categories."""
    rng = np.random.default_rng(seed)
    block = np.sort(rng.integers(0, days, rows)).astype(np.int32)
    z = rng.normal(size=(rows, 8))
    z[:, 1] = correlation * z[:, 0] + (1 - correlation**2) ** 0.5 * z[:, 1]
    z += 0.2 * rng.normal(size=(days, 8))[block]
    columns = {f"f{place}": z[:, place].astype(np.float32) for place in range(8)}
    texts = {"c": rng.integers(0, 5, rows).astype(np.int32), "d": rng.integers(-1, 2, rows).astype(np.int32)}
    return Sample(columns | texts, block)
