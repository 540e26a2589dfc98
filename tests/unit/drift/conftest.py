"""A small service whose requests, answers and labels are drawn from known distributions."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings

START = datetime(2030, 1, 1, tzinfo=UTC)
FEATURES = {"temp": "float", "hour": "int", "carrier": "string"}
WEIGHTS = {"temp": 3.0, "hour": 1.0, "carrier": 1.0}

Draw = Callable[..., pd.DataFrame]


@pytest.fixture(scope="session")
def draw() -> Draw:
    """draw(first_day, days, rows=200, shift=0, seed=0, miss=.25): rows a day, with answers and labels a day later."""

    def rows_of(
        first_day: int, days: int, rows: int = 200, shift: float = 0.0, seed: int = 0, miss: float = 0.25
    ) -> pd.DataFrame:
        rng = np.random.default_rng([seed, first_day + 1000])
        size = days * rows
        at = [START + timedelta(days=first_day + i // rows, seconds=86400 * (i % rows) / rows) for i in range(size)]
        answer = rng.uniform(0, 1, size).round(6)
        # The label agrees with the answer but for a share of coin flips: `miss` sets the loss alone.
        truth = (answer > 0.5) ^ (rng.uniform(0, 1, size) < miss)
        return pd.DataFrame(
            {
                "event_time": at,
                "temp": rng.normal(shift, 1, size).astype(np.float32),
                "hour": rng.integers(0, 24, size),
                "carrier": rng.choice(["AA", "UA", "DL"], size, p=[0.5, 0.3, 0.2]),
                "answer": answer,
                "version": "1",
                "label": truth.astype(float),
                "known_at": pd.Series(at) + timedelta(hours=20),
                "key": [f"{first_day}-{i}" for i in range(size)],
            }
        )

    return rows_of


@pytest.fixture(scope="session")
def reference(draw: Draw) -> Reference:
    """Thirty days before START, 200 rows a day; its loss bound leaves room above the mean of about .21."""
    return build_reference(draw(-30, 30, seed=9), FEATURES, WEIGHTS, DriftSettings(), loss_bound=0.24)
