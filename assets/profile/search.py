"""The other half of the door: one search on a Triton of its own, what is measured next, what is noted of it, and what
the chosen configuration answers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from assets.profile.cache import Profile, digest_of, trials_from_json, trials_to_json
from assets.profile.choice import choose
from assets.profile.learned import plan
from assets.profile.points import Failed, Point
from assets.profile.serving_config import choice_of, serving_changes
from assets.profile.settings import ProfileSettings, Setting
from resources.errors import ModelNotReady
from resources.model_analyzer import Infeasible, Measurement, Outcome
from resources.notes import Notes
from resources.probe import largest_difference, probe_request
from resources.profiler import Profiler
from resources.triton import TritonServer


def measure(
    name: str,
    onnx: bytes,
    base: dict[str, Any],
    probe: dict[str, Any],
    settings: ProfileSettings,
    profiler: Profiler,
    as_of: datetime,
    progress: Callable[[str], None],
    past: Sequence[Profile] = (),
    notes: Notes | None = None,
) -> Profile:
    """The points, and how far the configuration chosen from them answers from ONNX Runtime, on the same Triton.

    base: of the default configuration; past: usable profiles of this device, which order the search and may end it;
    notes: of a sweep of the same question that was interrupted, and of this one should it be.
    """
    earlier = trials_from_json(notes.read(), settings) if notes else ()
    if earlier:
        progress(f"{len(earlier)} trials of a sweep that was interrupted count: {', '.join(p.source for p in earlier)}")
    search = _Search(name, base, probe, settings, as_of, progress, past, notes, earlier)
    configs = {label: search.served_by(config) for label, config in search.named.items()}
    outcomes = profiler.sweep(name, onnx, configs, search.next_ones, probe, settings.concurrency, progress, search.ask)
    return Profile(
        model=name,
        onnx=digest_of(onnx),
        place=profiler.place(settings.instance_kind),
        kind=settings.instance_kind,
        as_of=as_of.isoformat(),
        points=search.points(outcomes),
        failed=search.failed(outcomes),
        difference=search.difference,
    )


@dataclass
class _Search:
    """One search while it runs. earlier: points of one that was interrupted; difference: of the chosen answers."""

    name: str
    base: Mapping[str, Any]
    probe: Mapping[str, Any]
    settings: ProfileSettings
    as_of: datetime
    progress: Callable[[str], None]
    past: Sequence[Profile]
    notes: Notes | None
    earlier: tuple[Point, ...]
    difference: float | None = None

    @property
    def named(self) -> dict[str, Setting]:
        return {config.name: config for config in self.settings.candidates}

    def served_by(self, config: Setting) -> dict[str, Any]:
        return {**self.base, **serving_changes(choice_of(config, self.settings), self.settings.instance_kind)}

    def points(self, outcomes: Sequence[Outcome]) -> tuple[Point, ...]:
        named = self.named
        fresh = (
            Point(
                **named[m.name]._asdict(),
                concurrency=m.concurrency,
                throughput_per_s=m.throughput_per_s,
                p95_latency_ms=m.p95_latency_ms,
                p99_latency_ms=m.p99_latency_ms,
                source=m.source,
            )
            for m in outcomes
            if isinstance(m, Measurement)
        )
        return (*self.earlier, *fresh)

    def failed(self, outcomes: Sequence[Outcome]) -> tuple[Failed, ...]:
        named = self.named
        return tuple(Failed(named[item.name], item.reason) for item in outcomes if isinstance(item, Infeasible))

    def next_ones(self, outcomes: Sequence[Outcome]) -> list[str]:
        """What is still to measure. What was measured is noted; what failed may have been the interruption's doing."""
        points, failed = self.points(outcomes), self.failed(outcomes)
        if self.notes and len(points) > len(self.earlier):
            self.notes.write(trials_to_json(points))
        return [config.name for config in plan(self.settings, self.past, points, failed, len(self.earlier))]

    def ask(self, server: TritonServer, outcomes: Sequence[Outcome]) -> None:
        """Let the chosen configuration answer the probe."""
        points, failed = self.points(outcomes), self.failed(outcomes)
        chosen = choose(self.name, points, self.settings, self.as_of, {}, failed).details.get("choice")
        if chosen is None:
            return
        try:
            config = self.served_by(Setting(*(chosen[field] for field in Setting._fields)))
            server.load(self.name, config | {"version_policy": {"specific": {"versions": [1]}}})
            answer = server.infer(self.name, probe_request(self.probe), 1)
            self.difference = largest_difference(self.probe, answer, 1)
        except ModelNotReady as error:
            self.progress(f"the chosen configuration does not answer as it should: {error}")
            self.difference = math.inf
