import numpy as np
import pytest

from assets.scoring import score
from pipelines.demo.damage import KINDS, damaged, failing_above, swapped
from tests.serving_stack import FEATURES, ROWS, tiny_onnx


def test_a_swapped_model_answers_the_other_probability() -> None:
    honest, other = score(tiny_onnx(), ROWS, FEATURES), score(swapped(tiny_onnx()), ROWS, FEATURES)
    np.testing.assert_allclose(other, 1 - honest, atol=1e-6)


def test_a_failing_model_answers_as_before_up_to_the_limit_and_fails_above() -> None:
    broken = failing_above(tiny_onnx(), "temp", 1.0)
    fine = ROWS[ROWS["temp"] <= 1.0]
    np.testing.assert_allclose(score(broken, fine, FEATURES), score(tiny_onnx(), fine, FEATURES))
    with pytest.raises(Exception, match=r"out of (data )?bounds|out of range"):
        score(broken, ROWS, FEATURES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_makes_a_challenger_whose_own_fault_is_the_one_it_is_named_for(kind: str) -> None:
    made = damaged(kind, tiny_onnx(), "temp", 1.0)
    assert (made.registered != made.packaged) is (kind == "wrong")
    assert (made.packaged != tiny_onnx()) is (kind in ("wrong", "errors"))
    assert bool(made.choice) is (kind == "slow")
