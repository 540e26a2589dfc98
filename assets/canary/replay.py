"""A kept rollout walked again: from its looks, through the same state machine, to an end that has to be the same."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from assets.canary.coverage import Coverage, Seen
from assets.canary.events import Abort, Event, Loaded, MirrorSeen, Observed, WeightsConfirmed
from assets.canary.guards import Guards
from assets.canary.judge import judge
from assets.canary.rollout import Phase, Rollout
from assets.canary.step import step
from assets.decision import Decision
from assets.verdict import Verdict


def replay(record: Mapping[str, Any]) -> Decision:
    """The decision that the looks of a kept canary record lead to. record: its plain JSON values.

    Guards, coverage, rungs and proofs are computed anew by the settings of that time. What no look shows is taken from
    the record: that the challenger did not load or crashed, that time ran out, that somebody ordered it back.
    """
    kept = Rollout.from_dict(record["details"]["rollout"])
    return judge(replayed(kept), datetime.fromisoformat(record["as_of"]), record["inputs"])


def replayed(kept: Rollout) -> Rollout:
    """The rollout that these looks make, begun anew. Time stands still in it, so no deadline passes."""
    rollout = _at_its_start(kept)
    for event in _events(kept):
        if not rollout.confirmed and rollout.phase is not Phase.LOADING:
            rollout = step(rollout, WeightsConfirmed(), kept.started_at)
        rollout = step(rollout, event, kept.started_at)
    outside = kept.verdict is not None and kept.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
    if outside and rollout.phase is not Phase.ROLLING_BACK:
        rollout = step(rollout, Abort(kept.reason, kept.verdict or Verdict.INCONCLUSIVE), kept.started_at)
    if kept.ended and not rollout.ended:
        rollout = step(rollout, WeightsConfirmed(), kept.started_at)
    return rollout


def _at_its_start(kept: Rollout) -> Rollout:
    """With everything that was fixed when it began, and nothing that was seen since."""
    coverage = kept.coverage and Coverage(kept.coverage.reference, kept.coverage.reference_hours)
    return replace(
        kept,
        phase=Phase.LOADING,
        phase_at=kept.started_at,
        rung=-1,
        confirmed=False,
        # A record from before a look was the unit of slow requests is walked as it was judged.
        guards=Guards.begin(kept.settings) if kept.guards.bursts else Guards(),
        mirrored=MirrorSeen(),
        verdict=None,
        reason="",
        diary=(),
        coverage=coverage,
        spans=(),
    )


def _events(kept: Rollout) -> Iterator[Event]:
    """What the looks say happened. The cells of a share are told with its last look: no rung is left before it."""
    looks = kept.guards.looks
    if looks or kept.mirrored != MirrorSeen() or kept.phase is Phase.PROMOTED:
        yield Loaded()
    if kept.mirrored != MirrorSeen():
        yield kept.mirrored
    favoured = kept.settings.coverage.need_percent / 100 or None
    rungs: list[float] = []
    for look in looks:  # no rung has the share of favoured requests: such a look is part of the one before it
        rungs.append(rungs[-1] if rungs and look.share == favoured else look.share)
    last = {(rung, look.share): place for place, (rung, look) in enumerate(zip(rungs, looks, strict=True))}
    told = [
        (look, _cells(kept, rung, look.share) if place == last[rung, look.share] else None)
        for place, (rung, look) in enumerate(zip(rungs, looks, strict=True))
    ]
    for place, (look, seen) in enumerate(told):
        if look.share != favoured:
            after = told[place + 1] if place + 1 < len(told) else None
            yield Observed(look, seen, after if after and after[0].share == favoured else None)


def _cells(kept: Rollout, rung: float, share: float) -> Seen | None:
    """All that was counted at a share on a rung, as one look. Hours of day gate nothing: they come with the last."""
    parts = kept.coverage.parts if kept.coverage else ()
    for part in parts:
        if kept.coverage and (part.rung, part.share) == (rung, share):
            hours = kept.coverage.hours if part == parts[-1] else (0,) * len(kept.coverage.hours)
            return Seen(share, part.canary, part.both, part.beyond, hours, rung)
    return None


def same(record: Mapping[str, Any]) -> bool:
    """Does the record, walked again, come to the verdicts it carries: in all, and of each piece of its evidence?"""
    again = replay(record)
    found = {item.name: item.verdict.name for item in again.evidence}
    kept = {item["name"]: item["verdict"] for item in record["evidence"]}
    return again.verdict.name == record["verdict"] and all(found.get(name) == kept[name] for name in kept)
