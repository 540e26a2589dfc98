"""The spec: everything about one model's loop, typed, bounded and documented. One `model.yaml` a model."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from assets.canary.settings import CanarySettings
from assets.drift.settings import DriftSettings
from assets.fallback.settings import FallbackSettings
from assets.profile.settings import ProfileSettings
from assets.retrain.settings import TrainingSettings
from assets.shadow.settings import ShadowSettings
from assets.task import SERVED, Task
from pipelines.compute import Resources
from resources.errors import SpecError
from resources.yaml_lines import documents, line_of


class ModelSpec(BaseModel):
    """One model. Relative paths start at the folder of the file it was read from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{1,59}$", description="What clients call the model by.")
    description: str = Field(min_length=1, description="What it predicts, for whom. Shown in the Dagster UI.")
    owners: tuple[str, ...] = Field(min_length=1, description="Teams ('team:flights') or e-mail addresses.")
    task: Task = Field(
        "binary", description="What is answered: binary, the chance of one event (label 0 or 1); regression, a number."
    )
    feature_set: str = Field(min_length=1, description="Name of the feature set in `features`.")
    features: Path = Field(Path("features.yaml"), description="File of feature sets.")
    recipe: Path = Field(Path("recipe.py"), description="File with fit(frame, target, seed) -> estimator.")
    cadence: Literal["hourly", "daily", "weekly"] = Field("daily", description="How often inputs are checked.")
    start: datetime = Field(description="Start of the first partition; a weekly cadence starts on its weekday.")
    label_delay_hours: float = Field(72, gt=0, description="Longest usual time from a request to its label.")
    cooldown_hours: float = Field(24, ge=0, description="Least time between two loops, in the data's own time.")
    weight: float = Field(1.0, gt=0, description="Business weight: when loops have to wait, the heaviest goes first.")

    drift: DriftSettings = DriftSettings()
    shadow: ShadowSettings = ShadowSettings()
    training: TrainingSettings = TrainingSettings()
    profile: ProfileSettings = ProfileSettings()
    canary: CanarySettings = CanarySettings()
    fallback: FallbackSettings = FallbackSettings()
    resources: Resources = Resources()

    @field_validator("start")
    @classmethod
    def _utc(cls, value: datetime) -> datetime:
        if value.tzinfo is None:
            raise ValueError("has no time zone: write it with a Z, as 2013-01-04T00:00:00Z")
        return value

    @model_validator(mode="before")
    @classmethod
    def _shadow_takes_the_task(cls, given: Any) -> Any:
        if isinstance(given, dict) and "task" in given and isinstance(given.get("shadow", {}), dict):
            return {**given, "shadow": {"task": given["task"], **given.get("shadow", {})}}
        return given

    @field_validator("task")
    @classmethod
    def _served(cls, value: Task) -> Task:
        if value not in SERVED:
            raise ValueError(
                "gives a chance for each class, and the log keeps one number an answer: make a binary model of each "
                "class that matters"
            )
        return value

    @model_validator(mode="after")
    def _rooms_have_the_task(self) -> Self:
        if self.shadow.task != self.task:
            raise ValueError(f"shadow.task = {self.shadow.task}, task = {self.task}: write the same, or leave one out")
        if self.fallback.enabled and self.task != "binary":
            raise ValueError(
                f"fallback.enabled = true, task = {self.task}: fewer trees are judged by their chances: disable it"
            )
        return self

    @field_validator("owners")
    @classmethod
    def _owner(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            if not owner.startswith("team:") and "@" not in owner:
                raise ValueError(f"{owner!r} is neither 'team:NAME' nor an e-mail address")
        return value


def load_spec(file: Path) -> ModelSpec:
    """Read one `model.yaml`. `SpecError` names file, field, value and remedy."""
    found = documents(file)
    if len(found) != 1 or not isinstance(found[0].value, dict):
        raw = [item.value for item in found]
        raise SpecError(file, "(file)", raw, "must be a mapping of fields, one document: start with 'name: ...'")
    try:
        spec = ModelSpec.model_validate(found[0].value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(file)"
        value = None if first["type"] == "missing" else first.get("input")
        raise SpecError(file, field, value, _remedy(first), line_of(found[0].lines, field)) from error
    return spec.model_copy(update={"features": file.parent / spec.features, "recipe": file.parent / spec.recipe})


def load_specs(folder: Path) -> tuple[ModelSpec, ...]:
    """Every `*/model.yaml` below a folder, in order of name. `SpecError` when two carry one name."""
    specs = tuple(load_spec(file) for file in sorted(folder.glob("*/model.yaml")))
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise SpecError(folder, "name", spec.name, "is used by two models: names are what clients call")
        seen.add(spec.name)
    return specs


def _remedy(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "is no field of a spec: check its spelling"
    if error["type"] == "missing":
        return "is missing: add it"
    return str(error["msg"])


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _fields(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info.description or ""


def describe() -> list[tuple[str, str]]:
    """Every field of a spec with its description, for `trimtab spec`."""
    return list(_fields(ModelSpec))
