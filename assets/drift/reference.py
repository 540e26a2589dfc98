"""What the champion was trained on, in the form that windows are compared with."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from assets.arrays import pack, unpack
from assets.drift.aggregate import (
    ANSWER,
    Columns,
    Marginal,
    aggregate,
    columns,
    expected,
    groups,
    indices,
    instants,
    normalised,
)
from assets.drift.categorical import Categorical
from assets.drift.ks import Numeric
from assets.drift.sample import Sample, sampled
from assets.drift.settings import DriftSettings

# Distinct values of a numeric feature that are kept; below it the reference is exact, above it D moves by 1e-5.
MOST_VALUES = 100_000
FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Frozen distributions, weights and history of the champion's training rows.

    features: name -> type; marginals: name -> distribution; weights: name -> share, sum 1; history: one number a
    block, oldest first: the block's aggregate against all OTHER blocks, less what sampling gives a block of its size;
    loss_bound: upper bound of the champion's mean loss from a time-ordered hold-out; blocks: blocks that had rows;
    settings: those it was built with, which the live detector goes by; tagged: history of each calendar tag, whose
    blocks `history` leaves out; sample: whole rows, evenly in time, None in references of before there was one;
    loss_scale: the absolute error that counts as a loss of 1 where numbers are answered, None where chances are.
    The champion's answers, where the frame had them, are one more marginal beside the features.
    """

    features: Mapping[str, str]
    marginals: Mapping[str, Marginal]
    weights: Mapping[str, float]
    history: tuple[float, ...]
    loss_bound: float
    rows: int
    blocks: int
    start: datetime
    end: datetime
    settings: DriftSettings
    tagged: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sample: Sample | None = None
    loss_scale: float | None = None

    @property
    def columns(self) -> dict[str, str]:
        """Type of each column that has a marginal: the features, and the champion's answer."""
        return {name: self.features.get(name, "float") for name in self.marginals}

    def without_answers(self) -> "Reference":
        """For a window whose answers the log lacks; the features share the weight."""
        if ANSWER not in self.marginals:
            return self
        marginals = {name: self.marginals[name] for name in self.features}
        return replace(self, marginals=marginals, weights=normalised(self.weights, list(self.features)))

    @property
    def digest(self) -> str:
        """SHA-256 of the content, whatever the compression."""
        meta, arrays = self._parts()
        parts = [meta, *(name.encode() + array.tobytes() for name, array in sorted(arrays.items()))]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def to_bytes(self) -> bytes:
        """A compressed npz of plain arrays: nothing in it is ever executed."""
        meta, arrays = self._parts()
        return pack(meta, arrays)

    @classmethod
    def from_bytes(cls, body: bytes) -> "Reference":
        """The inverse of `to_bytes`. ValueError says what is wrong with the bytes."""
        meta, arrays = unpack(body, "a drift reference", FORMAT, "build it again")
        types = {**meta["features"], **({ANSWER: "float"} if f"counts/{ANSWER}" in arrays else {})}
        marginals = {name: _marginal(name, type_, meta, arrays) for name, type_ in types.items()}
        return cls(
            features=meta["features"],
            marginals=marginals,
            weights=meta["weights"],
            history=tuple(meta["history"]),
            loss_bound=meta["loss_bound"],
            rows=meta["rows"],
            blocks=meta["blocks"],
            start=datetime.fromisoformat(meta["start"]),
            end=datetime.fromisoformat(meta["end"]),
            settings=DriftSettings.model_validate(meta.get("settings", {})),
            tagged={tag: tuple(past) for tag, past in meta.get("tagged", {}).items()},
            sample=_sample(meta["features"], arrays),
            loss_scale=meta.get("loss_scale"),
        )

    def _parts(self) -> tuple[bytes, dict[str, npt.NDArray[Any]]]:
        arrays: dict[str, npt.NDArray[Any]] = {}
        names = {}
        for name, marginal in self.marginals.items():
            arrays[f"counts/{name}"] = marginal.counts
            if isinstance(marginal, Numeric):
                arrays[f"values/{name}"] = marginal.values
            else:
                names[name] = list(marginal.names)
        meta = {
            "format": FORMAT,
            "features": dict(self.features),
            "names": names,
            "weights": dict(self.weights),
            "history": list(self.history),
            "loss_bound": self.loss_bound,
            "rows": self.rows,
            "blocks": self.blocks,
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "settings": self.settings.model_dump(exclude_defaults=True),
            **({"tagged": {tag: list(past) for tag, past in self.tagged.items()}} if self.tagged else {}),
            **({"loss_scale": self.loss_scale} if self.loss_scale is not None else {}),
        }
        if self.sample is not None:
            arrays |= {f"sample/{name}": column for name, column in self.sample.columns.items()}
            arrays["sample"] = self.sample.block
        return json.dumps(meta).encode(), arrays


