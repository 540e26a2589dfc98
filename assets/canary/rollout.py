"""The rollout, one value, and what it asks of the world. Whoever drives it applies that; `step` moves it on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from assets.canary.coverage import Coverage
from assets.canary.events import MirrorSeen
from assets.canary.guards import Guards
from assets.canary.outcomes import Span
from assets.canary.settings import MIRROR, CanarySettings
from assets.verdict import Verdict

# Lines of the rollout's own diary that are kept.
DIARY = 100
INSTANTS = ("started_at", "phase_at", "lease_until", "reverted_at")


class Phase(StrEnum):
    LOADING = "LOADING"
    MIRRORING = "MIRRORING"
    ADVANCING = "ADVANCING"
    HOLDING = "HOLDING"
    PROMOTING = "PROMOTING"
    PROMOTED = "PROMOTED"
    ROLLING_BACK = "ROLLING_BACK"
    ROLLED_BACK = "ROLLED_BACK"


TERMINAL = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK})


@dataclass(frozen=True, slots=True)
class Rollout:
    """Everything a driver needs to go on where another one died. It keeps the settings it began with.

    rung: index into settings.ladder, -1 before the first. confirmed: the gateway serves this rung's weights.
    phase_at: when this phase, or this rung, began. slow_ms: frozen at the start. closed: what follows the end
    (aliases, record) is done as well. partition: Dagster's, of the run that began it. reverted_at: when
    somebody ordered the promoted version back, within the rollback window. rehearsal: the champion as its own
    challenger, taken back instead of promoted. coverage: None where the spec asks for none; cells: key of the cells
    that it counts; needed: cells whose requests the gateway favours now. spans: when requests were assigned at which
    share, for outcomes that become known later.
    """

    model: str
    version: int
    challenger_pool: str
    package: str
    digest: str
    settings: CanarySettings
    started_at: datetime
    phase_at: datetime
    champion_version: int | None = None
    champion_pool: str | None = None
    slow_ms: float = 0.0
    phase: Phase = Phase.LOADING
    rung: int = -1
    confirmed: bool = False
    guards: Guards = field(default_factory=Guards)
    mirrored: MirrorSeen = field(default_factory=MirrorSeen)
    verdict: Verdict | None = None
    reason: str = ""
    diary: tuple[tuple[datetime, str], ...] = ()
    driver: str | None = None
    lease_until: datetime | None = None
    closed: bool = False
    partition: str = ""
    reverted_at: datetime | None = None
    rehearsal: bool = False
    coverage: Coverage | None = None
    cells: str = ""
    needed: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()

    @property
    def first_release(self) -> bool:
        return self.champion_pool is None

    @property
    def ended(self) -> bool:
        return self.phase in TERMINAL

    @property
    def rung_requests(self) -> int:
        """Requests of both arms seen on this rung."""
        look = self.guards.by_share().get(share(self))
        return look.requests if look and share(self) > 0 else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in INSTANTS:
            plain[name] = plain[name].isoformat() if plain[name] else None
        return plain | {
            "settings": self.settings.model_dump(mode="json"),
            "phase": self.phase.value,
            "guards": self.guards.to_dict(),
            "mirrored": asdict(self.mirrored),
            "needed": list(self.needed),
            "spans": [[span.share, span.start.isoformat(), span.end.isoformat()] for span in self.spans],
            "coverage": None if self.coverage is None else self.coverage.to_dict(),
            "verdict": None if self.verdict is None else self.verdict.name,
            "diary": [[at.isoformat(), text] for at, text in self.diary],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The rollout that `to_dict` wrote."""
        times = {name: _instant(value.get(name)) for name in INSTANTS}
        return cls(
            **dict(value)
            | times
            | {
                "settings": CanarySettings.model_validate(value["settings"]),
                "phase": Phase(value["phase"]),
                "guards": Guards.from_dict(value["guards"]),
                "mirrored": MirrorSeen(**value["mirrored"]),
                "needed": tuple(value.get("needed", ())),
                "spans": tuple(_span(*kept) for kept in value.get("spans", ())),
                "coverage": Coverage.from_dict(value["coverage"]) if value.get("coverage") else None,
                "verdict": None if value["verdict"] is None else Verdict[value["verdict"]],
                "diary": tuple((datetime.fromisoformat(at), text) for at, text in value["diary"]),
            }
        )


