"""The record of a rollout: what every guard saw, what it proved, and whether it was enough."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from assets.canary.coverage import curve
from assets.canary.eprocess import detectable_ratio
from assets.canary.evidence import evidence
from assets.canary.guards import Guards, last, trace
from assets.canary.rollout import Phase, Rollout
from assets.canary.settings import MIRROR, CanarySettings, OutcomeSettings
from assets.canary.standing import told, waits_for
from assets.canary.step import mirror_budget, stands
from assets.decision import Decision, Evidence
from assets.verdict import Verdict

# The harm of an outcome may be that there are fewer.
CHANGE = {"business": "change"}
# Of the evidence about slow requests.
UNIT = "a look: slow requests come in bursts that one pool has to itself, however many are in one it counts once"


def judge(rollout: Rollout, as_of: datetime, inputs: Mapping[str, str]) -> Decision:
    """PASS exactly when promoted, or rehearsed to the end. FAIL: a guard fired. ERROR: broken.

    INCONCLUSIVE: time ran out, or it still runs.

    The evidence is computed from the looks in the rollout, so `judge(Rollout.from_dict(details["rollout"]), ...)` of a
    kept record says the same again.
    """
    if rollout.first_release:
        found: tuple[Evidence, ...] = (_outcome(rollout),)
    else:
        guards = evidence(rollout.guards, rollout.settings)
        found = (_mirror(rollout), *guards, _enough(rollout), _coverage(rollout), _outcome(rollout))
    gate = "rehearsal" if rollout.rehearsal else "canary"
    return Decision(rollout.model, gate, as_of, found[-1].why, found, inputs, _details(rollout))


def _mirror(rollout: Rollout) -> Evidence:
    settings, seen = rollout.settings, rollout.mirrored
    if settings.ladder[0] != MIRROR:
        return Evidence("mirror", Verdict.PASS, "the ladder has no mirror rung")
    total = seen.success + seen.fail
    why = f"{seen.fail} of {total} copies failed ({settings.mirror_requests} were asked for)"
    budget = mirror_budget(seen, settings)
    if settings.mirror_answers:
        why += f"; {seen.differing} of {seen.compared} answers differ from the registered model's"
    if seen.fail > budget or seen.differing:
        return Evidence("mirror", Verdict.FAIL, why, seen.fail, budget)
    enough = total >= settings.mirror_requests and seen.compared >= settings.mirror_answers
    verdict = Verdict.PASS if enough else Verdict.INCONCLUSIVE
    return Evidence("mirror", verdict, why, seen.fail, budget)


def _enough(rollout: Rollout) -> Evidence:
    """Did the canary see enough: every rung its requests?"""
    settings, seen = rollout.settings, rollout.guards.by_share()
    reached = [p for p in settings.percents if p / 100 in seen and seen[p / 100].requests >= settings.requests_per_rung]
    percents = settings.percents[:-1] if rollout.rehearsal else settings.percents
    why = (
        f"{len(reached)} of {len(percents)} rungs had their {settings.requests_per_rung} requests; "
        f"{rollout.guards.canary_requests} reached the challenger; {_detectable_sentence(rollout)}"
    )
    verdict = Verdict.PASS if len(reached) == len(percents) else Verdict.INCONCLUSIVE
    return Evidence("enough", verdict, why, len(reached), len(percents))


def _coverage(rollout: Rollout) -> Evidence:
    """Of the feature space, against what the last climb asks for."""
    settings = rollout.settings.coverage
    limits = settings.before(rollout.settings.percents, len(rollout.settings.percents) - 1)
    if limits is None:
        return Evidence("coverage", Verdict.PASS, "the spec asks for no coverage of the feature space")
    if rollout.coverage is None:
        return Evidence("coverage", Verdict.INCONCLUSIVE, "no cells of the feature space to count by")
    found = stands(rollout, rollout.coverage)
    waiting = waits_for(found, *limits, settings)
    why = f"{waiting}; {told(found, settings)}" if waiting else told(found, settings)
    verdict = Verdict.INCONCLUSIVE if waiting else Verdict.PASS
    return Evidence("coverage", verdict, why, found.covered, limits[0])


def _outcome(rollout: Rollout) -> Evidence:
    if rollout.phase is Phase.PROMOTED:
        return Evidence("rollout", Verdict.PASS, f"version {rollout.version} is promoted: {rollout.reason}")
    if rollout.verdict is None:
        return Evidence("rollout", Verdict.INCONCLUSIVE, f"version {rollout.version} is {rollout.phase}")
    if rollout.rehearsal and rollout.verdict is Verdict.PASS:
        ended = Verdict.PASS if rollout.ended else Verdict.INCONCLUSIVE
        return Evidence("rollout", ended, f"version {rollout.version} as its own challenger {rollout.reason}")
    doing = "is rolled back" if rollout.phase is Phase.ROLLED_BACK else "is being rolled back"
    return Evidence("rollout", _ended(rollout), f"version {rollout.version} {doing}: {rollout.reason}")


def _ended(rollout: Rollout) -> Verdict:
    return Verdict.INCONCLUSIVE if rollout.verdict is None else rollout.verdict


def detectable(guards: Guards, settings: CanarySettings) -> dict[str, float | None]:
    """Smallest ratio to the champion's rate that the requests seen so far would have shown, on average, by guard."""
    found: dict[str, float | None] = {}
    for name, tolerance, alpha, max_rate in (
        ("errors", settings.tolerance_errors, settings.alpha_errors, settings.max_error_rate),
        ("slow", settings.tolerance_slow, settings.alpha_slow, settings.max_slow_rate),
    ):
        champion = sum(look.baseline_requests for look in guards.looks)
        events = sum(getattr(look, f"baseline_{name}") for look in guards.looks)
        # Without a single event the rate is not zero but unknown: half an event stands for it.
        rate = max(events, 0.5) / champion if champion else max_rate
        compared = [look for look in guards.by_share().values() if 0 < look.share < 1]
        total = sum(look.requests for look in compared)
        share = sum(look.share * look.requests for look in compared) / total if total else 0.0
        found[name] = detectable_ratio(rate, share, total, tolerance, alpha)
    return found | ({"business": _detectable_outcome(guards, settings.outcome)} if settings.outcome.judged else {})


