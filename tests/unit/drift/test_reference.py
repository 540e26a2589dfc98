"""A reference survives its bytes, refuses what it can't be, and its history is leave-one-block-out."""

import io
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from assets.drift.aggregate import aggregate, columns, expected, indices
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings

FEATURES = {"temp": "float", "hour": "int", "carrier": "string"}
WEIGHTS = {"temp": 3.0, "hour": 1.0, "carrier": 1.0}


def frame(days: int = 6, rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    size = days * rows
    temp = rng.normal(size=size)
    temp[::7] = np.nan
    return pd.DataFrame(
        {
            "event_time": pd.Timestamp("2030-01-01", tz="UTC") + pd.to_timedelta(np.arange(size) * 1440 / rows, "min"),
            "temp": temp,
            "hour": rng.integers(0, 24, size),
            "carrier": rng.choice(np.array(["AA", "Ü|\x00", None], dtype=object), size),
        }
    )


def test_bytes_hold_all_and_the_digest_names_the_content() -> None:
    built = build_reference(frame(), FEATURES, WEIGHTS, DriftSettings(), 0.2)
    read = Reference.from_bytes(built.to_bytes())
    assert read.digest == built.digest
    assert (read.history, read.weights, read.rows, read.start, read.end) == (
        built.history, built.weights, built.rows, built.start, built.end
    )  # fmt: skip
    batch = columns(frame(2, 50), FEATURES)
    assert aggregate(read.marginals, read.weights, batch) == aggregate(built.marginals, built.weights, batch)
    assert read.marginals["carrier"].null_share == built.marginals["carrier"].null_share > 0
    assert build_reference(frame(), FEATURES, WEIGHTS, DriftSettings(), 0.21).digest != built.digest


def test_history_is_each_block_against_all_others() -> None:
    data, settings = frame(), DriftSettings()
    built = build_reference(data, FEATURES, WEIGHTS, settings, 0.2)
    index = indices(data["event_time"], built.start, settings.block_length)
    for day, score in enumerate(built.history):
        others = build_reference(data[index != day], FEATURES, WEIGHTS, settings, 0.2)
        batch = columns(data[index == day], FEATURES)
        direct = aggregate(others.marginals, others.weights, batch)
        # Sampling noise is taken from the whole's shares: it differs in the third digit, the distance does not.
        assert score + expected(built.marginals, built.weights, 60, 300) == pytest.approx(direct, abs=1e-12)
    assert len(built.history) == 6


def test_history_is_capped_and_small_blocks_are_left_out() -> None:
    assert len(build_reference(frame(80, 50), FEATURES, WEIGHTS, DriftSettings(), 0.2).history) == 60
    assert build_reference(frame(6, 49), FEATURES, WEIGHTS, DriftSettings(), 0.2).history == ()
    assert build_reference(frame(1, 60), FEATURES, WEIGHTS, DriftSettings(), 0.2).history == ()


def test_the_order_of_rows_changes_nothing() -> None:
    shuffled = frame().sample(frac=1, random_state=1)
    built = [build_reference(each, FEATURES, WEIGHTS, DriftSettings(), 0.2) for each in (frame(), shuffled)]
    assert built[0].digest == built[1].digest


@pytest.mark.parametrize(
    ("importance", "business", "expected"),
    [
        (WEIGHTS, {}, {"temp": 0.6, "hour": 0.2, "carrier": 0.2}),
        (WEIGHTS, {"hour": 3.0}, {"temp": 3 / 7, "hour": 3 / 7, "carrier": 1 / 7}),
        (WEIGHTS, {"temp": 0.0}, {"temp": 0.0, "hour": 0.5, "carrier": 0.5}),
        ({}, {"temp": 2.0}, {"temp": 0.5, "hour": 0.25, "carrier": 0.25}),
        ({"temp": 1.0}, {"hour": 9.0}, {"temp": 1.0, "hour": 0.0, "carrier": 0.0}),  # a factor, no weight of its own
    ],
)
def test_weights_are_importance_times_what_the_business_asks_for(
    importance: dict[str, float], business: dict[str, float], expected: dict[str, float]
) -> None:
    settings = DriftSettings(business_weights=business)
    built = build_reference(frame(), FEATURES, importance, settings, 0.2)
    assert built.weights == pytest.approx(expected)
    answered = build_reference(frame().assign(answer=0.5), FEATURES, importance, settings, 0.2)
    assert answered.weights == pytest.approx({**{n: 0.9 * w for n, w in expected.items()}, "answer": 0.1})
    read = Reference.from_bytes(built.to_bytes())
    assert (read.weights, read.settings.business_weights) == (built.weights, business)


def test_impossible_references_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="lacks hour"):
        build_reference(frame().drop(columns="hour"), FEATURES, WEIGHTS, DriftSettings(), 0.2)
    with pytest.raises(ValueError, match="no row"):
        build_reference(frame().iloc[:0], FEATURES, WEIGHTS, DriftSettings(), 0.2)
    with pytest.raises(ValueError, match="at least one feature"):
        build_reference(frame(), {}, {}, DriftSettings(), 0.2)
    for bound in (0.0, 0.995, float("nan")):
        with pytest.raises(ValueError, match="loss_bound"):
            build_reference(frame(), FEATURES, WEIGHTS, DriftSettings(), bound)


def test_a_pickle_is_never_loaded() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array([{"a": timedelta(1)}], dtype=object))
    with pytest.raises(ValueError, match="not a drift reference"):
        Reference.from_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="build it again"):
        Reference.from_bytes(b"half a file")
