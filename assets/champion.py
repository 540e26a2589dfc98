"""The champion as the rooms see it: its version, its ONNX bytes, its reference."""

from dataclasses import dataclass

from resources.errors import NotFound
from resources.lineage import Lineage
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
    if registered is None:
        return None
    try:
        reference = store.get(reference_key(model, registered.version))
    except NotFound as error:
        raise NotFound(f"{error}: version {registered.version} was registered without a reference") from error
    return Champion(registered.version, registered.run_id, reference)
