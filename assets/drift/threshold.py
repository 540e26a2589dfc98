"""The alarm level learned from past blocks, and the walk over the blocks of a window."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
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
    if rank > len(history):
        return math.inf
    return sorted(history)[rank - 1] if rank > 0 else -math.inf


def order(size: int, alpha: float) -> int:
    """k = ceil((m + 1)(1 - alpha)), untouched by the last bit of (1 - alpha)."""
    return math.ceil((size + 1) * (1 - alpha) - 1e-9)


def needed(alpha: float) -> int:
    """Past blocks without which no level keeps alpha.

    >>> needed(0.05)
    19
    """
    return math.ceil(1 / alpha - 1e-9) - 1


def adapted(current: float, alpha: float, above: bool, rate: float) -> float:
    """The next level's alpha after a block: down if it lay above its level, up if not (Gibbs & Candes 2021, eq. 2).

    In the long run a share alpha of blocks lies above, however their distribution moves.

    >>> round(adapted(0.05, 0.05, True, 0.01), 4), round(adapted(0.05, 0.05, False, 0.01), 4)
    (0.0405, 0.0505)
    """
    return current + rate * (alpha - above)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the walk carries from block to block, and from window to window.

    history: excess of past blocks over what sampling gives them, without alarms that have an alarm as neighbour;
    pending: the last block, if it may be remembered, which sets no level before one more block has passed; hits:
    alarms of the last judged blocks.
    tagged: history of each calendar tag; alphas: where the adaptive level of each tag stands; pending_tag: of the last
    block, '' for an ordinary one.
    """

    history: tuple[float, ...]
    pending: tuple[float, ...] = ()
    hits: tuple[bool, ...] = ()
    active: bool = False
    tagged: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    pending_tag: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; without a calendar those of before there was one."""
        value: dict[str, Any] = {
            "history": list(self.history),
            "pending": list(self.pending),
            "hits": list(self.hits),
            "active": self.active,
        }
        if self.tagged or self.alphas or self.pending_tag:
            tagged = {tag: list(past) for tag, past in self.tagged.items()}
            value |= {"tagged": tagged, "alphas": dict(self.alphas), "pending_tag": self.pending_tag}
        return value

    def settled(self, cap: int) -> "Memory":
        """The last block enters the history of its kind; the newest `cap` stay."""
        if not self.pending_tag:
            return replace(self, history=(*self.history, *self.pending)[-cap:], pending=())
        past = (*self.tagged.get(self.pending_tag, ()), *self.pending)[-cap:]
        return replace(self, tagged={**self.tagged, self.pending_tag: past}, pending=(), pending_tag="")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Memory":
        """The inverse of `to_dict`."""
        history, pending = tuple(map(float, value["history"])), tuple(map(float, value["pending"]))
        tagged = {tag: tuple(map(float, past)) for tag, past in value.get("tagged", {}).items()}
        hits, active = tuple(map(bool, value["hits"])), bool(value["active"])
        return cls(history, pending, hits, active, tagged, value.get("alphas", {}), value.get("pending_tag", ""))


@dataclass(frozen=True, slots=True)
class Judged:
    """One block beside its alarm level. Both are None, and so is `alarm`, where the block had too few rows.

    active: whether drift persists after this block; tag: of the calendar, '' for an ordinary block.
    """

    block: Block
    threshold: float | None
    alarm: bool | None
    active: bool
    tag: str = ""


def walk(blocks: Sequence[Block], memory: Memory, settings: DriftSettings) -> tuple[list[Judged], Memory]:
    """Judge blocks one by one, in order; any split of the blocks over calls gives the same.

    The level of a block is the conformal level of the past EXCESS over sampling noise, plus the block's own noise, so
    that a block of 50 rows and one of a million keep the same false-alarm rate; never below the effect floor.

    A drift that stays is left out of the past from its first block on; a single odd block is part of what is usual.
    Leaving out every alarm would cut the top off the past again and again: of independent blocks with 60 in the past
    and alpha .05 then 9 % alarm in the first quarter of a year and 35 % in the last, where this keeps 5 % (simulated).

    A block with a calendar tag is held against the past of its tag; while that is too short for a level, against the
    ordinary past by adaptive conformal inference, whose alpha falls with every such block above its level.
    """
    judged = []
    for block in blocks:
        one, memory = _step(block, memory, settings)
        judged.append(one)
    return judged, memory


def _step(block: Block, memory: Memory, settings: DriftSettings) -> tuple[Judged, Memory]:
    tag, before = settings.tag_of(block.start), bool(memory.hits and memory.hits[-1])
    if block.aggregate is None or block.expected is None:
        waits = memory if before else memory.settled(settings.history_cap)  # an alarm's neighbour is still to come
        return Judged(block, None, None, memory.active, tag), waits
    excess = block.aggregate - block.expected
    like, alpha = _past(memory, tag, settings)
    level = conformal_threshold(like, alpha)
    threshold = max(level + block.expected, settings.floor)
    alarm = block.aggregate > threshold
    stays, learning = alarm and before, _is_learning(memory, tag, settings)
    if stays and not _is_learning(memory, memory.pending_tag, settings):
        memory = replace(memory, pending=(), pending_tag="")
    hits = (*memory.hits, alarm)[-settings.persistence_of :]
    active = sum(hits) >= settings.persistence_hits
    # Above the ordinary level says that this is a holiday, not that it drifted: its like have to be learned.
    keep = not memory.active if learning else not stays
    alphas = memory.alphas
    if alarm and not learning:
        # One day of nonsense must not become the level: it counts as twice as far out as the level, at most.
        excess = min(excess, 2 * level - median(like))
    if learning:
        alphas = {**alphas, tag: adapted(alpha, settings.alpha, excess > level, settings.adaptive_rate)}
    after = replace(
        memory.settled(settings.history_cap),
        pending=(excess,) if keep else (),
        pending_tag=tag if keep else "",
        hits=hits,
        active=active,
        alphas=alphas,
    )
    return Judged(block, threshold, alarm, active, tag), after


def _is_learning(memory: Memory, tag: str, settings: DriftSettings) -> bool:
    """Whether a tag has too few blocks for a level of its own."""
    return bool(tag) and len(memory.tagged.get(tag, ())) < needed(settings.alpha)


def _past(memory: Memory, tag: str, settings: DriftSettings) -> tuple[tuple[float, ...], float]:
    """The blocks that one of this tag is held against, and at which alpha."""
    if _is_learning(memory, tag, settings):
        return memory.history, memory.alphas.get(tag, settings.alpha)
    return (memory.tagged[tag] if tag else memory.history), settings.alpha