def _detectable_outcome(guards: Guards, asked: OutcomeSettings) -> float | None:
    parts = guards.outcomes
    champion, events = (sum(getattr(part, name) for part in parts) for name in ("baseline", "baseline_events"))
    total = sum(part.canary + part.baseline for part in parts)
    if not champion:
        return None
    share = sum(part.share * (part.canary + part.baseline) for part in parts) / total
    rate = max(events, 0.5) / champion
    return detectable_ratio(rate, share, total, asked.tolerance, asked.alpha, fewer=asked.harm == "fewer")


def _detectable_sentence(rollout: Rollout) -> str:
    said = [
        f"{name} {ratio:.1f} times as frequent" if ratio else f"no {CHANGE.get(name, 'increase')} of {name}"
        for name, ratio in detectable(rollout.guards, rollout.settings).items()
    ]
    return f"these would have shown {' and '.join(said)}"


def _details(rollout: Rollout) -> dict[str, Any]:
    settings, logs = rollout.settings, last(rollout.guards, rollout.settings)
    bounds = {
        "errors": settings.alpha_errors,
        "slow": settings.alpha_slow,
        "sample_ratio": settings.alpha_sample_ratio,
        "errors_safe": settings.alpha_non_inferiority,
        "slow_safe": settings.alpha_non_inferiority,
    }
    if settings.outcome.judged:
        bounds |= {"business": settings.outcome.alpha, "business_safe": settings.alpha_non_inferiority}
    rungs = [
        {
            "percent": round(100 * look.share),
            "seconds": round(look.seconds, 3),
            "challenger": {"requests": look.canary_requests, "errors": look.canary_errors, "slow": look.canary_slow},
            "champion": {
                "requests": look.baseline_requests,
                "errors": look.baseline_errors,
                "slow": look.baseline_slow,
            },
        }
        for look in rollout.guards.by_share().values()
    ]
    return {
        "rungs": rungs,
        "log_e": {name: {"value": logs[name], "bound": math.log(1 / alpha)} for name, alpha in bounds.items()},
        "path": {
            "requests": _running_requests(rollout.guards),
            "percent": _rungs_of(rollout),
            **{name: values.tolist() for name, values in trace(rollout.guards, settings).items()},
        },
        "detectable_ratio": detectable(rollout.guards, settings),
        "coverage": _seen(rollout),
        "outcomes": [asdict(part) for part in rollout.guards.outcomes] if settings.outcome.judged else None,
        "slow_ms": rollout.slow_ms,
        "slow_unit": UNIT if rollout.guards.bursts else "a request",
        "seconds": (rollout.phase_at - rollout.started_at).total_seconds(),
        "rollout": rollout.to_dict(),
    }


def _seen(rollout: Rollout) -> dict[str, Any] | None:
    """Coverage as pages show it: where it stands, and by rung against the curve one expects."""
    if rollout.coverage is None:
        return None
    settings, coverage = rollout.settings.coverage, rollout.coverage
    return {
        "cells": len(coverage.reference),
        "least": settings.least,
        "standing": asdict(stands(rollout, coverage)),
        "curve": curve(coverage, settings.least),
        "hours": list(coverage.hours),
    }


def _rungs_of(rollout: Rollout) -> list[int]:
    """The rung of each look, in percent; requests of cells in need belong to the rung of the look before."""
    favoured, rungs = rollout.settings.coverage.need_percent, list[int]()
    for look in rollout.guards.looks:
        percent = round(100 * look.share)
        rungs.append(rungs[-1] if rungs and favoured and percent == favoured else percent)
    return rungs


def _running_requests(guards: Guards) -> list[int]:
    total, running = 0, []
    for look in guards.looks:
        total += look.requests
        running.append(total)
    return running
