"""A model of made-up flights, fitted once by the real recipe."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.recipe import Recipe, load_recipe
from assets.retrain.export import to_onnx

RECIPE = Path(__file__).parents[3] / "pipelines/models/flight_delay/recipe.py"
FEATURES = {
    "carrier": "string", "origin": "string", "dest": "string", "hour": "int", "distance": "float", "temp": "float"
}  # fmt: skip
START = datetime(2013, 1, 1, tzinfo=UTC)


def made_up(rows: int, seed: int) -> pd.DataFrame:
    """Flights over 28 days whose lateness grows with the hour and differs by carrier; labels 6 hours later."""
    rng = np.random.default_rng(seed)
    hour = rng.integers(5, 24, rows)
    carrier = rng.choice(["AA", "B6", "UA"], rows)
    temp = np.where(rng.random(rows) < 0.05, np.nan, rng.normal(40, 15, rows).round(2))
    chance = 1 / (1 + np.exp(-(0.2 * (hour - 18) + (carrier == "B6") - 0.02 * np.nan_to_num(temp, nan=40) + 0.5)))
    event_time = pd.to_datetime(START) + pd.to_timedelta(np.sort(rng.random(rows)) * 28, unit="D")
    return pd.DataFrame(
        {
            "event_time": event_time.astype("datetime64[us, UTC]"),
            "carrier": carrier,
            "origin": rng.choice(["EWR", "JFK", "LGA"], rows),
            "dest": rng.choice(["ATL", "BOS", "LAX", "ORD"], rows),
            "hour": hour,
            "distance": rng.integers(200, 2500, rows).astype(float),
            "temp": temp,
            "late": (rng.random(rows) < chance).astype(float),
            "label_known_at": (event_time + timedelta(hours=6)).astype("datetime64[us, UTC]"),
        }
    )


@dataclass(frozen=True)
class Fitted:
    """An estimator, its ONNX and the rows it was fitted on."""

    estimator: Any
    onnx: bytes
    frame: pd.DataFrame


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return load_recipe(RECIPE)


@pytest.fixture(scope="session")
def fitted(recipe: Recipe) -> Fitted:
    frame = made_up(6000, seed=1)
    estimator = recipe.fit(frame[[*FEATURES, "late"]], "late", 7)
    return Fitted(estimator, to_onnx(estimator, FEATURES), frame)
