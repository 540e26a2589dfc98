"""Back to the version before, after a promotion: while it is still warm that is one change of weights."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from assets.canary.rollout import Phase, Rollout, noted, warm_until
from assets.decision import Decision, Evidence
from assets.verdict import Verdict

READY = "READY"


def refusal(rollout: Rollout, now: datetime, replicas: Iterable[tuple[str, int, str]]) -> str | None:
    """Why a promoted rollout can't be taken back, and what to do instead; None when it can.

    replicas: name, version and state of each replica of the former champion's pool, as their agents report them.
    """
    again = f"release an earlier version instead: give it the alias challenger and launch {rollout.model}'s canary"
    if rollout.rehearsal:
        return f"the latest rollout was a rehearsal of version {rollout.version}, which took the pool: {again}"
    if rollout.phase is Phase.ROLLED_BACK:
        return f"version {rollout.version} was rolled back already: {rollout.reason}"
    if rollout.phase is not Phase.PROMOTED:
        return f"the rollout of version {rollout.version} is {rollout.phase}: order it back instead"
    if rollout.first_release:
        return f"version {rollout.version} is the first release: there is none before it"
    limit = warm_until(rollout)
    if limit is not None and now > limit:
        return f"the rollback window of version {rollout.version} ended {limit:%Y-%m-%d %H:%M} UTC: {again}"
    found = list(replicas)
    cold = [item for item in found if item[1:] != (rollout.champion_version, READY)]
    if cold or not found:
        told = "; ".join(f"{name} has version {version} {state}" for name, version, state in cold) or "no replica"
        where = f"version {rollout.champion_version} is no longer warm in {rollout.champion_pool}"
        return f"{where} ({told}): {again}"
    return None


def reverted(rollout: Rollout, now: datetime, reason: str) -> Rollout:
    """The promoted rollout, ordered back. Write it before the weights move: a new rollout can't begin in between."""
    told = f"back to version {rollout.champion_version} in {rollout.champion_pool}: {reason}"
    return noted(replace(rollout, reverted_at=rollout.reverted_at or now), now, told)


def decision(rollout: Rollout, now: datetime, reason: str, seconds: float) -> Decision:
    """The record of a rollback by hand. seconds: from the order to the gateway's confirmation."""
    why = f"version {rollout.version} is taken back, version {rollout.champion_version} serves again: {reason}"
    limit = warm_until(replace(rollout, reverted_at=None))
    evidence = (
        Evidence("warm", Verdict.PASS, f"version {rollout.champion_version} was loaded in {rollout.champion_pool}"),
        Evidence("weights", Verdict.PASS, f"one change of weights, confirmed after {seconds:.3f} s", seconds),
    )
    details = {"seconds": seconds, "warm_until": limit, "rollout": rollout.to_dict()}
    return Decision(rollout.model, "rollback", now, why, evidence, {"package": rollout.digest}, details)
