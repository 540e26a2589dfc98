"""Columns that do not fit, hold nothing, hold infinity or what was never seen."""

import numpy as np
import pandas as pd

from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings
from tests.drift_cases import ERROR, FAIL, INCONCLUSIVE, PASS, Draw, decide, found


def test_columns_that_do_not_fit_are_an_error_and_nothing_is_guessed(reference: Reference, draw: Draw) -> None:
    for broken, words in (
        (draw(0, 7).drop(columns="temp"), "missing: temp"),
        (draw(0, 7).assign(temp="warm"), "temp should be float but holds str ('warm')"),
        (draw(0, 7).assign(temp="1.5"), "temp should be float but holds numbers as strings"),
        (draw(0, 7).assign(carrier=7), "carrier should be string but holds int64"),
    ):
        decision = decide(reference, broken)
        assert found(decision, "schema").verdict is ERROR
        assert words in found(decision, "schema").why
        assert found(decision, "inputs").verdict is INCONCLUSIVE


def test_an_all_null_feature_is_an_error_and_moves_the_inputs(reference: Reference, draw: Draw) -> None:
    for null in (np.nan, None):
        decision = decide(reference, draw(0, 7).assign(temp=null))
        assert found(decision, "schema").verdict is ERROR
        assert "temp" in found(decision, "schema").why
        assert found(decision, "inputs").verdict is FAIL


def test_infinite_and_constant_features_are_judged_without_a_warning(reference: Reference, draw: Draw) -> None:
    with np.errstate(all="raise"):
        infinite = decide(reference, draw(0, 7).assign(temp=np.inf))
        constant = decide(reference, draw(0, 7).assign(temp=0.0))
    assert found(infinite, "inputs").verdict is found(constant, "inputs").verdict is FAIL


def test_a_new_category_fails_the_schema_and_an_extra_column_is_only_said(reference: Reference, draw: Draw) -> None:
    rows = draw(0, 7)
    rows.loc[rows.index % 10 == 0, "carrier"] = "ZZ"
    schema = found(decide(reference, rows.assign(extra=1)), "schema")
    assert schema.verdict is FAIL
    assert "carrier .1 (limit .05)" in schema.why
    schema = found(decide(reference, draw(0, 7).assign(extra=1)), "schema")
    assert schema.verdict is PASS
    assert "not used by the model: extra" in schema.why


def test_fields_of_names_may_meet_new_names(draw: Draw) -> None:
    rng = np.random.default_rng(0)

    def named(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(tail=[f"N{n}" for n in rng.zipf(1.3, len(rows)) % 100_000])

    features = {"temp": "float", "tail": "string"}
    reference = build_reference(named(draw(-30, 30)), features, {"temp": 1.0}, DriftSettings(), 0.24)
    schema = found(decide(reference, named(draw(0, 7))), "schema")
    assert schema.statistic is not None
    assert schema.statistic > 0.05
    assert schema.verdict is PASS
