"""Can the window be judged at all? Its columns against the reference's, its age, its gaps."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd

from assets.decision import Evidence
from assets.drift.aggregate import Block, utc
from assets.drift.categorical import Categorical
from assets.drift.naming import Feature, plural, short
from assets.drift.reference import Reference
from assets.drift.settings import DriftSettings
from assets.verdict import Verdict

# Columns that the inference log keeps beside the features.
LOG_COLUMNS = frozenset(
    {"request_id", "event_time", "seen_at", "key", "version", "answer", "row", "model", "label", "known_at", "pool"}
)


def wrong_columns(window: pd.DataFrame, features: Mapping[str, str]) -> str:
    """What makes the features unreadable, as a sentence; empty if nothing does."""
    missing = [name for name in features if name not in window]
    faults = [f"missing: {', '.join(missing)}"] if missing else []
    for name, type_ in features.items():
        if name in window and (found := _misfit(window[name], type_)):
            faults.append(f"{name} should be {type_} but holds {found}")
    return "; ".join(faults)


def _misfit(column: "pd.Series[Any]", type_: str) -> str:
    present = column.dropna()
    if present.empty:
        return ""
    numeric = pd.api.types.is_numeric_dtype(column.dtype)  # bool counts as a number
    if type_ == "string":
        if numeric:
            return str(column.dtype)
        strange = present[[not isinstance(value, str | bytes) for value in present]]
        return "" if strange.empty else f"{type(strange.iloc[0]).__name__} ({str(strange.iloc[0])[:40]!r})"
    if numeric:
        return ""
    strange = present[pd.to_numeric(present, errors="coerce").isna().to_numpy()]
    if not strange.empty:
        return f"{type(strange.iloc[0]).__name__} ({str(strange.iloc[0])[:40]!r})"
    return "numbers as strings" if isinstance(present.iloc[0], str | bytes) else ""


def schema(
    window: pd.DataFrame, faults: str, reference: Reference, features: Sequence[Feature], settings: DriftSettings
) -> Evidence:
    """Columns missing or of the wrong type (`faults`), without any value, with categories the champion never saw."""
    if faults:
        return Evidence("schema", Verdict.ERROR, f"columns do not fit the reference: {faults}; mend the source")
    if len(window) < settings.min_rows:
        why = f"{plural(len(window), 'request')} of the {settings.min_rows} needed to judge the columns"
        return Evidence("schema", Verdict.INCONCLUSIVE, why)
    empty = [f.feature for f in features if f.null_share == 1 and reference.marginals[f.feature].null_share < 1]
    if empty:
        why = f"not one value in {', '.join(empty)}, which the reference has; mend the source"
        return Evidence("schema", Verdict.ERROR, why, 1.0)
    return _categories(window, reference, features, settings)


def _categories(
    window: pd.DataFrame, reference: Reference, features: Sequence[Feature], settings: DriftSettings
) -> Evidence:
    limits = {name: settings.unseen_mass + _unseen_by_chance(reference, name) for name in reference.features}
    features = [item for item in features if item.feature in limits]  # the champion's answer is no column of the source
    worst = max(features, key=lambda f: f.unseen - limits[f.feature])
    over = [f for f in features if f.unseen > limits[f.feature]]
    if over:
        listed = ", ".join(f"{f.feature} {short(f.unseen)} (limit {short(limits[f.feature])})" for f in over)
        why = f"share of requests in categories that the champion never saw: {listed}"
        return Evidence("schema", Verdict.FAIL, why, worst.unseen, limits[worst.feature])
    extra = [str(name) for name in window.columns if name not in reference.features and name not in LOG_COLUMNS]
    fit = f"all {plural(len(reference.features), 'column')} fit the reference"
    why = f"{fit}; share of new categories at most {short(worst.unseen)}"
    why += f"; not used by the model: {', '.join(extra)}" if extra else ""
    return Evidence("schema", Verdict.PASS, why, worst.unseen, limits[worst.feature])


def _unseen_by_chance(reference: Reference, name: str) -> float:
    """Fields of names (tail numbers, users) meet new ones for ever: that is no fault."""
    marginal = reference.marginals[name]
    return marginal.singletons if isinstance(marginal, Categorical) else 0.0


def freshness(
    times: "pd.Series[pd.Timestamp]", blocks: Sequence[Block], settings: DriftSettings, start: datetime, end: datetime
) -> Evidence:
    """Age of the newest request at the window's end, in hours, and blocks without any."""
    limit = settings.freshness_hours
    if times.empty:
        why = f"NO DATA: no request between {utc(start):%Y-%m-%d %H:%M} and {utc(end):%Y-%m-%d %H:%M} UTC; "
        return Evidence("freshness", Verdict.ERROR, why + "is the observer up, does traffic flow?", None, limit)
    newest = times.max().to_pydatetime()
    age = (utc(end) - newest).total_seconds() / 3600
    if age > limit:
        why = f"the newest request is of {newest:%Y-%m-%d %H:%M} UTC, {age:.0f} h before the window's end"
        return Evidence(
            "freshness", Verdict.ERROR, f"{why} (limit {limit:g} h): does the log still arrive?", age, limit
        )
    quiet = [block for block in blocks if block.rows == 0]
    if len(quiet) > settings.max_quiet_blocks:
        first = f"{quiet[0].start:%Y-%m-%d %H:%M}"
        why = f"{len(quiet)} of {plural(len(blocks), settings.word)} without a request, the first from {first} UTC"
        return Evidence("freshness", Verdict.INCONCLUSIVE, f"{why}: a gap in the log proves nothing", age, limit)
    why = f"the newest request is {age:.1f} h old at the window's end, and no {settings.word} is silent"
    return Evidence("freshness", Verdict.PASS, why, age, limit)
