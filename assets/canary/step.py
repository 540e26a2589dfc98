"""One function, state x event -> state.

LOADING -> MIRRORING -> ADVANCING (rung by rung) -> HOLDING (until harmlessness is proven) -> PROMOTING -> PROMOTED
   any of them -> ROLLING_BACK -> ROLLED_BACK

A first release has no champion to compare with: LOADING -> PROMOTING -> PROMOTED.
"""

from dataclasses import replace
from datetime import datetime

from assets.canary.coverage import Coverage
from assets.canary.events import (
    Abort,
    Event,
    Loaded,
    LoadFailed,
    MirrorSeen,
    Observed,
    WeightsConfirmed,
    WeightsFailed,
)
from assets.canary.evidence import evidence, safe
from assets.canary.looks import Look
from assets.canary.outcomes import extended
from assets.canary.rollout import Phase, Rollout, in_need, noted, overdue, share
from assets.canary.settings import MIRROR, CanarySettings
from assets.canary.standing import Standing, standing, waits_for
from assets.verdict import Verdict

# The end of a rehearsal that went well.
REHEARSED = "rehearsed: every share below 100 % was seen and harmlessness is proven; the champion stays"
# Copies that may fail for each that the champion fails: both fail by chance as well.
EXCUSED = 1.5


def step(rollout: Rollout, event: Event, now: datetime) -> Rollout:
    """The next state. Total: an event that makes no sense in a state leaves it as it is; an end never changes.

    A phase that outlives its deadline is rolled back as INCONCLUSIVE, whatever the event, unless that event ends it.
    """
    if rollout.ended:
        return rollout
    after = _handled(rollout, event, now)
    stuck = (after.phase, after.rung) == (rollout.phase, rollout.rung)
    if stuck and after.phase is not Phase.ROLLING_BACK and overdue(rollout, now):
        waited = (now - rollout.phase_at).total_seconds()
        return _rolling_back(after, now, Verdict.INCONCLUSIVE, f"{_waiting(after)} after {waited:.0f} s")
    return after


def _handled(rollout: Rollout, event: Event, now: datetime) -> Rollout:
    match event, rollout.phase:
        case WeightsConfirmed(), Phase.ROLLING_BACK:
            return _entered(rollout, Phase.ROLLED_BACK, now, f"rolled back: {rollout.reason}")
        case _, Phase.ROLLING_BACK:
            return rollout
        case Abort(reason, verdict), _:
            return _rolling_back(rollout, now, verdict, reason)
        case WeightsFailed(reason), _:
            return _rolling_back(rollout, now, Verdict.ERROR, f"the gateway did not take the weights: {reason}")
        case LoadFailed(reason), Phase.LOADING:
            return _rolling_back(rollout, now, Verdict.FAIL, f"the challenger does not load: {reason}")
        case Loaded(), Phase.LOADING:
            return _climbed(rollout, now)
        case WeightsConfirmed(), Phase.PROMOTING if rollout.first_release:
            promoted = replace(rollout, confirmed=True, verdict=Verdict.PASS, reason="first release: loaded and probed")
            return _entered(promoted, Phase.PROMOTED, now, "promoted: the first release")
        case WeightsConfirmed(), Phase.MIRRORING | Phase.ADVANCING | Phase.HOLDING | Phase.PROMOTING:
            return rollout if rollout.confirmed else replace(rollout, confirmed=True)
        case MirrorSeen(), Phase.MIRRORING if rollout.confirmed:
            return _mirrored(rollout, event, now)
        case Observed(look), Phase.ADVANCING | Phase.HOLDING | Phase.PROMOTING if _counts(rollout, look):
            return _rerouted(_judged(_looked(rollout, event), now))
        case _:
            return rollout


def _counts(rollout: Rollout, look: Look) -> bool:
    return rollout.confirmed and not rollout.first_release and look.share == share(rollout)


def _looked(rollout: Rollout, seen: Observed) -> Rollout:
    """With the look, and that of requests that named a cell in need: each is judged at its own share, never pooled."""
    guards, coverage = rollout.guards, rollout.coverage
    for look, cells in ((seen.look, seen.seen), *([seen.needed] if seen.needed else [])):
        guards = guards.update(look)
        coverage = coverage.plus(cells) if coverage and cells else coverage
    spans = extended(rollout.spans, seen.span) if seen.span else rollout.spans
    return replace(rollout, guards=guards, coverage=coverage, spans=spans)


def _rerouted(rollout: Rollout) -> Rollout:
    """Cells that have been seen often enough are favoured no longer; the gateway has to confirm that first."""
    needed = in_need(rollout)
    return rollout if needed == rollout.needed else replace(rollout, needed=needed, confirmed=False)


def _mirrored(rollout: Rollout, seen: MirrorSeen, now: datetime) -> Rollout:
    """A screen, not a test: failures of copies beyond the error budget, and beyond what the champion fails too."""
    rollout, settings = replace(rollout, mirrored=seen), rollout.settings
    total, budget = seen.success + seen.fail, mirror_budget(seen, settings)
    if seen.fail > budget:
        reason = f"mirror: {seen.fail} of {total} copies failed, at most {budget:.0f} may"
        return _rolling_back(rollout, now, Verdict.FAIL, reason)
    if seen.differing:
        reason = (
            f"mirror: {seen.differing} of {seen.compared} answers are missing or not those of the registered model, "
            f"by up to {seen.farthest:.3g}"
        )
        return _rolling_back(rollout, now, Verdict.FAIL, reason)
    enough = total >= settings.mirror_requests and seen.compared >= settings.mirror_answers
    return _climbed(rollout, now) if enough else rollout