def _span(share: float, start: str, end: str) -> Span:
    return Span(share, datetime.fromisoformat(start), datetime.fromisoformat(end))


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def begin(
    model: str,
    version: int,
    challenger_pool: str,
    package: str,
    digest: str,
    settings: CanarySettings,
    now: datetime,
    *,
    champion: tuple[int, str] | None = None,
    slow_ms: float | None = None,
    partition: str = "",
    rehearsal: bool = False,
    coverage: tuple[str, Coverage] | None = None,
) -> Rollout:
    """A new rollout. champion: its version and pool, None for a first release; slow_ms: see slow_threshold_ms;
    coverage: key of the cells and the count that begins with them.
    """
    if champion and champion[1] == challenger_pool:
        raise ValueError(f"{model}: challenger and champion can't share the pool {challenger_pool!r}")
    champion_version, champion_pool = champion or (None, None)
    rollout = Rollout(
        model=model,
        version=version,
        challenger_pool=challenger_pool,
        package=package,
        digest=digest,
        settings=settings,
        started_at=now,
        phase_at=now,
        champion_version=champion_version,
        champion_pool=champion_pool,
        slow_ms=settings.slow_ms if slow_ms is None else slow_ms,
        guards=Guards.begin(settings),
        partition=partition,
        rehearsal=rehearsal,
        cells=coverage[0] if coverage else "",
        coverage=coverage[1] if coverage else None,
    )
    return noted(rollout, now, f"loading version {version} into {challenger_pool}")


def weights(rollout: Rollout) -> dict[str, int]:
    """Pool -> percent that the gateway has to serve now: applied again by whoever resumes, it changes nothing.

    Empty for a first release that serves nothing (yet, or any more).
    """
    percent = round(100 * share(rollout))
    asked = {rollout.challenger_pool: percent}
    if rollout.champion_pool is not None:
        asked[rollout.champion_pool] = 100 - percent
    return {pool: weight for pool, weight in asked.items() if weight > 0}


def mirror(rollout: Rollout) -> str | None:
    """The pool that gets copies of requests now."""
    return rollout.challenger_pool if rollout.phase is Phase.MIRRORING else None


def standby(rollout: Rollout) -> str | None:
    """The pool that gets no share and is warm: there the gateway tries again what the other one did not answer.

    While both pools have a share each is the other's.
    """
    return rollout.champion_pool if rollout.phase in (Phase.PROMOTING, Phase.PROMOTED) else None


def share(rollout: Rollout) -> float:
    """Share of the challenger, 0 to 1, that `weights` asks for."""
    if rollout.reverted_at is not None:
        return 0.0
    if rollout.phase in (Phase.PROMOTING, Phase.PROMOTED):
        return 1.0
    if rollout.phase in (Phase.ADVANCING, Phase.HOLDING):
        rung = rollout.settings.ladder[rollout.rung]
        return 0.0 if rung == MIRROR else rung / 100
    return 0.0


def favoured(rollout: Rollout) -> dict[str, int]:
    """Weights of requests that name one of the cells in `needed`; empty while none is favoured."""
    percent = rollout.settings.coverage.need_percent
    if not rollout.needed or rollout.champion_pool is None:
        return {}
    return {rollout.challenger_pool: percent, rollout.champion_pool: 100 - percent}


def in_need(rollout: Rollout) -> tuple[int, ...]:
    """Cells that this rung should favour: those with traffic that the challenger has seen too seldom so far.

    What is routed stays as it is until a twentieth of its traffic is covered: each change costs the time to confirm it.
    """
    limits = rollout.settings.coverage
    climbing = rollout.phase in (Phase.ADVANCING, Phase.HOLDING)
    if rollout.coverage is None or not climbing or 100 * share(rollout) >= limits.need_percent:
        return ()
    rows, seen = rollout.coverage.reference, rollout.coverage.seen
    wanted = tuple(cell for cell in range(len(rows)) if rows[cell] and seen[cell] < limits.least)
    routed, left = (sum(rows[cell] for cell in cells) for cells in (rollout.needed, wanted))
    return rollout.needed if wanted and left > 0.95 * routed > 0 else wanted


def deadline(rollout: Rollout) -> datetime | None:
    """When this phase has taken too long; None once it has ended."""
    settings = rollout.settings
    seconds = {
        Phase.LOADING: settings.load_deadline_s,
        Phase.HOLDING: settings.hold_deadline_s,
        Phase.ROLLING_BACK: settings.rollback_deadline_s,
    }.get(rollout.phase, settings.rung_deadline_s)
    return None if rollout.ended else rollout.phase_at + timedelta(seconds=seconds)


def overdue(rollout: Rollout, now: datetime) -> bool:
    """Has the deadline passed? A rollback that is overdue goes on; it is time to call somebody."""
    limit = deadline(rollout)
    return limit is not None and now > limit


def warm_until(rollout: Rollout) -> datetime | None:
    """Until when both versions stay loaded, so that rollback is one weight change; None unless promoted over one."""
    if rollout.phase is not Phase.PROMOTED or rollout.first_release or rollout.reverted_at is not None:
        return None
    return rollout.phase_at + timedelta(hours=rollout.settings.rollback_window_hours)


def noted(rollout: Rollout, now: datetime, note: str) -> Rollout:
    """With one line more in its diary."""
    return replace(rollout, diary=(*rollout.diary, (now, note))[-DIARY:])