def _sample(features: Mapping[str, str], arrays: Mapping[str, npt.NDArray[Any]]) -> Sample | None:
    if "sample" not in arrays:
        return None
    return Sample({name: arrays[f"sample/{name}"] for name in features}, arrays["sample"])


def _marginal(name: str, type_: str, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Marginal:
    counts = arrays[f"counts/{name}"]
    if type_ == "string":
        return Categorical(tuple(meta["names"][name]), counts, meta["rows"])
    return Numeric(arrays[f"values/{name}"], counts, meta["rows"])


def build_reference(
    frame: pd.DataFrame,
    features: Mapping[str, str],
    weights: Mapping[str, float],
    settings: DriftSettings,
    loss_bound: float,
    loss_scale: float | None = None,
) -> Reference:
    """The reference of a champion trained on `frame` (features, event_time, and the champion's `answer` if it has one).

    weights: importance of each feature (need not sum to 1; all equal if none is positive), times the settings' business
    weights; loss_bound in (0, 1): upper bound of the mean loss on rows AFTER those it was fitted on; loss_scale: as of
    `Reference`. ValueError names what is missing or impossible.
    """
    _refuse(frame, features, settings, loss_bound)
    times = instants(frame["event_time"])
    frame, times = frame[times.notna().to_numpy()], times[times.notna().to_numpy()]
    types, shares = dict(features), normalised(weights, list(features))
    wanted = {name: share * settings.business_weights.get(name, 1.0) for name, share in shares.items()}
    shares = normalised(wanted, list(features)) if settings.business_weights else shares
    if ANSWER in frame:
        types[ANSWER] = "float"
        shares = {name: share * (1 - settings.answer_weight) for name, share in shares.items()}
        shares[ANSWER] = settings.answer_weight
    batch = columns(frame, types)
    exact: dict[str, Marginal] = {name: _of(types[name], column) for name, column in batch.items()}
    first = times.min().floor(pd.Timedelta(settings.block_length))
    index = indices(times, first, settings.block_length)
    history, tagged = _left_out(batch, index, first.to_pydatetime(), exact, shares, settings)
    marginals = {name: _of(types[name], column, MOST_VALUES) for name, column in batch.items()}
    return Reference(
        features=dict(features),
        marginals=marginals,
        weights=shares,
        history=history,
        loss_bound=float(loss_bound),
        rows=len(frame),
        blocks=len(np.unique(index)),
        start=times.min().floor("us").to_pydatetime(),
        end=times.max().floor("us").to_pydatetime(),
        settings=settings,
        tagged=tagged,
        sample=sampled({name: batch[name] for name in features}, times, index, marginals, settings.joint_rows),
        loss_scale=loss_scale,
    )


def _refuse(frame: pd.DataFrame, features: Mapping[str, str], settings: DriftSettings, loss_bound: float) -> None:
    missing = [name for name in ("event_time", *features) if name not in frame]
    if missing:
        raise ValueError(f"reference frame lacks {', '.join(missing)}: it has {', '.join(map(str, frame.columns))}")
    if not features:
        raise ValueError("a reference needs at least one feature")
    if not instants(frame["event_time"]).notna().any():
        raise ValueError("reference frame has no row with an event_time: drift needs rows to compare with")
    if not (math.isfinite(loss_bound) and loss_bound > 0 and loss_bound + settings.tolerance < 1):
        raise ValueError(f"loss_bound {loss_bound} with tolerance {settings.tolerance} must lie within (0, 1)")


def _of(type_: str, column: npt.NDArray[Any], most: int | None = None) -> Marginal:
    return Categorical.of(column, most) if type_ == "string" else Numeric.of(column, most)


def _left_out(
    batch: Columns,
    index: npt.NDArray[np.int64],
    first: datetime,
    marginals: Mapping[str, Marginal],
    weights: Mapping[str, float],
    settings: DriftSettings,
) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
    """Each block against the others, less its sampling noise; the newest `history_cap` blocks, and those of each tag.

    With F the whole and F_i the block of n_i of the N rows, F_i - F_others = (F_i - F) N / (N - n_i): every distance
    here is linear in that difference, so one comparison with the whole gives the exact leave-one-out distance.
    """
    total = len(index)
    scores: dict[str, list[float]] = defaultdict(list)
    for number, places in groups(index):
        others = total - len(places)
        if len(places) < settings.min_block_rows or others == 0:
            continue
        distance = aggregate(marginals, weights, {name: column[places] for name, column in batch.items()})
        noise = expected(marginals, weights, len(places), others)
        scores[settings.tag_of(first + number * settings.block_length)].append(distance * total / others - noise)
    newest = {tag: tuple(past[-settings.history_cap :]) for tag, past in scores.items()}
    return newest.pop("", ()), newest
