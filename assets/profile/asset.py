"""The profile room's door."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
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
)
from assets.profile.choice import answered, choose
from assets.profile.devices import DeviceConfig, device_configs
from assets.profile.learned import plan, usable
from assets.profile.package import build_probe, package_files, warmup_samples
from assets.profile.picture import figure, scatter
from assets.profile.points import Failed, Point
from assets.profile.serving_config import choice_of, serving_changes, serving_config, starting_choice
from assets.profile.settings import ProfileSettings, Setting
from assets.scoring import score
from assets.verdict import Verdict
from resources.errors import ModelNotReady, NotFound
from resources.features import FeatureSet, read
from resources.lineage import Lineage, RegisteredVersion
from resources.model_analyzer import Infeasible, Measurement, Outcome
from resources.packages import publish, render_config, write_files
from resources.pools import Assignment
from resources.probe import largest_difference, probe_request
from resources.profiler import Profiler
from resources.signing import sign
from resources.store import Store
from resources.traffic import Traffic
from resources.triton import TritonServer

CHECKS = ("latency", "noise", "answers")
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
            profile = measure(model.name, onnx, base, probe, settings, profiler, as_of, context.log.info, here)
            kept = _keep(store, profile, question, settings)
        inputs = {"challenger": str(challenger.version), "measured": key if kept else "not kept", **place}
        decision = choose(model.name, profile.points, settings, as_of, inputs, profile.failed)
        decision = answered(decision, profile.difference, probe["tolerance"])
        pictures = {"profile.png": figure(decision.details, settings)} if profile.points else {}
        drawn = scatter(decision.details, settings)
        metadata = record(context, decision, store, lineage, artifacts=pictures, picture=drawn)
        metadata["points"] = dg.MetadataValue.md(_table(profile.points))
        if decision.verdict is Verdict.PASS:
            devices = _devices(profile, decision, past, settings)
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
) -> Profile:
    """The points, and how far the configuration chosen from them answers from ONNX Runtime, on the same Triton.

    base: of the default configuration; past: usable profiles of this device, which order the search and may end it.
    """
    differences: list[float] = []
    kind = _kind(settings)
    named = {config.name: config for config in settings.candidates}
    configs = {label: base | serving_changes(choice_of(config, settings), kind) for label, config in named.items()}

    def next_ones(outcomes: Sequence[Outcome]) -> list[str]:
        return [config.name for config in plan(settings, past, _points(outcomes, named), _failed(outcomes, named))]

    def ask(server: TritonServer, outcomes: list[Outcome]) -> None:
        points, failed = _points(outcomes, named), _failed(outcomes, named)
        chosen = choose(name, points, settings, as_of, {}, failed).details.get("choice")
        if chosen is None:
            return
        try:
            config = configs[Setting(*(chosen[field] for field in Setting._fields)).name]
            server.load(name, config | {"version_policy": {"specific": {"versions": [1]}}})
            differences.append(largest_difference(probe, server.infer(name, probe_request(probe), 1), 1))
        except ModelNotReady as error:
            progress(f"the chosen configuration does not answer as it should: {error}")
            differences.append(math.inf)

    outcomes = profiler.sweep(name, onnx, configs, next_ones, probe, settings.concurrency, progress, ask)
    return Profile(
        model=name,
        onnx=digest_of(onnx),
        place=profiler.place(kind),
        kind=kind,
        as_of=as_of.isoformat(),
        points=tuple(_points(outcomes, named)),
        failed=tuple(_failed(outcomes, named)),
        difference=differences[0] if differences else None,
    )


def _kind(settings: ProfileSettings) -> str:
    return f"KIND_{settings.kind.upper()}"


def _points(outcomes: Sequence[Outcome], named: Mapping[str, Setting]) -> list[Point]:
    return [
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
    ]


def _failed(outcomes: Sequence[Outcome], named: Mapping[str, Setting]) -> list[Failed]:
    return [Failed(named[item.name], item.reason) for item in outcomes if isinstance(item, Infeasible)]


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


def _devices(
    profile: Profile, decision: Decision, past: Mapping[str, list[Profile]], settings: ProfileSettings
) -> dict[str, DeviceConfig]:
    """How to serve on this device as just chosen, on the others as known, on those the spec names by default."""
    choice = decision.details["choice"]
    gpus = {gpu: DeviceConfig(gpu, "KIND_GPU", "default", choice) for gpu in settings.gpus}
    known = device_configs(past, profile.onnx, profile.place["triton"], settings)
    here = DeviceConfig(profile.place["device"], profile.kind, "measured", choice)
    return gpus | known | {profile.place["config_name"]: here}


def package_key(model: str, version: int) -> str:
    """The pointer that says which package of a version was published last."""
    return f"packages/{model}/{version}.json"


def published(store: Store, model: str, version: int) -> tuple[Assignment, datetime]:
    """The package of a version and when it was published. `NotFound` before its profile passed."""
    pointer = store.pointer(package_key(model, version))
    if pointer is None:
        raise NotFound(f"{model} version {version} has no package: materialize its serving_profile")
    found = json.loads(pointer.body)
    return Assignment(version, found["package"], found["digest"]), datetime.fromisoformat(found["published_at"])


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


def publish_signed(store: Store, name: str, version: int, files: dict[str, bytes], signing_key: Path) -> Assignment:
    """Sign a package's files, put them into the store, and let the version's pointer name them."""
    with tempfile.TemporaryDirectory(prefix="trimtab-package-") as folder:
        write_files(Path(folder), files)
        sign(Path(folder), signing_key)
        assignment = publish(store, name, version, Path(folder))
    pointer = store.pointer(package_key(name, version))
    body = json.dumps({**asdict(assignment), "published_at": datetime.now(UTC).isoformat()}).encode()
    store.swap(package_key(name, version), body, pointer.etag if pointer else None)
    return assignment


def _table(points: Sequence[Point]) -> str:
    rows = [
        f"| {p.instances} | {p.max_queue_delay_us} | {p.intra_op_threads} | {p.max_batch_size} | {p.concurrency} "
        f"| {p.throughput_per_s:.0f} | {p.p95_latency_ms:.2f} | {p.p99_latency_ms:.2f} |"
        for p in points
    ]
    names = ("instances", "delay µs", "threads", "batch", "clients", "requests/s", "p95 ms", "p99 ms")
    head = [f"| {' | '.join(names)} |", "| ---: " * len(names) + "|"]
    return "\n".join([*head, *rows])
