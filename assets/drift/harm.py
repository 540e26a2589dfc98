"""Is the champion harmed? A sequential e-detector on its loss.

Shiryaev-Roberts e-detector (Shin, Ramdas, Rinaldo 2022, arXiv 2203.03532): R_t = (R_(t-1) + w_t) e_t with
e_t = 1 + bet (z_t - bound), averaged over several bets. If E[z_t | past] <= bound for all t, then R_t - sum w is a
supermartingale, so an alarm at R >= ARL mean(w) comes, in the w-weighted mean, no sooner than after ARL observations.

What is one observation decides whether the premise can hold. Labels of one day share its weather: on a bad day the
mean of the NEXT label, given those before it, lies far above the bound though the model is what it always was, so
with unit 'request' the premise fails and bad days are called harm. A day's mean loss, given the days before it, may be
at most the bound even so. Hence unit 'block' is the default; 'request' is for independent requests, faster there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

BETS = (0.1, 0.25, 0.5, 1.0, 2.0)
# A block's mean moves by hundredths where a label moves by tenths: its bets must be larger, up to the limit 1/bound.
BLOCK_BETS = (0.1, 0.25, 0.5, 0.75, 0.95)


def bets(bound: float, unit: Literal["block", "request"]) -> tuple[float, ...]:
    """The bets of the mixture, all below 1/bound so that every factor stays positive.

    >>> bets(0.6, "request"), bets(0.5, "block")
    ((0.1, 0.25, 0.5, 1.0), (0.2, 0.5, 1.0, 1.5, 1.9))
    """
    return tuple(bet / bound for bet in BLOCK_BETS) if unit == "block" else tuple(b for b in BETS if b * bound < 1)


@dataclass(frozen=True, slots=True)
class EDetector:
    """log_r: log R of each bet (-inf before the first observation); sum_w: sum of weights; n: observations."""

    log_r: tuple[float, ...]
    sum_w: float = 0.0
    n: int = 0

    @classmethod
    def fresh(cls, count: int) -> "EDetector":
        """Nothing seen yet, `count` bets."""
        return cls((-math.inf,) * count)

    @property
    def log_evidence(self) -> float:
        """Log of R averaged over the bets."""
        most = max(self.log_r)
        if most == -math.inf:
            return most
        return most + math.log(sum(math.exp(value - most) for value in self.log_r) / len(self.log_r))

    def log_level(self, arl: float) -> float:
        """Log of A = ARL mean(w); +inf before the first observation. arl in observations."""
        return math.log(arl * self.sum_w / self.n) if self.n else math.inf

    def step(self, z: float, w: float, bound: float, bets: Sequence[float]) -> "EDetector":
        """One observation z in [0, 1] (clipped) of weight w in (0, 1], w chosen before z was seen."""
        excess = min(max(z, 0.0), 1.0) - bound
        log_r = tuple(
            _logaddexp(r, math.log(w)) + math.log1p(b * excess) for r, b in zip(self.log_r, bets, strict=True)
        )
        return EDetector(log_r, self.sum_w + w, self.n + 1)


def _logaddexp(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@dataclass(frozen=True, slots=True)
class LabelBlock:
    """The labels that became known in one block, in order, as losses in [0, 1]; w is known before the first of them."""

    name: str
    losses: tuple[float, ...]
    w: float


@dataclass(frozen=True, slots=True)
class Harm:
    """What is carried from label to label, and from window to window. Labels and blocks count from the last alarm."""

    detector: EDetector
    labels: int = 0
    blocks: int = 0
    alarms: int = 0
    pooled_sum: float = 0.0
    pooled_n: int = 0
    pooled_w: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; log R of nothing is None."""
        value = asdict(self)
        value |= value.pop("detector")
        return value | {"log_r": [None if r == -math.inf else r for r in self.detector.log_r]}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Harm":
        """The inverse of `to_dict`; more keys may lie beside its own."""
        log_r = tuple(-math.inf if r is None else float(r) for r in value["log_r"])
        detector = EDetector(log_r, float(value["sum_w"]), int(value["n"]))
        labels, blocks, alarms, pooled_n = (int(value[name]) for name in ("labels", "blocks", "alarms", "pooled_n"))
        return cls(detector, labels, blocks, alarms, float(value["pooled_sum"]), pooled_n, float(value["pooled_w"]))


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbers of one model. arl_blocks: least mean blocks between false alarms; labels_per_block: of the reference."""

    bound: float
    arl_blocks: float
    labels_per_block: float
    min_labels: int
    min_block_labels: int
    unit: Literal["block", "request"]

    @property
    def bets(self) -> tuple[float, ...]:
        return bets(self.bound, self.unit)

    def fresh(self, alarms: int = 0) -> Harm:
        """Nothing seen since an alarm, or ever."""
        return Harm(EDetector.fresh(len(self.bets)), alarms=alarms)

    def arl(self, harm: Harm) -> float:
        """The least mean spacing in observations. More labels a block than expected stretch it; fewer do not."""
        if self.unit == "block":
            return self.arl_blocks
        return self.arl_blocks * max(self.labels_per_block, harm.labels / max(harm.blocks, 1))


@dataclass(frozen=True, slots=True)
class Trace:
    """The detector after one block of labels, or at its alarm in it."""

    name: str
    labels: int
    mean_loss: float | None
    w: float
    log_evidence: float
    log_level: float
    alarm: bool


def watch(blocks: Sequence[LabelBlock], harm: Harm, rules: Rules) -> tuple[list[Trace], Harm]:
    """Take label blocks in order; any split over calls gives the same state, to the last bit. An alarm resets it."""
    traces = []
    for block in blocks:
        harm = replace(harm, blocks=harm.blocks + 1)
        take = _take_mean if rules.unit == "block" else _take_each
        harm, evidence, level, alarm = take(block, harm, rules)
        mean = sum(block.losses) / len(block.losses) if block.losses else None
        traces.append(Trace(block.name, len(block.losses), mean, block.w, evidence, level, alarm))
    return traces, harm


Taken = tuple[Harm, float, float, bool]


def _take_mean(block: LabelBlock, harm: Harm, rules: Rules) -> Taken:
    """A block of few labels is pooled with the next ones: a straggler is no day. The first one's weight holds."""
    if not block.losses:
        return harm, harm.detector.log_evidence, harm.detector.log_level(rules.arl(harm)), False
    total, count = harm.pooled_sum + sum(block.losses), harm.pooled_n + len(block.losses)
    w = harm.pooled_w if harm.pooled_n else block.w
    harm = replace(harm, labels=harm.labels + len(block.losses))
    if count < rules.min_block_labels:
        harm = replace(harm, pooled_sum=total, pooled_n=count, pooled_w=w)
        return harm, harm.detector.log_evidence, harm.detector.log_level(rules.arl(harm)), False
    detector = harm.detector.step(total / count, w, rules.bound, rules.bets)
    return _settle(replace(harm, detector=detector, pooled_sum=0.0, pooled_n=0, pooled_w=0.0), rules)


def _take_each(block: LabelBlock, harm: Harm, rules: Rules) -> Taken:
    evidence, level = harm.detector.log_evidence, harm.detector.log_level(rules.arl(harm))
    at_alarm: tuple[float, float] | None = None
    for loss in block.losses:
        detector = harm.detector.step(loss, block.w, rules.bound, rules.bets)
        harm, evidence, level, alarm = _settle(replace(harm, detector=detector, labels=harm.labels + 1), rules)
        at_alarm = (evidence, level) if alarm else at_alarm
    return (harm, *at_alarm, True) if at_alarm else (harm, evidence, level, False)


def _settle(harm: Harm, rules: Rules) -> Taken:
    evidence, level = harm.detector.log_evidence, harm.detector.log_level(rules.arl(harm))
    alarm = evidence >= level and harm.labels >= rules.min_labels
    return (rules.fresh(harm.alarms + 1) if alarm else harm), evidence, level, alarm
