"""A recipe is a file people write: what it lacks is named."""

from pathlib import Path

import pandas as pd
import pytest

from assets.recipe import load_recipe
from resources.errors import SpecError


def test_a_recipe_is_known_by_the_digest_of_its_file(tmp_path: Path) -> None:
    first, second = tmp_path / "one.py", tmp_path / "two.py"
    first.write_text("def fit(frame, target, seed):\n    return (len(frame), target, seed)\n")
    second.write_text(first.read_text() + "# changed\n")
    assert load_recipe(first).digest != load_recipe(second).digest
    assert load_recipe(first).fit(pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]}), "y", 5) == (2, "y", 5)


def test_a_recipe_is_fitted_on_rows_as_serving_sees_them(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text("def fit(frame, target, seed):\n    return frame\n")
    rows = pd.DataFrame({"text": ["a", None], "size": [0.1, 0.2], "y": [0.0, 1.0]})
    seen = load_recipe(file).fit(rows, "y", 0)
    assert seen["text"].tolist() == ["a", ""]
    assert str(seen["size"].dtype) == "float32"
    assert seen["y"].tolist() == [0.0, 1.0]
    assert rows["text"].isna().sum() == 1


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (None, "path"),
        ("x = 1", "fit"),
        ("fit = 3", "fit"),
        ("def fit(:", "import"),
        ("import nowhere_at_all", "import"),
    ],
)
def test_a_recipe_that_cannot_fit_is_refused_by_file_and_field(tmp_path: Path, source: str | None, field: str) -> None:
    file = tmp_path / "recipe.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(SpecError) as raised:
        load_recipe(file)
    assert (raised.value.file, raised.value.field) == (str(file), field)


def test_a_library_that_is_missing_where_fits_run_is_named_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text("def fit(frame, target, seed):\n    import nowhere_at_all\n")
    with pytest.raises(SpecError, match=r"recipe\.py: import = 'nowhere_at_all': is not installed where fits run"):
        load_recipe(file).fit(pd.DataFrame({"x": [1.0], "y": [0]}), "y", 0)
