"""The profile room's door."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from assets.profile.cache import from_json, profile_key, to_json
from assets.profile.choice import Point, answered, choose
from assets.profile.package import build_probe, package_files, warmup_samples
from assets.profile.serving_config import chosen_changes, serving_config, starting_choice
from assets.profile.settings import ProfileSettings
from assets.scoring import score
from assets.verdict import Verdict
from resources.errors import ModelNotReady, NotFound
from resources.features import FeatureSet, read
from resources.lineage import Lineage, RegisteredVersion
from resources.model_analyzer import Measurement
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
        probe = build_probe(rows, features.features, answers, settings.probe_tolerance)

        base = serving_config(model.name, features.features, starting_choice(settings), version=challenger.version)
        place = profiler.place()
        inputs = {"challenger": str(challenger.version), **place}
        key = profile_key(model.name, onnx, base, settings, place)
        try:
            points, difference = from_json(store.get(key))
            context.log.info(f"measured before with the same bytes on this device: {key}")
        except NotFound:
            points, difference = measure(model.name, onnx, base, probe, settings, profiler, as_of, context.log.info)
            if difference is not None and math.isfinite(difference):
                store.put(key, to_json(points, difference, place))
        decision = choose(model.name, points, settings, as_of, inputs | {"measured": key})
        decision = answered(decision, difference, settings.probe_tolerance)
        metadata = record(context, decision, store, lineage)
        metadata["points"] = dg.MetadataValue.md(_table(points))
        if decision.verdict is Verdict.PASS:
            files = _files(model.name, challenger, onnx, features, probe, decision, lineage, settings.gpus)
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
) -> tuple[list[Point], float | None]:
    """The points, and how far the configuration chosen from them answers from ONNX Runtime, on the same Triton."""
    differences: list[float] = []

    def ask(server: TritonServer, measured: list[Measurement]) -> None:
        chosen = choose(name, _points(measured), settings, as_of, {}).details.get("choice")
        if chosen is None:
            return
        try:
            changes = chosen_changes(chosen)
            server.load(name, base | changes | {"version_policy": {"specific": {"versions": [1]}}})
            differences.append(largest_difference(probe, server.infer(name, probe_request(probe), 1), 1))
        except ModelNotReady as error:
            progress(f"the chosen configuration does not answer as it should: {error}")
            differences.append(math.inf)

    measured = profiler.sweep(
        name,
        onnx,
        base,
        probe,
        settings.instances,
        settings.queue_delays_us,
        settings.concurrency,
        progress,
        ask,
    )
    return _points(measured), differences[0] if differences else None


def _points(measured: Sequence[Measurement]) -> list[Point]:
    return [
        Point(
            instances=m.config.instances,
            max_queue_delay_us=m.config.max_queue_delay_us,
            concurrency=m.concurrency,
            throughput_per_s=m.throughput_per_s,
            p99_latency_ms=m.p99_latency_ms,
            source=m.source,
        )
        for m in measured
    ]


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
    name: str,
    challenger: RegisteredVersion,
    onnx: bytes,
    features: FeatureSet,
    probe: dict[str, Any],
    decision: Decision,
    lineage: Lineage,
    gpus: Sequence[str],
) -> dict[str, bytes]:
    choice = decision.details["choice"]
    snapshot = lineage.tags(name, challenger.version).get("dataset.digest", "")
    ids = {"snapshot_digest": snapshot, "mlflow_run_id": challenger.run_id}

    def config(kind: str) -> str:
        made = serving_config(name, features.features, choice, version=challenger.version, lineage=ids, kind=kind)
        return render_config({**made, "model_warmup": warmup_samples(probe)})

    return package_files(
        name,
        challenger.version,
        onnx,
        config("KIND_CPU"),
        probe,
        snapshot_digest=snapshot,
        mlflow_run_id=challenger.run_id,
        profile={"choice": choice, "decision": decision.digest},
        # Not measured there: the choice of the device at hand is the documented default of one never seen.
        device_configs={gpu: config("KIND_GPU") for gpu in gpus},
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


def _table(points: list[Point]) -> str:
    rows = [
        f"| {p.instances} | {p.max_queue_delay_us} | {p.concurrency} "
        f"| {p.throughput_per_s:.0f} | {p.p99_latency_ms:.2f} |"
        for p in points
    ]
    head = ["| instances | queue delay µs | clients | requests/s | p99 ms |", "| ---: | ---: | ---: | ---: | ---: |"]
    return "\n".join([*head, *rows])
