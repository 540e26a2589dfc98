"""What every gateway promises to a rollout, held against the fake and against a real Envoy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from resources.errors import GatewayError
from resources.gateway import Fallback, Gateway, Needed, Split
from tests.fakes import MemoryGateway
from tests.gateway_stack import running_edge


@dataclass
class Case:
    gateway: Gateway | MemoryGateway
    break_it: Callable[[], None]


@pytest.fixture(params=["fake", pytest.param("envoy", marks=pytest.mark.integration)])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    if request.param == "fake":
        fake = MemoryGateway()
        yield Case(fake, lambda: setattr(fake, "confirms", False))
        return
    with running_edge(tmp_path_factory.mktemp("edge"), lite=(1, 2)) as edge:
        yield Case(edge.gateway, edge.stop)


def test_a_new_gateway_knows_no_model(case: Case) -> None:
    assert case.gateway.splits() == {}
    assert case.gateway.split("flight_delay") is None


def test_splits_of_many_models_stand_side_by_side(case: Case) -> None:
    for number in range(20):
        seconds = case.gateway.set_split(f"m{number}", Split({"blue": 100 - number, "green": number}, "green"))
        assert 0 <= seconds < 10
    assert case.gateway.split("m7") == Split({"blue": 93, "green": 7}, "green")
    case.gateway.set_split("m7", Split({"green": 100}))
    assert case.gateway.split("m7") == Split({"green": 100})
    assert case.gateway.split("m8") == Split({"blue": 92, "green": 8}, "green")
    assert len(case.gateway.splits()) == 20


def test_cells_in_need_keep_weights_of_their_own(case: Case) -> None:
    split = Split({"blue": 99, "green": 1}, needed=Needed((3, 17), {"blue": 50, "green": 50}))
    case.gateway.set_split("m", split)
    assert case.gateway.split("m") == split
    for needed in (Needed((), {"blue": 100}), Needed((-1,), {"blue": 100}), Needed((1,), {"blue": 90})):
        with pytest.raises(GatewayError, match=r"cells|sum to 90"):
            case.gateway.set_split("m", Split({"blue": 100}, needed=needed))
    assert case.gateway.split("m") == split


def test_a_removed_model_is_unknown_and_may_be_removed_again(case: Case) -> None:
    case.gateway.set_split("m", Split({"blue": 100}))
    case.gateway.remove("m")
    case.gateway.remove("m")
    assert case.gateway.splits() == {}


def test_the_same_split_may_be_set_again(case: Case) -> None:
    for _ in range(3):
        case.gateway.set_split("m", Split({"blue": 40, "green": 60}))
    assert case.gateway.split("m") == Split({"blue": 40, "green": 60})


def test_a_fallback_stands_whatever_its_model_s_split_becomes_until_it_is_taken_away(case: Case) -> None:
    assert case.gateway.fallbacks() == {}
    case.gateway.set_split("m", Split({"blue": 100}))
    case.gateway.set_fallback("m", Fallback(50))
    case.gateway.set_split("m", Split({"green": 100}))
    assert case.gateway.fallbacks() == {"m": Fallback(50)}
    case.gateway.set_fallback("m", None)
    case.gateway.set_fallback("m", None)
    assert case.gateway.fallbacks() == {}
    assert case.gateway.split("m") == Split({"green": 100})


@pytest.mark.parametrize(
    ("model", "split", "reason"),
    [
        ("m", Split({"blue": 60, "green": 30}), "sum to 90"),
        ("m", Split({}), "sum to 0"),
        ("m", Split({"blue": 110, "green": -10}), "none below 0"),
        ("m", Split({"blue": 99.5, "green": 0.5}), "whole percents"),  # type: ignore[dict-item]
        ("m", Split({"red": 100}), "unknown pool 'red'"),
        ("m", Split({"blue": 100}, mirror="red"), "unknown pool 'red'"),
        ("", Split({"blue": 100}), "a name has"),
        ("a/b", Split({"blue": 100}), "a name has"),
        ("x" * 256, Split({"blue": 100}), "a name has"),
    ],
)
def test_a_wrong_split_is_refused_with_its_reason_and_changes_nothing(
    case: Case, model: str, split: Split, reason: str
) -> None:
    case.gateway.set_split("m", Split({"blue": 100}))
    with pytest.raises(GatewayError, match=reason):
        case.gateway.set_split(model, split)
    assert case.gateway.splits() == {"m": Split({"blue": 100})}


def test_a_change_that_is_not_confirmed_is_an_error_and_leaves_the_former_split(case: Case) -> None:
    case.gateway.set_split("m", Split({"blue": 100}))
    case.break_it()
    with pytest.raises(GatewayError, match="Envoy"):
        case.gateway.set_split("m", Split({"green": 100}), timeout_s=0.5)
    assert case.gateway.split("m") == Split({"blue": 100})
