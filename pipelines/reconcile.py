"""What an agent does next: decisions without I/O."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
