"""Made-up customers: a table such as `trimtab new` is given."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd

START = datetime(2024, 3, 4, 7, 30, tzinfo=UTC)


def customers(rows: int = 3000) -> pd.DataFrame:
    """Who leaves depends on the plan and the fee; one column names the customer, one is empty, one has gaps."""
    rng = np.random.default_rng(3)
    plan = rng.choice(["basic", "family", "pro's"], rows)
    fee = rng.normal(30, 8, rows).round(2)
    chance = 1 / (1 + np.exp(-(0.15 * (fee - 32) + 2.0 * (plan == "basic") - 1)))
    return pd.DataFrame(
        {
            "customer": [f"c{i}" for i in range(rows)],
            "signed up": [f"{START + timedelta(minutes=30 * i):%Y-%m-%dT%H:%M:%SZ}" for i in range(rows)],
            "plan": plan,
            "Monthly fee": fee,
            "monthly_fee": rng.integers(1, 9, rows),
            "calls": np.where(rng.random(rows) < 0.1, np.nan, rng.integers(0, 5, rows)),
            "paperless": rng.random(rows) < 0.5,
            "note": np.nan,
            "churned": np.where(rng.random(rows) < chance, "Yes", "No"),
        }
    )


def spenders(rows: int = 3000) -> pd.DataFrame:
    """What the same customers spend in a month, in cents: a number far from 0 and 1."""
    found = customers(rows)
    rng = np.random.default_rng(4)
    calls = found["calls"].fillna(0)
    spent = 2500 + 90 * found["Monthly fee"] + 700 * calls + 1500 * (found["plan"] == "family")
    return found.drop(columns="churned").assign(spent=(spent + rng.normal(0, 400, rows)).round(2))
