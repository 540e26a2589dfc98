"""Which package of a version was published last: a pointer beside the immutable packages."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from resources.errors import NotFound
from resources.packages import publish, write_files
from resources.pools import Assignment
from resources.signing import sign
from resources.store import Store


def release_key(model: str, version: int, tier: str = "") -> str:
    """The pointer's key. tier: of a cheaper copy of the version, as `resources.pools.LITE`.

    >>> release_key("m", 7), release_key("m", 7, "lite")
    ('packages/m/7.json', 'packages/m/7.lite.json')
    """
    return f"packages/{model}/{version}{'.' * bool(tier)}{tier}.json"


def published(store: Store, model: str, version: int, tier: str = "") -> tuple[Assignment, datetime]:
    """The package of a version and when it was published. `NotFound` before its profile passed, or its copy did."""
    pointer = store.pointer(release_key(model, version, tier))
    if pointer is None:
        room = "fallback_copy" if tier else "serving_profile"
        raise NotFound(f"{model} version {version} has no {tier or 'signed'} package: materialize its {room}")
    found = json.loads(pointer.body)
    return Assignment(version, found["package"], found["digest"]), datetime.fromisoformat(found["published_at"])


def publish_signed(
    store: Store, model: str, version: int, files: Mapping[str, bytes], signing_key: Path, tier: str = ""
) -> Assignment:
    """Sign a package's files, put them into the store, and let the version's pointer name them."""
    with tempfile.TemporaryDirectory(prefix="trimtab-package-") as folder:
        write_files(Path(folder), files)
        sign(Path(folder), signing_key)
        assignment = publish(store, model, version, Path(folder))
    key = release_key(model, version, tier)
    pointer = store.pointer(key)
    body = json.dumps({**asdict(assignment), "published_at": datetime.now(UTC).isoformat()}).encode()
    store.swap(key, body, pointer.etag if pointer else None)
    return assignment
