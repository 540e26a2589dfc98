"""The snapshot room's door."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
import pandas as pd

from assets.decision import Decision
from assets.door import check_results, interval, room
from assets.model import Model
from assets.snapshot.freshness import CHECKS, freshness
from assets.snapshot.manifest import manifest, write_snapshot
from assets.snapshot.profile import profile_file
from resources.features import FeatureSet, opened
from resources.store import Store


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot that the store keeps. file: its Parquet file on this machine, for as long as the block lasts;
    newest: event time of its latest row, None without one."""

    features: FeatureSet
    key: str
    digest: str
    manifest: dict[str, Any]
    file: Path
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows of a feature set over [start, end) as known at `as_of`, and where the store keeps them."""

    frame: pd.DataFrame
    features: FeatureSet
    key: str
    digest: str
    manifest: dict[str, Any]


@contextmanager
def keeping(model: Model, store: Store, start: datetime, end: datetime, as_of: datetime) -> Iterator[Kept]:
    """Read, write once under the digest of the bytes, and describe. The same rows are the same snapshot.

    Rows stream from the sources through a file into the store: memory does not grow with their number.
    """
    features = model.registry.resolve(model.feature_set, as_of)
    with TemporaryDirectory(prefix="trimtab-snapshot-") as folder:
        file = Path(folder) / "snapshot.parquet"
        with opened(features, store, start, end, as_of) as rows:
            contents = write_snapshot(rows.batches, rows.schema, features.label, file)
        about = manifest(contents, features.name, features.version, start, end, as_of, features.label)
        home = f"features/{features.name}/{features.version}"
        key = f"{home}/{contents.digest}.parquet"
        store.put_file(key, file)
        span = "_".join(f"{at:%Y%m%dT%H%MZ}" for at in (start, end, as_of))
        store.put(f"{home}/manifests/{span}.json", json.dumps(about, sort_keys=True, indent=1).encode())
        yield Kept(features, key, contents.digest, about, file, contents.newest)


def take(model: Model, store: Store, start: datetime, end: datetime, as_of: datetime) -> Snapshot:
    """Keep a snapshot and hold its rows in memory, for rooms that fit on them."""
    with keeping(model, store, start, end, as_of) as kept:
        frame = pd.read_parquet(kept.file)
    return Snapshot(frame, kept.features, kept.key, kept.digest, kept.manifest)


def feature_snapshot(model: Model, partitions: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """`[model]/feature_snapshot`: what was known of the partition at its end."""

    @room(
        model,
        "feature_snapshot",
        partitions,
        "Immutable rows of the feature set over the partition, holding nothing that became known later.",
        kinds={"duckdb", "parquet", "s3"},
        checks=CHECKS,
    )
    def asset(context: dg.AssetExecutionContext, store: dg.ResourceParam[Store]) -> dg.MaterializeResult:
        span = interval(context)
        with keeping(model, store, span.start, span.end, span.as_of) as kept:
            profile_key = kept.key.removesuffix(".parquet") + ".whylogs.bin"
            if not store.keys(profile_key):
                # A whylogs profile carries its creation time: written once, it belongs to the snapshot.
                store.put(profile_key, profile_file(kept.file, list(kept.features.features)))
        found = freshness(kept.newest, span.as_of, kept.features.freshness_hours)
        fresh = Decision(model.name, "snapshot", span.as_of, found.why, (found,))
        return dg.MaterializeResult(
            data_version=dg.DataVersion(kept.digest),
            metadata=_metadata(kept, profile_key, span.as_of),
            check_results=list(check_results(context, fresh, CHECKS)),
        )

    return asset


def _metadata(kept: Kept, profile_key: str, as_of: datetime) -> dict[str, Any]:
    nulls = kept.manifest["null_rates"]
    return {
        "dagster/row_count": kept.manifest["rows"],
        "dagster/column_schema": dg.TableSchema(
            [dg.TableColumn(c.name, c.type, description=c.description) for c in kept.features.columns]
        ),
        "uri": kept.key,
        "profile": profile_key,
        "feature_set": f"{kept.features.name} {kept.features.version}",
        "as_of": dg.MetadataValue.timestamp(as_of),
        "largest_null_rate": round(max(nulls.values(), default=0.0), 4),
        "null_rates": dg.MetadataValue.json({name: round(rate, 4) for name, rate in nulls.items()}),
        "infinite": dg.MetadataValue.json(kept.manifest["infinite"]),
    }
