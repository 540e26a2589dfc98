"""The profile room's door."""

from collections.abc import Iterator, Mapping
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
    from_json,
    is_sound,
    latest_by_device,
    profile_key,
    question_digest,
    to_json,
    trials_key,
)
from assets.profile.choice import answered, choose
from assets.profile.devices import DeviceConfig, all_devices
from assets.profile.learned import usable
from assets.profile.package import build_probe, package_files, warmup_samples
from assets.profile.picture import figure, scatter, table
from assets.profile.search import measure
from assets.profile.serving_config import serving_config, starting_choice
from assets.profile.settings import ProfileSettings
from assets.scoring import score
from assets.verdict import Verdict
from resources.errors import NotFound
from resources.features import FeatureSet, read
from resources.lineage import Lineage, RegisteredVersion
from resources.notes import Notes
from resources.packages import render_config
from resources.profiler import Profiler
from resources.releases import publish_signed
from resources.store import Store
from resources.traffic import Traffic

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
        place = profiler.place(settings.instance_kind)
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
