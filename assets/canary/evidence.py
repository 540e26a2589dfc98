"""The guards' proofs as sentences against their bounds, and the kill switch beside them."""

import math
from collections.abc import Mapping
from dataclasses import replace

from assets.canary.guards import Guards, last
from assets.canary.looks import Look
from assets.canary.settings import CanarySettings
from assets.decision import Evidence
from assets.verdict import Verdict

# Share of the looks that a forecast imagines: that of no rung.
AHEAD = 0.501
# An e-value is shown up to here.
SHOWN = 1e12


def evidence(guards: Guards, settings: CanarySettings, forecast: bool = True) -> tuple[Evidence, ...]:
    """Kill switch, errors, slow, business, sample_ratio. FAIL rolls back; PASS of the middle three is proof of
    harmlessness, or that nothing was asked.

    forecast: say how many requests more would prove it; that is a search, and not wanted at every look.
    """
    logs = last(guards, settings)
    return (
        _kill_switch(guards, settings),
        _guard(guards, "errors", logs, settings.alpha_errors, settings, forecast),
        _guard(guards, "slow", logs, settings.alpha_slow, settings, forecast),
        _business(guards, logs, settings),
        _sample_ratio(guards, logs["sample_ratio"], settings),
    )


def _guard(
    guards: Guards, name: str, logs: Mapping[str, float], alpha: float, settings: CanarySettings, forecast: bool
) -> Evidence:
    mine, theirs = (sum(getattr(look, f"{arm}_{name}") for look in guards.looks) for arm in ("canary", "baseline"))
    seen = guards.canary_requests, sum(look.baseline_requests for look in guards.looks)
    said = f"{name}: {mine} of {seen[0]} challenger requests, {theirs} of {seen[1]} champion requests"
    if name == "slow" and guards.bursts is not None:
        said += f", judged a look at a time ({len(guards.looks)})"
    if logs[name] >= math.log(1 / alpha):
        why = f"{said}: more than chance or shared trouble explains (false once in {1 / alpha:.0f} rollouts)"
        return Evidence(name, Verdict.FAIL, why, _shown(logs[name]), 1 / alpha)
    proven, bound = logs[f"{name}_safe"], 1 / settings.alpha_non_inferiority
    if proven >= math.log(bound):
        return Evidence(name, Verdict.PASS, f"{said}: proven no worse than allowed", _shown(proven), bound)
    why = f"{said}: neither harm nor its absence is proven"
    if forecast:
        more = clean_requests_needed(guards, name, settings)
        why += f"; {more} more challenger requests without one would prove it" if more else "; it is out of reach"
    return Evidence(name, Verdict.INCONCLUSIVE, why, _shown(proven), bound)


def _business(guards: Guards, logs: Mapping[str, float], settings: CanarySettings) -> Evidence:
    """By the labels that came in time. Unless it is required, what is not proven is told and holds nothing back."""
    asked = settings.outcome
    if not asked.judged:
        return Evidence("business", Verdict.PASS, "the spec asks for none: canary.outcome.event names what to count")
    parts, requests = guards.outcomes, sum(look.requests for look in guards.looks)
    mine, theirs = sum(part.canary for part in parts), sum(part.baseline for part in parts)
    bound, proven = 1 / settings.alpha_non_inferiority, logs["business_safe"]
    if not mine or not theirs:
        seen = "none" if not mine + theirs else f"only {mine + theirs}, all of one version,"
        why = f"of {seen} of {requests} requests the outcome is known: nothing was judged by it"
        return Evidence("business", Verdict.INCONCLUSIVE, why, None, bound, decides=asked.required)
    events = [sum(part.canary_events for part in parts), sum(part.baseline_events for part in parts)]
    said = f"{asked.event}: {events[0]} of {mine} challenger requests with a label, {events[1]} of {theirs} champion's"
    if logs["business"] >= math.log(1 / asked.alpha):
        why = f"{said}: {asked.harm} than chance explains (false once in {1 / asked.alpha:.0f} rollouts)"
        return Evidence("business", Verdict.FAIL, why, _shown(logs["business"]), 1 / asked.alpha)
    if proven >= math.log(bound):
        return Evidence("business", Verdict.PASS, f"{said}: proven no worse than allowed", _shown(proven), bound)
    why = f"{said}: neither harm nor its absence is proven"
    return Evidence("business", Verdict.INCONCLUSIVE, why, _shown(proven), bound, decides=asked.required)


