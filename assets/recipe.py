"""A recipe: the model's own fitting code, named by the digest of its file."""

import ast
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.reporting import Report, silent
from assets.scoring import as_served, kind_of
from resources.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

# Framework by the packages a recipe imports, in the words of Dagster's icons; the first found names it.
ICONS = {"torch": "pytorch", "xgboost": "xgboost", "lightgbm": "lightgbm", "sklearn": "scikitlearn"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """`function` is the file's own `fit`."""

    path: Path
    digest: str
    function: "Callable[..., Any]"

    @property
    def reports(self) -> bool:
        """Whether `fit` takes `report`, to tell how it goes (assets.reporting)."""
        return "report" in signature(self.function).parameters

    def fit(self, frame: "pd.DataFrame", target: str, seed: int, report: Report = silent) -> Any:
        """An estimator whose `predict_proba` takes a frame of features. frame: features and the column `target`.

        It is fitted on what serving will see: numbers in 32 bits, a missing string as ''.
        """
        inputs = frame.drop(columns=target)
        served = as_served(inputs, {str(name): kind_of(column) for name, column in inputs.items()})
        rows = served.assign(**{target: frame[target].to_numpy()})
        try:
            return self.function(rows, target, seed, **({"report": report} if self.reports else {}))
        except ModuleNotFoundError as error:
            remedy = "is not installed where fits run: install it (xgboost and torch are extras of trimtab)"
            raise SpecError(self.path, "import", error.name, remedy) from error


def load_recipe(path: Path) -> Recipe:
    """Run the file and take its `fit`. `SpecError` names the file and what it lacks."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise SpecError(path, "path", str(path), f"cannot be read: {error.strerror}: write recipe.py there") from error
    digest = hashlib.sha256(source).hexdigest()
    spec = spec_from_file_location(f"recipe_{digest[:16]}", path)
    if spec is None or spec.loader is None:
        raise SpecError(path, "path", str(path), "is not a Python file: name it recipe.py")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SpecError(path, "import", type(error).__name__, f"does not run: {error}") from error
    fit = getattr(module, "fit", None)
    if not callable(fit):
        raise SpecError(path, "fit", fit, "define `fit(frame, target, seed)` that returns a fitted estimator")
    try:
        signature(fit).bind("frame", "target", 7)
    except TypeError as error:
        raise SpecError(
            path, "fit", str(signature(fit)), f"{error}: it is called as fit(frame, target, seed)"
        ) from error
    return Recipe(path, digest, fit)


def icon(path: Path) -> str:
    """The framework that a recipe's imports name, without running it; `python` when none does or it cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return "python"
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([item.name for item in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    return next((found for package, found in ICONS.items() if package in imported), "python")
