"""The fallback room's door."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import numpy as np
import pandas as pd

from assets.champion import champion
from assets.decision import Decision
from assets.door import gate, interval, record, room
from assets.fallback.judge import Copy, judge
from assets.fallback.package import copy_files
from assets.fallback.settings import FallbackSettings
from assets.fallback.trees import fewer_trees
from assets.model import Model
from assets.retrain.export import to_onnx
from assets.retrain.fit import time_split
from assets.retrain.settings import TrainingSettings
from assets.scoring import Scorer
from assets.snapshot.asset import take
from assets.verdict import Verdict
from resources.features import FeatureSet
from resources.gateway import Fallback, Gateway
from resources.lineage import Lineage
from resources.packages import unpack
from resources.pools import LITE, Assignment, Pools
from resources.releases import publish_signed, published
from resources.store import Store

CHECKS = {"loss": "Does the cheaper copy lose no more than the spec allows, beside its original?"}


def fallback_copy(
    model: Model, partitions: dg.PartitionsDefinition, settings: FallbackSettings, training: TrainingSettings
) -> dg.AssetsDefinition:
    """`[model]/fallback_copy`: fewer trees of the champion, judged, packaged, served in the lite tier."""

    @room(
        model,
        "fallback_copy",
        partitions,
        "A cheaper copy of the champion: judged for its loss, served in the lite tier for times of overload.",
        kinds={"onnx", "triton", "envoy"},
        after="canary_rollout",
        checks=CHECKS,
        gate=True,
    )
    def asset(
        context: dg.AssetExecutionContext,
        store: dg.ResourceParam[Store],
        lineage: dg.ResourceParam[Lineage],
        pools: dg.ResourceParam[Pools],
        gateway: dg.ResourceParam[Gateway],
        signing_key: dg.ResourceParam[Path],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        as_of = interval(context).as_of
        current = champion(model.name, lineage, store)
        if current is None:
            raise dg.Failure(f"{model.name} has no champion: roll one out first")
        decision = judged(model, current.version, store, settings, training, as_of)
        metadata = record(context, decision, store, lineage)
        if decision.verdict is Verdict.PASS:
            features = model.registry.resolve(model.feature_set, as_of)
            lite, trees, _ = fewer_trees(lineage.onnx(model.name, current.version), float(decision.details["choice"]))
            original = published(store, model.name, current.version)[0]
            assignment = package(store, model.name, original, lite, features, trees, signing_key)
            pools.assign(LITE, model.name, assignment)
            context.log.info(f"in the lite tier after {pools.wait_ready(LITE, model.name, assignment):.1f} s")
            gateway.set_fallback(model.name, Fallback(settings.after_ms))
            metadata |= {"version": current.version, "package": assignment.package, "trees": trees}
        else:
            # What is there is the copy of an earlier champion.
            gateway.set_fallback(model.name, None)
        yield from gate(context, decision, metadata, CHECKS)

    return asset


def judged(
    model: Model, version: int, store: Store, settings: FallbackSettings, training: TrainingSettings, as_of: datetime
) -> Decision:
    """How many trees may go, on days that the fit did not see: the champion's own recipe without them stands in."""
    snapshot = take(model, store, as_of - timedelta(days=training.lookback_days), as_of, as_of)
    features, label = snapshot.features, snapshot.features.label
    earlier, holdout = time_split(snapshot.frame, label, as_of, settings.holdout_days)
    inputs = {"champion": str(version), "snapshot": snapshot.digest, "recipe": model.recipe().digest}
    if earlier.empty or holdout.empty:
        return judge(model.name, np.empty(0), np.empty(0), np.empty(0), [], settings, as_of, inputs)
    onnx = to_onnx(model.fit(earlier, features, training.seed), features.features)
    scores, cost = _timed(onnx, holdout, features)
    copies = []
    for share in settings.tree_shares:
        mine, spent = _timed(fewer_trees(onnx, share)[0], holdout, features)
        copies.append(Copy(share, mine, spent / cost))
    labels = holdout[label].to_numpy(dtype=float)
    days = pd.to_datetime(holdout["event_time"]).dt.floor("D").to_numpy()
    return judge(model.name, labels, days, scores, copies, settings, as_of, inputs)


def _timed(onnx: bytes, rows: pd.DataFrame, features: FeatureSet) -> tuple[np.ndarray, float]:
    """Answers, and seconds of the fastest of three passes: what else runs here only ever adds."""
    scorer, seconds = Scorer(onnx), []
    scores = scorer(rows, features.features)
    for _ in range(3):
        started = time.perf_counter()
        scorer(rows, features.features)
        seconds.append(time.perf_counter() - started)
    return scores, max(min(seconds), 1e-9)


def package(
    store: Store, name: str, original: Assignment, onnx: bytes, features: FeatureSet, trees: int, signing_key: Path
) -> Assignment:
    """The copy's package from its original's, signed and published under the same version."""
    with TemporaryDirectory(prefix="trimtab-fallback-") as folder:
        unpack(store.get(original.package), Path(folder))
        old = {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
    files = copy_files(old, original.version, onnx, features.features, trees)
    return publish_signed(store, name, original.version, files, signing_key, LITE)
