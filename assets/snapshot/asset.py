"""The snapshot room's door."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg
import pandas as pd

from assets.door import interval, room
from assets.model import Model
from assets.snapshot.manifest import manifest, snapshot_parquet
from assets.snapshot.profile import profile
from resources.features import FeatureSet, read
from resources.store import Store


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows of a feature set over [start, end) as known at `as_of`, and where the store keeps them."""

    frame: pd.DataFrame
    features: FeatureSet
    key: str
    digest: str
    manifest: dict[str, Any]


def take(model: Model, store: Store, start: datetime, end: datetime, as_of: datetime) -> Snapshot:
    """Read, write once under the digest of the bytes, and describe. The same rows are the same snapshot."""
    features = model.registry.resolve(model.feature_set, as_of)
    frame = read(features, store, start, end, as_of)
    body = snapshot_parquet(frame)
    about = manifest(frame, body, features.name, features.version, start, end, as_of, features.label)
    home = f"features/{features.name}/{features.version}"
    key = f"{home}/{about['digest']}.parquet"
    store.put(key, body)
    span = "_".join(f"{at:%Y%m%dT%H%MZ}" for at in (start, end, as_of))
    store.put(f"{home}/manifests/{span}.json", json.dumps(about, sort_keys=True, indent=1).encode())
    return Snapshot(frame, features, key, about["digest"], about)


def feature_snapshot(model: Model, partitions: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    """`[model]/feature_snapshot`: what was known of the partition at its end."""

    @room(
        model,
        "feature_snapshot",
        partitions,
        "Immutable rows of the feature set over the partition, holding nothing that became known later.",
        kinds={"duckdb", "parquet", "s3"},
    )
    def asset(context: dg.AssetExecutionContext, store: dg.ResourceParam[Store]) -> dg.MaterializeResult:
        span = interval(context)
        snapshot = take(model, store, span.start, span.end, span.as_of)
        profile_key = snapshot.key.removesuffix(".parquet") + ".whylogs.bin"
        if not store.keys(profile_key):
            # A whylogs profile carries its creation time: written once, it belongs to the snapshot.
            store.put(profile_key, profile(snapshot.frame[list(snapshot.features.features)]))
        nulls = snapshot.manifest["null_rates"]
        return dg.MaterializeResult(
            data_version=dg.DataVersion(snapshot.digest),
            metadata={
                "dagster/row_count": len(snapshot.frame),
                "dagster/column_schema": dg.TableSchema(
                    [dg.TableColumn(c.name, c.type, description=c.description) for c in snapshot.features.columns]
                ),
                "uri": snapshot.key,
                "profile": profile_key,
                "feature_set": f"{snapshot.features.name} {snapshot.features.version}",
                "as_of": dg.MetadataValue.timestamp(span.as_of),
                "largest_null_rate": round(max(nulls.values(), default=0.0), 4),
                "null_rates": dg.MetadataValue.json({name: round(rate, 4) for name, rate in nulls.items()}),
            },
        )

    return asset
