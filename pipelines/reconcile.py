"""What an agent does next, and whether a model answers as it should: decisions without I/O."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from resources.errors import ModelNotReady, PackageRefused
from resources.pools import Assignment

MAX_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The package in the repository and whether Triton serves it. digest is '' when its signature does not hold."""

    version: int
    digest: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Install:
    """Fetch, verify, load and probe this version in place of whatever is there."""

    model: str
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Reload:
    """Load again what lies in the repository: Triton lost it, or its process died."""

    model: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Unload, and delete from the repository."""

    model: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """Probe what is served already and report it: the agent is new, or what was desired is desired again."""

    model: str


Action = Install | Reload | Remove | Confirm


def plan(
    desired: Mapping[str, Assignment] | None,
    loaded: Mapping[str, Loaded],
    reported: Mapping[str, str],
    resting: Collection[str] = (),
) -> list[Action]:
    """Steps from what is loaded to what is desired; serving comes back first, then changes, then removals.

    desired: None while the store never answered: what lies in the repository is served, nothing changes.
    reported: digest of what was last reported READY, by model. resting: models whose last try failed and whose
    pause is not over.

    >>> plan({"m": Assignment(2, "k", "new")}, {"m": Loaded(1, "old", ready=True)}, {"m": "old"})
    [Install(model='m', assignment=Assignment(version=2, package='k', digest='new'))]
    >>> plan({}, {"m": Loaded(1, "old", ready=True)}, {"m": "old"})
    [Remove(model='m')]
    """
    steps: list[Action] = []
    removals: list[Action] = []
    for name, state in sorted(loaded.items()):
        wanted = None if desired is None else desired.get(name)
        if desired is not None and wanted is None:
            removals.append(Remove(name))
        elif state.digest and not state.ready:
            steps.append(Reload(name))
        elif state.digest and reported.get(name) != state.digest and (wanted is None or wanted.digest == state.digest):
            steps.append(Confirm(name))
    for name, assignment in sorted((desired or {}).items()):
        if name not in loaded or loaded[name].digest != assignment.digest:
            steps.append(Install(name, assignment))
    return [step for step in (*steps, *removals) if step.model not in resting]


def pause_s(failures: int) -> float:
    """Seconds before the next try after so many failures in a row: 2, 4, 8, up to a minute."""
    return min(MAX_PAUSE_S, 2.0 ** min(failures, 10))


def probe_request(probe: Mapping[str, Any]) -> dict[str, Any]:
    """The inference request that `probe.json` describes. `PackageRefused` when it would prove nothing."""
    try:
        inputs = [{"name": name, **tensor} for name, tensor in probe["inputs"].items()]
        rows = [len(tensor["data"]) for tensor in probe["outputs"].values()]
        float(probe["tolerance"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PackageRefused(f"probe.json needs inputs, outputs and tolerance: {error!r}") from error
    if not inputs or not rows or not min(rows):
        raise PackageRefused("probe.json holds no rows: it would prove nothing")
    return {"inputs": inputs}


def largest_difference(probe: Mapping[str, Any], answer: Mapping[str, Any], version: int) -> float:
    """Largest distance of the answer from the expected one; `ModelNotReady` when it is beyond the tolerance."""
    if str(answer.get("model_version")) != str(version):
        raise ModelNotReady(f"version {answer.get('model_version')} answered in place of {version}")
    answered = {output["name"]: output for output in answer["outputs"]}
    largest = 0.0
    for name, expected in probe["outputs"].items():
        if name not in answered:
            raise ModelNotReady(f"output {name!r} is missing from the answer: it has {sorted(answered)}")
        if list(answered[name]["shape"]) != list(expected["shape"]):
            raise ModelNotReady(f"output {name!r} has shape {answered[name]['shape']}, expected {expected['shape']}")
        pairs = zip(answered[name]["data"], expected["data"], strict=True)
        largest = max(largest, max(_distance(got, wanted) for got, wanted in pairs))
    if not largest <= probe["tolerance"]:
        raise ModelNotReady(
            f"answers differ from ONNX Runtime's by {largest:.3g}, allowed is {probe['tolerance']:g}: "
            "is the model in the package the one that was measured?"
        )
    return largest


def _distance(got: Any, wanted: Any) -> float:
    if isinstance(got, int | float) and isinstance(wanted, int | float):
        if math.isnan(got) or math.isnan(wanted):
            return 0.0 if math.isnan(got) and math.isnan(wanted) else math.inf
        return abs(float(got) - float(wanted))
    return 0.0 if got == wanted else math.inf
