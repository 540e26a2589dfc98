"""What every room's door is told about the model it works for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.recipe import Recipe, load_recipe
from assets.task import Task
from resources.features import FeatureRegistry, FeatureSet

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Model:
    """One model as the rooms see it. Room settings are passed to the doors beside it."""

    name: str
    description: str
    owners: tuple[str, ...]
    feature_set: str
    registry: FeatureRegistry
    recipe_file: Path
    op_tags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tags of an asset's step by the asset's name: where it runs."""
    task: Task = "binary"

    def recipe(self) -> Recipe:
        """Read when it is used: a code location must load without the training libraries."""
        return load_recipe(self.recipe_file)

    def fit(self, frame: "pd.DataFrame", features: FeatureSet, seed: int) -> Any:
        """An estimator fitted by the recipe on labelled rows."""
        return self.recipe().fit(frame[[*features.features, features.label]], features.label, seed)
