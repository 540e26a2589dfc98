"""A rollout as people watch it: where it stands, every guard against its bound, what happened so far."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assets.canary.forecast import expected_seconds
from assets.canary.judge import judge
from assets.canary.rollout import Phase, Rollout, deadline, favoured, mirror, warm_until, weights
from assets.verdict import Verdict

COLOURS = {Verdict.PASS: "green", Verdict.INCONCLUSIVE: "dim", Verdict.ERROR: "yellow", Verdict.FAIL: "red"}
EVENTS = 12


def picture(rollout: Rollout, now: datetime) -> RenderableType:
    """All of it, for a terminal or a log."""
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in _facts(rollout, now).items():
        facts.add_row(name, value)
    return Group(Text(_title(rollout), style="bold"), facts, _ladder(rollout), _guards(rollout, now), _diary(rollout))


def plain(rollout: Rollout, now: datetime) -> dict[str, Any]:
    """The same for programs, as plain JSON values."""
    decision = judge(rollout, now, {})
    found = decision.to_dict()
    return {
        "model": rollout.model,
        "version": rollout.version,
        "champion": rollout.champion_version,
        "rehearsal": rollout.rehearsal,
        "phase": rollout.phase.value,
        "rung": rollout.rung,
        "weights": weights(rollout),
        "mirror": mirror(rollout),
        "verdict": found["verdict"],
        "why": found["why"],
        "evidence": found["evidence"],
        "detectable_ratio": found["details"]["detectable_ratio"],
        "expected_seconds": expected_seconds(rollout),
        "coverage": found["details"]["coverage"],
        "cells": rollout.cells,
        "favoured": {"cells": list(rollout.needed), "weights": favoured(rollout)},
        "events": [[at.isoformat(), text] for at, text in rollout.diary],
        "driver": rollout.driver,
        "closed": rollout.closed,
        "warm_until": _iso(warm_until(rollout)),
        "reverted_at": _iso(rollout.reverted_at),
    }


def standing(rollout: Rollout, now: datetime) -> str:
    """Where it stands, in a line for logs."""
    enough = next((item.why for item in judge(rollout, now, {}).evidence if item.name == "enough"), "")
    seconds = expected_seconds(rollout)
    ahead = "" if seconds is None else f"; promoted in about {seconds:.0f} s, if it is harmless"
    split = ", ".join(f"{percent} % {pool}" for pool, percent in weights(rollout).items()) or "no traffic"
    return f"{rollout.phase.value.replace('_', ' ').lower()} at {split}: {enough}{ahead}"


def _title(rollout: Rollout) -> str:
    over = "first release" if rollout.first_release else f"over version {rollout.champion_version}"
    over = "rehearsal: its own challenger" if rollout.rehearsal else over
    word = "TAKEN BACK" if rollout.reverted_at else rollout.phase.value.replace("_", " ")
    return f"{rollout.model} version {rollout.version} ({over}): {word}"


def _facts(rollout: Rollout, now: datetime) -> Mapping[str, str]:
    split = ", ".join(f"{percent} % {pool}" for pool, percent in weights(rollout).items()) or "nothing"
    if mirror(rollout):
        split += f", copies to {mirror(rollout)}"
    if favours := favoured(rollout):
        split += f"; {favours[rollout.challenger_pool]} % of requests that name one of {len(rollout.needed)} cells"
    facts = {"traffic": split}
    if rollout.reason:
        facts["reason"] = rollout.reason
    limit = deadline(rollout)
    if limit is not None:
        facts["this phase"] = f"{(now - rollout.phase_at).total_seconds():.0f} s, given up at {limit:%H:%M:%S} UTC"
        lease = rollout.lease_until
        live = rollout.driver is not None and lease is not None and lease > now
        facts["driver"] = f"{rollout.driver}" if live else "none: a sensor resumes it within a minute"
        if (seconds := expected_seconds(rollout)) is not None:
            facts["ends in about"] = f"{seconds:.0f} s, by the traffic so far, if it is harmless"
    if warm := warm_until(rollout):
        facts["rollback"] = f"one change of weights until {warm:%Y-%m-%d %H:%M} UTC: trimtab rollback {rollout.model}"
    return facts


def _ladder(rollout: Rollout) -> Text:
    line = Text("ladder  ")
    for index, rung in enumerate(rollout.settings.ladder):
        done = index < rollout.rung or rollout.phase is Phase.PROMOTED
        style = "bold reverse" if index == rollout.rung and not rollout.ended else "green" if done else "dim"
        line.append(f" {rung if rung == 'mirror' else f'{rung} %'} ", style)
    return line


def _guards(rollout: Rollout, now: datetime) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("guard", "verdict", "statistic", "bound", "why"):
        table.add_column(title, overflow="fold")
    for item in judge(rollout, now, {}).evidence:
        statistic, bound = ("–" if x is None else f"{x:.4g}" for x in (item.statistic, item.threshold))
        table.add_row(item.name, Text(item.verdict.name, COLOURS[item.verdict]), statistic, bound, item.why)
    return table


def _diary(rollout: Rollout) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for at, text in rollout.diary[-EVENTS:]:
        table.add_row(Text(f"{at:%H:%M:%S}", "dim"), text)
    return table


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None
