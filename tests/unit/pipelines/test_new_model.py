"""A table becomes a model folder that fits, exports and scores."""

import io
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from assets.model import Model
from assets.retrain.export import parity, to_onnx
from assets.retrain.measures import auc, skill
from assets.scoring import score
from assets.snapshot.asset import take
from assets.snapshot.maturity import matured
from pipelines.cli import main
from pipelines.draft import read_table
from pipelines.spec import load_spec
from resources.features import FeatureRegistry
from tests.customers import START, customers, spenders
from tests.fakes import MemoryStore


def written(folder: Path, frame: pd.DataFrame, kind: str = "csv") -> Path:
    file = folder / f"customers.{kind}"
    if kind == "csv":
        frame.to_csv(file, index=False)
    else:
        frame.assign(**{"signed up": pd.to_datetime(frame["signed up"])}).to_parquet(file, index=False)
    return file


def trimtab(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def made(folder: Path, file: Path, *more: str) -> Result:
    columns = ("--target", "churned", "--time", "signed up")
    return trimtab("new", "churn", "--from", file, *columns, "--models", folder / "models", *more)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("key", [(), ("--key", "customer")])
def test_a_new_model_passes_the_check_fits_exports_and_scores(tmp_path: Path, kind: str, key: tuple[str, ...]) -> None:
    file = written(tmp_path, customers(), kind)
    found = made(tmp_path, file, *key)
    assert found.exit_code == 0, found.output
    checked = trimtab("check", "--models", tmp_path / "models")
    assert (checked.exit_code, checked.output) == (0, "✓ churn: daily, 5 inputs\n")

    spec = load_spec(tmp_path / "models/churn/model.yaml")
    registry = FeatureRegistry.load(spec.features)
    model = Model(spec.name, spec.description, spec.owners, spec.feature_set, registry, spec.recipe)
    store = MemoryStore()
    sink = io.BytesIO()
    pq.write_table(read_table(file), sink)
    store.put("raw/churn.parquet", sink.getvalue())
    as_of = START + timedelta(days=60)
    rows = take(model, store, spec.start, as_of, as_of)
    known = matured(rows.frame, rows.features.label, as_of)
    assert len(known) > 2700
    features = rows.features.features
    estimator = model.fit(known, rows.features, seed=7)
    onnx = to_onnx(estimator, features)
    assert parity(estimator, onnx, known, features) <= 1e-5
    assert auc(known[rows.features.label].to_numpy(), score(onnx, known, features)) > 0.75


def test_a_table_of_amounts_becomes_a_model_of_a_number(tmp_path: Path) -> None:
    file = written(tmp_path, spenders())
    found = trimtab("new", "spend", "--from", file, "--target", "spent", "--time", "signed up", "--models", tmp_path)
    assert found.exit_code == 0, found.output
    assert "task regression: The spent to expect." in found.output
    spec = load_spec(tmp_path / "spend/model.yaml")
    assert (spec.task, spec.shadow.loss) == ("regression", "absolute")
    registry = FeatureRegistry.load(spec.features)
    model = Model(spec.name, spec.description, spec.owners, spec.feature_set, registry, spec.recipe, task=spec.task)
    store, sink = MemoryStore(), io.BytesIO()
    pq.write_table(read_table(file), sink)
    store.put("raw/spend.parquet", sink.getvalue())
    as_of = START + timedelta(days=60)
    rows = take(model, store, spec.start, as_of, as_of)
    known = matured(rows.frame, rows.features.label, as_of)
    features = rows.features.features
    estimator = model.fit(known, rows.features, seed=7)
    onnx = to_onnx(estimator, features, "regression")
    assert parity(estimator, onnx, known, features, "regression") <= 1e-5
    assert skill(known[rows.features.label].to_numpy(), score(onnx, known, features)) > 0.6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "plan", "--task", "regression"), "--target = 'plan: string': is no number"),
        (("--target", "calls", "--task", "regression", "--positive", "3"), "answers a number"),
        (("--target", "note", "--task", "regression"), "is no number"),
    ],
)
def test_a_number_cannot_be_made_of_words(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    found = made(tmp_path, written(tmp_path, customers(200)), *words)
    assert found.exit_code == 1
    assert said in found.output


def test_few_different_numbers_are_kinds_unless_the_task_is_said(tmp_path: Path) -> None:
    file = written(tmp_path, customers(200))
    assert "name the event with --positive" in made(tmp_path, file, "--target", "monthly_fee").output
    assert made(tmp_path, file, "--target", "monthly_fee", "--task", "regression").exit_code == 0


def test_every_column_is_used_renamed_or_left_out_with_the_reason(tmp_path: Path) -> None:
    found = made(tmp_path, written(tmp_path, customers()))
    text = (tmp_path / "models/churn/features.yaml").read_text()
    assert "left out customer: 3000 different values in 3000 rows: it names rows" in found.output
    assert "left out note: it is empty" in found.output
    assert [line.strip() for line in text.splitlines() if line.startswith("  - {")] == [
        "- {name: plan, type: string}",
        "- {name: Monthly_fee, type: float}",
        "- {name: monthly_fee_2, type: int}",
        "- {name: calls, type: float}",
        "- {name: paperless, type: int}",
    ]


def test_rows_without_an_outcome_have_no_label(tmp_path: Path) -> None:
    frame = customers()
    frame.loc[:99, "churned"] = None
    made(tmp_path, written(tmp_path, frame))
    sql = (tmp_path / "models/churn/features.yaml").read_text()
    assert 'WHEN "churned" IS NULL THEN NULL WHEN "churned" = \'Yes\' THEN 1 ELSE 0 END' in sql


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "left"), "--target = 'left': is no column: choose one of customer, signed up"),
        (("--time", "plan"), "--time = 'plan: string': is no time: write ISO 8601"),
        (("--target", "plan"), "it holds 3 values (basic, family, pro's): name the event with --positive"),
        (("--target", "plan", "--positive", "gold"), "--positive = 'gold': plan needs it and another value"),
        (("--key", "plan"), "--key = 'plan': names some rows twice"),
        (("--time", "churned"), "three different columns"),
    ],
)
def test_what_cannot_become_a_model_is_refused_and_nothing_is_written(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    found = made(tmp_path, written(tmp_path, customers(200)), *words)
    assert found.exit_code == 1
    assert said in found.output
    assert "customers.csv" in found.output
    assert not (tmp_path / "models").exists()


def test_any_value_of_the_target_can_be_the_event(tmp_path: Path) -> None:
    found = made(tmp_path, written(tmp_path, customers(300)), "--target", "plan", "--positive", "pro's")
    assert found.exit_code == 0
    assert "\"plan\" = 'pro''s' THEN 1" in (tmp_path / "models/churn/features.yaml").read_text()
    assert trimtab("check", "--models", tmp_path / "models").exit_code == 0


def test_a_model_that_exists_is_left_alone(tmp_path: Path) -> None:
    file = written(tmp_path, customers(200))
    assert made(tmp_path, file).exit_code == 0
    before = (tmp_path / "models/churn/model.yaml").read_text()
    again = made(tmp_path, file, "--owner", "team:other")
    assert again.exit_code == 1
    assert "is there already" in again.output
    assert (tmp_path / "models/churn/model.yaml").read_text() == before
    assert [item.name for item in (tmp_path / "models").iterdir()] == ["churn"]


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    for name, body in (("a.txt", "x"), ("b.parquet", "x"), ("c.csv", "a,b\n")):
        (tmp_path / name).write_text(body)
        found = trimtab("new", "churn", "--from", tmp_path / name, "--target", "a", "--time", "b")
        assert found.exit_code == 1
        assert name in found.output


def test_a_name_that_clients_could_not_call_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, customers(200))
    found = trimtab("new", "../x", "--from", file, "--target", "churned", "--time", "signed up")
    assert found.exit_code == 1
    assert "lower-case letters" in found.output