def mirror_budget(seen: MirrorSeen, settings: CanarySettings) -> float:
    """Copies that may fail: max_error_rate of those asked for, and what the champion's failures excuse."""
    asked = max(seen.success + seen.fail, settings.mirror_requests)
    return settings.max_error_rate * asked + EXCUSED * seen.champion_fail


def _judged(rollout: Rollout, now: datetime) -> Rollout:
    """After a look: roll back on any guard, else climb once the rung has had its requests and its proof."""
    for item in evidence(rollout.guards, rollout.settings, forecast=False):
        if item.verdict is Verdict.FAIL:
            return _rolling_back(rollout, now, Verdict.FAIL, item.why)
    if rollout.rung_requests < rollout.settings.requests_per_rung:
        return rollout
    next_is_all = rollout.rung + 2 >= len(rollout.settings.ladder)
    unseen = uncovered(rollout)
    if next_is_all and (unseen or not safe(rollout.guards, rollout.settings)):
        if rollout.phase is Phase.ADVANCING:
            why = f"holding: {unseen}" if unseen else "holding until harmlessness is proven"
            held = _entered(rollout, Phase.HOLDING, now, why)
            return replace(held, confirmed=True, needed=rollout.needed)
        return rollout
    if next_is_all and rollout.rehearsal:
        done = replace(rollout, verdict=Verdict.PASS, reason=REHEARSED)
        return _entered(done, Phase.ROLLING_BACK, now, REHEARSED)
    return rollout if unseen else _climbed(rollout, now)


def uncovered(rollout: Rollout) -> str | None:
    """Why the next rung waits for coverage of the feature space; None when it does not, or none is asked for."""
    settings, following = rollout.settings, rollout.rung + 1
    if following >= len(settings.ladder):
        return None
    index = following - (len(settings.ladder) - len(settings.percents))
    limits = settings.coverage.before(settings.percents, index)
    if limits is None:
        return None
    if rollout.coverage is None:
        return "no cells of the feature space to count by"
    return waits_for(stands(rollout, rollout.coverage), *limits, settings.coverage)


def stands(rollout: Rollout, coverage: Coverage) -> Standing:
    """Where its coverage stands."""
    apart = rollout.settings.sticky_header is None
    return standing(coverage, failed_requests(rollout), rollout.settings.coverage, one_by_one=apart)


def failed_requests(rollout: Rollout) -> int:
    """Of the challenger while the champion served as well: requests that coverage has no features of."""
    return sum(look.canary_errors for look in rollout.guards.looks if look.share < 1)


def _climbed(rollout: Rollout, now: datetime) -> Rollout:
    """The next rung, or the end of the ladder."""
    ladder = rollout.settings.ladder
    if rollout.phase is Phase.PROMOTING:
        promoted = replace(rollout, verdict=Verdict.PASS, reason="no guard fired and harmlessness is proven")
        return _entered(promoted, Phase.PROMOTED, now, f"promoted version {rollout.version}")
    rung = len(ladder) - 1 if rollout.first_release else rollout.rung + 1
    if ladder[rung] == MIRROR:
        return _entered(replace(rollout, rung=rung), Phase.MIRRORING, now, "mirroring: copies only")
    phase = Phase.PROMOTING if ladder[rung] == 100 else Phase.ADVANCING
    return _entered(replace(rollout, rung=rung), phase, now, f"{ladder[rung]} % to {rollout.challenger_pool}")


def _rolling_back(rollout: Rollout, now: datetime, verdict: Verdict, reason: str) -> Rollout:
    return _entered(
        replace(rollout, verdict=max(verdict, Verdict.INCONCLUSIVE), reason=reason),
        Phase.ROLLING_BACK,
        now,
        f"{verdict.name}: {reason}",
    )


def _entered(rollout: Rollout, phase: Phase, now: datetime, note: str) -> Rollout:
    entered = noted(replace(rollout, phase=phase, phase_at=now, confirmed=False), now, note)
    return replace(entered, needed=in_need(entered))


def _waiting(rollout: Rollout) -> str:
    match rollout.phase:
        case Phase.LOADING:
            return "the challenger is not loaded"
        case Phase.MIRRORING if rollout.confirmed:
            seen = rollout.mirrored.success + rollout.mirrored.fail
            compared, wanted = rollout.mirrored.compared, rollout.settings.mirror_answers
            told = f"{seen} of {rollout.settings.mirror_requests} copies were answered"
            return told + (f" and {compared} of {wanted} answers compared" if compared < wanted else "")
        case Phase.HOLDING:
            if unseen := uncovered(rollout):
                return unseen
            told = f"{rollout.guards.canary_requests} challenger requests seen"
            if rollout.settings.outcome.required:
                told += f", the outcome of {sum(part.canary for part in rollout.guards.outcomes)} known"
            return f"harmlessness is not proven, {told},"
        case Phase.ADVANCING | Phase.PROMOTING if rollout.confirmed:
            needed = rollout.settings.requests_per_rung
            if rollout.rung_requests >= needed and (unseen := uncovered(rollout)):
                return unseen
            return f"{rollout.rung_requests} of {needed} requests came at {100 * share(rollout):.0f} %"
        case _:
            return "the gateway has not confirmed the weights"
