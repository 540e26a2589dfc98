"""What lineage promises to every room, held against the fake and against a real MLflow server."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from resources.errors import LineageError
from resources.lineage import Lineage, RegisteredVersion
from tests.fakes_lineage import MemoryLineage
from tests.mlflow_server import running_mlflow
from tests.serving_stack import tiny_onnx

NAMES = (f"model_{number}" for number in itertools.count())


@dataclass
class Case:
    lineage: Lineage | MemoryLineage
    break_it: Callable[[], None]
    mend_it: Callable[[], None]


@pytest.fixture(scope="module", params=["fake", pytest.param("mlflow", marks=pytest.mark.integration)])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    if request.param == "fake":
        fake = MemoryLineage()
        yield Case(fake, lambda: setattr(fake, "down", True), lambda: setattr(fake, "down", False))
        return
    folder = tmp_path_factory.mktemp("mlflow")
    with ExitStack() as servers:
        url, stop = servers.enter_context(running_mlflow(folder))
        stops = [stop]

        def mend() -> None:
            stops.append(servers.enter_context(running_mlflow(folder, port=int(url.rsplit(":", 1)[1])))[1])

        yield Case(Lineage(url), lambda: stops[-1](), mend)


@pytest.fixture
def lineage(case: Case) -> Lineage | MemoryLineage:
    return case.lineage


@pytest.fixture
def model() -> str:
    return next(NAMES)


def register(lineage: Lineage | MemoryLineage, model: str, bias: float = 0.0, run: str = "d1") -> RegisteredVersion:
    return lineage.register(
        model,
        tiny_onnx(bias),
        dagster_run_id=run,
        snapshot_digest="ab" * 32,
        snapshot_uri="features/flights/1/ab.parquet",
        params={"seed": "7"},
        metrics={"auc": 0.7},
        artifacts={"plots/roc.png": b"png"},
        tags={"as_of": "2013-02-01T00:00:00+00:00", "source": "trimtab"},
    )


def test_an_unknown_model_has_no_champion(lineage: Lineage | MemoryLineage, model: str) -> None:
    assert lineage.version_of(model, "champion") is None


def test_versions_count_from_one_and_give_their_bytes_back(lineage: Lineage | MemoryLineage, model: str) -> None:
    first, second = register(lineage, model), register(lineage, model, bias=1.0, run="d2")
    assert (first.version, second.version) == (1, 2)
    assert first.run_id != second.run_id
    assert lineage.onnx(model, 1) == tiny_onnx()
    assert lineage.onnx(model, 2) == tiny_onnx(1.0)


def test_a_retry_of_the_same_run_registers_nothing_new(lineage: Lineage | MemoryLineage, model: str) -> None:
    first = register(lineage, model)
    assert register(lineage, model) == first
    assert register(lineage, model, run="d2").version == 2
    assert register(lineage, model, bias=2.0).version == 3


def test_aliases_move_and_are_none_until_set(lineage: Lineage | MemoryLineage, model: str) -> None:
    first, second = register(lineage, model), register(lineage, model, bias=1.0)
    assert lineage.version_of(model, "champion") is None
    lineage.set_alias(model, "champion", 1)
    lineage.set_alias(model, "challenger", 2)
    assert lineage.version_of(model, "champion") == first
    assert lineage.version_of(model, "challenger") == second
    lineage.set_alias(model, "champion", 2)
    assert lineage.version_of(model, "champion") == second


def test_a_version_names_its_run_its_snapshot_and_its_bytes(lineage: Lineage | MemoryLineage, model: str) -> None:
    register(lineage, model)
    tags = lineage.tags(model, 1)
    assert tags["dagster.run_id"] == "d1"
    assert tags["dataset.digest"] == "ab" * 32
    assert len(tags["onnx.digest"]) == 64
    assert tags["source"] == "trimtab"


def test_a_version_takes_tags_and_keeps_the_last_value(lineage: Lineage | MemoryLineage, model: str) -> None:
    register(lineage, model)
    for value in ("once", "twice"):
        lineage.tag(model, 1, "rolled_back", value)
    assert lineage.tags(model, 1)["rolled_back"] == "twice"


def test_every_run_is_one_of_its_own(lineage: Lineage | MemoryLineage, model: str) -> None:
    ids = {lineage.run(model, "drift", dagster_run_id="d1", metrics={"ks": 0.1}) for _ in range(3)}
    assert len(ids) == 3
    assert all(run_id in lineage.page(run_id) for run_id in ids)
    for run_id in ids:
        assert lineage.file_page(model, run_id, "a/b.html").endswith(f"/runs/{run_id}/artifacts/a/b.html")
    assert lineage.model_page(model, 4).endswith(f"/#/models/{model}/versions/4")


def test_a_run_is_followed_while_what_it_is_about_goes_on(lineage: Lineage | MemoryLineage, model: str) -> None:
    run_id = lineage.run(model, "rollout", dagster_run_id="d1")
    for step in (100, 200):
        lineage.follow(run_id, {"log_e.errors": step / 100, "none": float("nan")}, step, {"page.html": b"%d" % step})
    with pytest.raises(LineageError, match="nosuchrun"):
        lineage.follow("nosuchrun", {"x": 1.0}, 1)


def test_a_step_that_is_tried_again_finds_the_record_of_its_earlier_try(
    lineage: Lineage | MemoryLineage, model: str
) -> None:
    def kept(decision: str, again: bool) -> str:
        return lineage.run(model, "drift", dagster_run_id="d1", tags={"decision": decision}, again=again)

    first = kept("aa", again=False)
    assert kept("aa", again=True) == first
    assert kept("bb", again=True) != first
    assert lineage.run(model, "shadow", dagster_run_id="d1", tags={"decision": "aa"}, again=True) != first


def test_a_fit_is_followed_in_a_run_of_its_own(lineage: Lineage | MemoryLineage, model: str) -> None:
    with lineage.training(model, dagster_run_id="d1") as told:
        for step in range(3):
            told(step, {"loss": 1.0 / (step + 1)})
    with pytest.raises(KeyError), lineage.training(model, dagster_run_id="d1") as other:
        raise KeyError("a bug of the recipe")
    assert told.run_id != other.run_id
    assert (told.sent, told.dropped) == (3, 0)


def test_what_does_not_exist_is_named(lineage: Lineage | MemoryLineage, model: str) -> None:
    register(lineage, model)
    for call in (lineage.onnx, lineage.tags):
        with pytest.raises(LineageError, match=f"{model} version 9"):
            call(model, 9)
    with pytest.raises(LineageError):
        lineage.set_alias(model, "champion", 9)
    with pytest.raises(LineageError):
        lineage.tag(model, 9, "rolled_back", "x")


def test_nothing_is_registered_twice_when_a_dead_server_comes_back(case: Case, model: str) -> None:
    register(case.lineage, model, run="before")
    case.break_it()
    with pytest.raises(LineageError):
        register(case.lineage, model, run="during")
    case.mend_it()
    assert [register(case.lineage, model, run="during").version for _ in range(3)] == [2, 2, 2]
    assert register(case.lineage, model, run="before").version == 1
    with pytest.raises(LineageError, match=f"{model} version 3"):
        case.lineage.tags(model, 3)


def test_a_dead_server_is_told_at_once_and_by_address(case: Case) -> None:
    """The last test of the module: nothing answers after it."""
    case.break_it()
    with pytest.raises(LineageError) as raised:
        case.lineage.version_of("flight_delay", "champion")
    if isinstance(case.lineage, Lineage):
        assert case.lineage.tracking_uri in str(raised.value)
        assert "start it" in str(raised.value)
