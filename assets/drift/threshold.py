"""The alarm level learned from past blocks, and the walk over the blocks of a window."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assets.drift.aggregate import Block
from assets.drift.settings import DriftSettings


def conformal_threshold(history: Sequence[float], alpha: float) -> float:
    """Alarm level for the next block. history: (m,) past scores. +inf while m is too small to promise alpha.

    The k-th smallest, k = ceil((m + 1)(1 - alpha)): if the blocks are exchangeable the next one lies above it with
    probability (m + 1 - k)/(m + 1), whatever their distribution (Vovk, Gammerman, Shafer 2005, section 2.2).

    >>> conformal_threshold(range(30), 0.05), conformal_threshold(range(18), 0.05)
    (29, inf)
    """
    rank = order(len(history), alpha)
    return sorted(history)[rank - 1] if rank <= len(history) else math.inf


def order(size: int, alpha: float) -> int:
    """k = ceil((m + 1)(1 - alpha)), untouched by the last bit of (1 - alpha)."""
    return math.ceil((size + 1) * (1 - alpha) - 1e-9)


def needed(alpha: float) -> int:
    """Past blocks without which no level keeps alpha.

    >>> needed(0.05)
    19
    """
    return math.ceil(1 / alpha - 1e-9) - 1


@dataclass(frozen=True, slots=True)
class Memory:
    """What the walk carries from block to block, and from window to window.

    history: excess of past un-alarmed blocks over what sampling gives them; pending: the last block, if un-alarmed,
    which sets no level before one more block has passed; hits: alarms of the last judged blocks.
    """

    history: tuple[float, ...]
    pending: tuple[float, ...] = ()
    hits: tuple[bool, ...] = ()
    active: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "history": list(self.history),
            "pending": list(self.pending),
            "hits": list(self.hits),
            "active": self.active,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Memory":
        """The inverse of `to_dict`."""
        history, pending = tuple(map(float, value["history"])), tuple(map(float, value["pending"]))
        return cls(history, pending, tuple(map(bool, value["hits"])), bool(value["active"]))


@dataclass(frozen=True, slots=True)
class Judged:
    """One block beside its alarm level. Both are None, and so is `alarm`, where the block had too few rows.

    active: whether drift persists after this block.
    """

    block: Block
    threshold: float | None
    alarm: bool | None
    active: bool


def walk(blocks: Sequence[Block], memory: Memory, settings: DriftSettings) -> tuple[list[Judged], Memory]:
    """Judge blocks one by one, in order; any split of the blocks over calls gives the same.

    The level of a block is the conformal level of the past EXCESS over sampling noise, plus the block's own noise, so
    that a block of 50 rows and one of a million keep the same false-alarm rate; never below the effect floor.
    """
    judged = []
    for block in blocks:
        one, memory = _step(block, memory, settings)
        judged.append(one)
    return judged, memory


def _step(block: Block, memory: Memory, settings: DriftSettings) -> tuple[Judged, Memory]:
    history = tuple(deque(memory.history + memory.pending, maxlen=settings.history_cap))
    if block.aggregate is None or block.expected is None:
        return Judged(block, None, None, memory.active), replace(memory, history=history, pending=())
    level = conformal_threshold(memory.history, settings.alpha) + block.expected
    threshold = max(level, settings.floor)
    alarm = block.aggregate > threshold
    hits = (*memory.hits, alarm)[-settings.persistence_of :]
    active = sum(hits) >= settings.persistence_hits
    pending = () if alarm else (block.aggregate - block.expected,)
    return Judged(block, threshold, alarm, active), Memory(history, pending, hits, active)
