"""The Evidently report: real Evidently, whatever the columns hold, below 5 MB, telling nobody."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from assets.drift.page import MOST_BYTES, MOST_ROWS, banner, drawn_from, page, sampled
from assets.drift.reference import Reference, build_reference
from assets.drift.settings import DriftSettings

FEATURES = {"temp": "float", "hour": "int", "carrier": "string", "gone": "float", "still": "float", "word": "string"}
RECORD: dict[str, Any] = {
    **{"model": "churn", "as_of": "2030-02-08T00:00:00+00:00", "verdict": "FAIL", "why": "1 of 7 days <above>"},
    "details": {"features": [{"feature": "temp", "named": True}, {"feature": "hour", "named": False}]},
}


def rows(count: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    temp = rng.normal(shift, 1, count)
    temp[: count // 10] = np.nan
    temp[-3:] = [np.inf, -np.inf, np.inf][:count]
    carrier = rng.choice(["AA", "UA", "DL"], count, p=[0.5, 0.3, 0.2]).astype(object)
    carrier[: count // 5] = None
    return pd.DataFrame(
        {
            "event_time": pd.date_range(datetime(2030, 1, 1, tzinfo=UTC), periods=count, freq="min"),
            **{"temp": temp, "hour": rng.integers(0, 24, count), "carrier": carrier},
            **{"gone": np.nan, "still": 1.0, "word": None},
        }
    )


@pytest.fixture(scope="module")
def reference() -> Reference:
    return build_reference(rows(8_000), FEATURES, dict.fromkeys(FEATURES, 1.0), DriftSettings(), loss_bound=0.2)


def test_numbers_words_nulls_and_constants_make_a_page_for_any_browser(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing answers there: a page needs no network
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    html = page(reference.to_bytes(), rows(MOST_ROWS + 1_000, shift=2), RECORD).decode()
    assert len(html.encode()) < MOST_BYTES
    assert "<b>churn, as of 2030-02-08T00:00: FAIL: 1 of 7 days &lt;above&gt;</b>" in html
    assert all(name in html for name in ("temp", "hour", "carrier", "still"))
    assert not any(tag in html for tag in ("<script src=", "<link href=", "<link rel="))


def test_a_window_without_a_request_has_no_page(reference: Reference) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        page(reference.to_bytes(), rows(0), RECORD)


def test_the_reference_is_drawn_with_its_own_distribution(reference: Reference) -> None:
    drawn = drawn_from(reference)
    assert len(drawn) == MOST_ROWS
    for name in ("temp", "hour", "still"):
        assert reference.marginals[name].distance(drawn[name].to_numpy(float)) < 2 / MOST_ROWS
    assert reference.marginals["carrier"].distance(drawn["carrier"].to_numpy()) < 2 / MOST_ROWS
    assert drawn["gone"].isna().all()
    assert drawn["word"].isna().all()


def test_the_sample_is_even_and_the_same_each_time() -> None:
    frame = pd.DataFrame({"x": np.arange(3 * MOST_ROWS)})
    once = sampled(frame)["x"].to_numpy()
    assert len(once) == MOST_ROWS
    assert (once == sampled(frame)["x"].to_numpy()).all()
    assert set(np.diff(once)) <= {3, 4}
    assert sampled(frame.iloc[:7]).equals(frame.iloc[:7])


def test_the_banner_says_whose_verdict_counts() -> None:
    assert "Named features: temp." in banner(RECORD)
    assert "trimtab's record alone" in banner(RECORD)
