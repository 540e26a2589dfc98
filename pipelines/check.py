"""`trimtab check`: does every model folder hold together? Specs, feature sets, recipes, and what they say together."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assets.recipe import load_recipe
from pipelines.factory import partitions_by_cadence
from pipelines.spec import ModelSpec, load_spec
from resources.errors import SpecError, TrimtabError
from resources.features import FeatureRegistry, FeatureSet, function_of, names_given, sources_given
from resources.store import Store
from resources.yaml_lines import located


@dataclass(frozen=True, slots=True)
class Checked:
    """One model.yaml: what is wrong with it and its neighbours, or in a few words what it is."""

    file: Path
    flaws: tuple[SpecError, ...]
    summary: str = ""


def check(models: Path, store: Store | None = None) -> list[Checked]:
    """Every `*/model.yaml` of a folder, each flaw found, not only the first. `SpecError` when there is no model.

    store: where the source tables lie, if the SQL is to be held against what they really have.
    """
    files = sorted(models.glob("*/model.yaml"))
    if not files:
        raise SpecError(models, "--models", str(models), "holds no */model.yaml: `trimtab new` makes one")
    checked: list[Checked] = []
    specs: list[ModelSpec] = []
    for file in files:
        try:
            spec = load_spec(file)
        except SpecError as error:
            checked.append(Checked(file, (error,)))
            continue
        together = list(_together(file, spec, specs))
        specs.append(spec)
        checked.append(_model(file, spec, together, store))
    return checked


def _model(file: Path, spec: ModelSpec, together: list[SpecError], store: Store | None) -> Checked:
    flaws = list(together)
    features: FeatureSet | None = None
    try:
        registry = FeatureRegistry.load(spec.features)
        features = registry.resolve(spec.feature_set, spec.start)
        flaws += [flaw for item in registry.sets if item.name == spec.feature_set for flaw in _rows(item, store)]
    except SpecError as error:
        flaws.append(error)
    try:
        load_recipe(spec.recipe)
    except SpecError as error:
        flaws.append(error)
    if features is not None:
        flaws += _columns(file, spec, features)
    inputs = f"{len(features.columns)} inputs" if features else ""
    return Checked(file, tuple(map(located, flaws)), f"{spec.name}: {spec.cadence}, {inputs}")


def _together(file: Path, spec: ModelSpec, others: list[ModelSpec]) -> Iterator[SpecError]:
    if spec.name in [other.name for other in others]:
        yield SpecError(file, "name", spec.name, "is used by two models: names are what clients call")
    same = [other for other in others if other.cadence == spec.cadence]
    try:
        partitions_by_cadence([*same[:1], spec])
    except SpecError as error:
        yield SpecError(file, error.field, error.value, error.remedy)


def _rows(features: FeatureSet, store: Store | None) -> Iterator[SpecError]:
    """Whether rows can come from what the set names; all that can be said without running it."""
    try:
        if features.python:
            function_of(features)
        else:
            names_given(features)
            if store is not None:
                sources_given(features, store)
    except SpecError as error:
        yield error
    except TrimtabError as error:
        yield features.flaw("sources", list(features.sources), str(error))


def _columns(file: Path, spec: ModelSpec, features: FeatureSet) -> Iterator[SpecError]:
    named = [(f"training.slices.{at}", name) for at, name in enumerate(spec.training.slices)]
    named += [(f"shadow.slices.{at}", name) for at, name in enumerate(spec.shadow.slices)]
    named += [(f"drift.business_weights.{name}", name) for name in spec.drift.business_weights]
    named += [("shadow.cluster", spec.shadow.cluster)] if spec.shadow.cluster else []
    for field, name in named:
        if name not in features.features:
            known = ", ".join(features.features)
            yield SpecError(file, field, name, f"is no input: choose one of {known}")
