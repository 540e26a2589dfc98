"""The champion and the challenger as the rooms see them: aliases on registered versions."""

from dataclasses import dataclass

from resources.errors import LineageError, NotFound
from resources.lineage import Lineage, RegisteredVersion
from resources.store import Store


@dataclass(frozen=True, slots=True)
class Champion:
    """A registered version that serves, and the reference it was trained against."""

    version: int
    run_id: str
    reference: bytes


def reference_key(model: str, version: int | str) -> str:
    """Where the reference of a version lies."""
    return f"references/{model}/{version}.npz"


def champion(model: str, lineage: Lineage, store: Store) -> Champion | None:
    """The version with the alias champion; None before the first release."""
    registered = lineage.version_of(model, "champion")
    return None if registered is None else champion_version(model, registered.version, store, registered.run_id)


def champion_version(model: str, version: int, store: Store, run_id: str = "") -> Champion:
    """A version that serves, or served when a past decision is asked for again."""
    try:
        reference = store.get(reference_key(model, version))
    except NotFound as error:
        raise NotFound(f"{error}: version {version} was registered without a reference") from error
    return Champion(version, run_id, reference)


def challenger_of(model: str, lineage: Lineage) -> RegisteredVersion:
    """The version with the alias challenger; `LineageError` without one."""
    registered = lineage.version_of(model, "challenger")
    if registered is None:
        raise LineageError(f"{model} has no challenger: register a version and give it that alias")
    return registered