def _sample_ratio(guards: Guards, log_e: float, settings: CanarySettings) -> Evidence:
    bound = 1 / settings.alpha_sample_ratio
    seen = [sum(look.assigned[arm] for look in guards.looks) for arm in (0, 1)]
    total = sum(seen)
    assigned = sum(look.share * sum(look.assigned) for look in guards.looks)
    unit = "users" if any(look.users for look in guards.looks) else "requests"
    said = f"{seen[0]} of {total} {unit} reached the challenger, {assigned:.0f} were assigned to it"
    if log_e >= math.log(bound):
        return Evidence("sample_ratio", Verdict.FAIL, f"the split is broken: {said}", _shown(log_e), bound)
    any_seen = any(look.requests for look in guards.looks)
    verdict = Verdict.PASS if any_seen else Verdict.INCONCLUSIVE
    return Evidence("sample_ratio", verdict, said if any_seen else "no request was seen", _shown(log_e), bound)


def _kill_switch(guards: Guards, settings: CanarySettings) -> Evidence:
    """Outside the statistics. The champion's own share is taken off: trouble that both have is no reason to switch."""
    recent: list[Look] = []
    for look in reversed(guards.looks):
        if recent and sum(item.seconds for item in recent) + look.seconds > settings.kill_window_s:
            break
        recent.append(look)
    shares = []
    for arm in ("canary", "baseline"):
        requests, errors = (sum(getattr(look, f"{arm}_{what}") for look in recent) for what in ("requests", "errors"))
        shares.append(errors / requests if requests >= settings.kill_requests else None)
    canary, baseline = shares
    if canary is None:
        why = f"fewer than {settings.kill_requests} challenger requests in {settings.kill_window_s:g} s: not armed"
        verdict = Verdict.PASS if guards.canary_requests else Verdict.INCONCLUSIVE
        return Evidence("kill_switch", verdict, why, None, settings.kill_share)
    above = canary - (baseline or 0.0)
    why = f"{canary:.1%} of the challenger's latest requests failed, {baseline or 0.0:.1%} of the champion's"
    verdict = Verdict.FAIL if above > settings.kill_share else Verdict.PASS
    return Evidence("kill_switch", verdict, why, above, settings.kill_share)


def safe(guards: Guards, settings: CanarySettings) -> bool:
    """Is every guard's harmlessness proven? No request, no proof."""
    logs, bound = last(guards, settings), math.log(1 / settings.alpha_non_inferiority)
    names = ("errors_safe", "slow_safe", *(["business_safe"] if settings.outcome.required else []))
    return all(logs[name] >= bound for name in names)


def clean_requests_needed(guards: Guards, name: str, settings: CanarySettings) -> int | None:
    """Further challenger requests without an event of this kind that would prove harmlessness; None: over a million."""
    bound, looks = math.log(1 / settings.alpha_non_inferiority), tuple(guards.by_share().values())
    seen = sum(look.seconds for look in looks)
    # A share of its own, so that its pace is not averaged with that of looks before it.
    each_s = seen / guards.canary_requests if guards.canary_requests else 0.0

    def proven(more: int) -> bool:
        clean = Look(AHEAD, more, 0, 0, 0, 0, 0, more * each_s)
        return last(replace(guards, looks=(*looks, clean)), settings)[f"{name}_safe"] >= bound

    few, many = 0, 1 << 20
    if not proven(many):
        return None
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if proven(middle) else (middle + 1, many)
    return many


def _shown(log_e: float) -> float:
    return min(math.exp(min(log_e, math.log(SHOWN))), SHOWN)
