"""The profile room's door."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd

from assets.champion import challenger_of
from assets.decision import Decision
from assets.door import gate, interval, record, room
from assets.model import Model
from assets.profile.cache import (
    DEVICES,
    Profile,
    device_key,
    digest_of,
    from_json,
    is_sound,
    latest_by_device,
    profile_key,
    question_digest,
    to_json,
    trials_from_json,
    trials_key,
    trials_to_json,
)
from assets.profile.choice import answered, choose
from assets.profile.devices import DeviceConfig, all_devices
from assets.profile.learned import plan, usable
from assets.profile.package import build_probe, package_files, warmup_samples
from assets.profile.picture import figure, scatter, table
from assets.profile.points import Failed, Point
from assets.profile.serving_config import choice_of, serving_changes, serving_config, starting_choice
from assets.profile.settings import ProfileSettings, Setting
from assets.scoring import score
from assets.verdict import Verdict
from resources.errors import ModelNotReady, NotFound
from resources.features import FeatureSet, read
from resources.lineage import Lineage, RegisteredVersion
from resources.model_analyzer import Infeasible, Measurement, Outcome
from resources.notes import Notes
from resources.packages import render_config
from resources.probe import largest_difference, probe_request
from resources.profiler import Profiler
from resources.releases import publish_signed
from resources.store import Store
from resources.traffic import Traffic
from resources.triton import TritonServer

CHECKS = {
    "latency": "Does the chosen configuration keep to the latency objective?",
    "noise": "Was one configuration measured again, so that gains can be told from noise?",
    "answers": "Does the chosen configuration answer as ONNX Runtime does?",
}
DAYS_OF_LOG = timedelta(days=7)


def serving_profile(
    model: Model, partitions: dg.PartitionsDefinition, settings: ProfileSettings
) -> dg.AssetsDefinition:
    """`[model]/serving_profile`: how to serve the challenger, measured, in a signed package."""

    @room(
        model,
        "serving_profile",
        partitions,
        "Triton Model Analyzer on the challenger; the chosen configuration, packaged, signed, published.",
        kinds={"triton", "onnx", "s3"},
        after="candidate_model",
        checks=CHECKS,
        gate=True,
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: dg.ResourceParam[Store],
        lineage: dg.ResourceParam[Lineage],
        traffic: dg.ResourceParam[Traffic],
        profiler: dg.ResourceParam[Profiler],
        signing_key: dg.ResourceParam[Path],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        as_of = interval(context).as_of
        challenger = challenger_of(model.name, lineage)
        features = model.registry.resolve(model.feature_set, as_of)
        onnx = lineage.onnx(model.name, challenger.version)
        rows = _rows(model.name, features, settings.probe_rows, store, traffic, as_of)
        answers = score(onnx, rows, features.features)
        probe = build_probe(rows, features.features, answers, settings.probe_tolerance, model.task)

        chosen, version = starting_choice(settings), challenger.version
        base = serving_config(model.name, features.features, chosen, version=version, task=model.task)
        place = profiler.place(_kind(settings))
        question = question_digest(onnx, base, settings, place)
        key = profile_key(model.name, question)
        past, kept = _past(store), True
        try:
            profile = from_json(store.get(key))
            context.log.info(f"measured before with the same bytes on this device: {key}")
        except NotFound:
            here = usable(past.get(place["config_name"], []), place)
            notes = Notes(store, trials_key(model.name, question), context.log.info)
            profile = measure(model.name, onnx, base, probe, settings, profiler, as_of, context.log.info, here, notes)
            kept = _keep(store, profile, question, settings)
            notes.forget()  # what an unquiet machine measured is measured again as well
        inputs = {"challenger": str(challenger.version), "measured": key if kept else "not kept", **place}
        decision = choose(model.name, profile.points, settings, as_of, inputs, profile.failed)
        decision = answered(decision, profile.difference, probe["tolerance"])
        pictures = {"profile.png": figure(decision.details, settings)} if profile.points else {}
        drawn = scatter(decision.details, settings)
        metadata = record(context, decision, store, lineage, artifacts=pictures, picture=drawn)
        metadata["points"] = dg.MetadataValue.md(table(profile.points))
        if decision.verdict is Verdict.PASS:
            devices = all_devices(profile, decision.details["choice"], past, settings)
            files = _files(model, challenger, onnx, features, probe, decision, lineage, devices)
            assignment = publish_signed(store, model.name, challenger.version, files, signing_key)
            metadata |= {"version": challenger.version, "package": assignment.package, "digest": assignment.digest}
        yield from gate(context, decision, metadata, CHECKS)

    return asset


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
    kind = _kind(settings)
    return Profile(
        model=name,
        onnx=digest_of(onnx),
        place=profiler.place(kind),
        kind=kind,
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
        return {**self.base, **serving_changes(choice_of(config, self.settings), _kind(self.settings))}

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


def _kind(settings: ProfileSettings) -> str:
    return f"KIND_{settings.kind.upper()}"


def _past(store: Store) -> dict[str, list[Profile]]:
    """The latest profiles of every known device; what an older version wrote is no experience."""
    found: dict[str, list[Profile]] = {}
    for name, keys in latest_by_device(store.keys(DEVICES)).items():
        for key in keys:
            try:
                found.setdefault(name, []).append(from_json(store.get(key)))
            except ValueError:
                continue
    return found


def _keep(store: Store, profile: Profile, question: str, settings: ProfileSettings) -> bool:
    """As the answer to this question and as experience of its device, if the machine was quiet and it answered."""
    sound = is_sound(profile, settings)
    if sound:
        store.put(profile_key(profile.model, question), to_json(profile))
        store.put(device_key(profile, question), to_json(profile))
    return sound


def _rows(name: str, features: FeatureSet, count: int, store: Store, traffic: Traffic, as_of: datetime) -> pd.DataFrame:
    """The latest complete rows that serving saw; before there is a log, the latest of the feature set."""
    rows = traffic.answers(name, as_of - DAYS_OF_LOG, as_of)
    if rows.empty:
        rows = read(features, store, as_of - DAYS_OF_LOG, as_of, as_of)
    complete = rows.dropna(subset=list(features.features))
    return (complete if len(complete) else rows).tail(count).reset_index(drop=True)


def _files(
    model: Model,
    challenger: RegisteredVersion,
    onnx: bytes,
    features: FeatureSet,
    probe: dict[str, Any],
    decision: Decision,
    lineage: Lineage,
    devices: Mapping[str, DeviceConfig],
) -> dict[str, bytes]:
    choice, name = decision.details["choice"], model.name
    snapshot = lineage.tags(name, challenger.version).get("dataset.digest", "")
    ids = {"snapshot_digest": snapshot, "mlflow_run_id": challenger.run_id}

    def config(choice: Mapping[str, Any], kind: str) -> str:
        made = serving_config(
            name, features.features, choice, version=challenger.version, lineage=ids, kind=kind, task=model.task
        )
        return render_config({**made, "model_warmup": warmup_samples(probe)})

    known = {device: item.to_dict() for device, item in devices.items()}
    return package_files(
        name,
        challenger.version,
        onnx,
        config(choice, "KIND_CPU"),
        probe,
        snapshot_digest=snapshot,
        mlflow_run_id=challenger.run_id,
        profile={"choice": choice, "decision": decision.digest, "devices": known},
        device_configs={device: config(item.choice, item.kind) for device, item in devices.items()},
    )
