import numpy as np
import pandas as pd
import pytest

from assets.cells import LEAST_ROWS, Cells, build_cells

FEATURES = {"carrier": "string", "temp": "float", "hour": "int"}


def rows(count: int, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "carrier": rng.choice(["UA", "B6", "AA", "DL"], count, p=[0.4, 0.3, 0.2, 0.1]),
            "temp": rng.normal(50, 10, count).clip(20, 80).astype(np.float32),
            "hour": rng.integers(5, 23, count),
            "event_time": pd.date_range("2024-01-01", periods=count, freq="10min", tz="UTC"),
        }
    )


def scores(frame: pd.DataFrame) -> np.ndarray:
    effect = frame["carrier"].map({"UA": 0.0, "B6": 1.0, "AA": 2.0, "DL": 3.0})
    logit = (effect - frame["temp"].fillna(50) / 20 + frame["hour"] / 10).to_numpy(float)
    return np.asarray(1 / (1 + np.exp(-logit)))


REFERENCE = rows(6000)
CELLS = build_cells(REFERENCE, FEATURES, scores(REFERENCE), 60)


def test_every_leaf_holds_reference_rows_enough_and_all_rows_have_a_cell() -> None:
    assert 30 <= CELLS.outside <= 60
    assert CELLS.counts[:-1].min() >= LEAST_ROWS
    assert CELLS.counts.sum() == len(REFERENCE)
    assert CELLS.hours.sum() == len(REFERENCE)


def test_a_row_falls_where_the_fitted_tree_itself_puts_it() -> None:
    """The arrays against scikit-learn's own walk down the tree they were taken from."""
    from sklearn.tree import DecisionTreeRegressor

    fresh = rows(5000, seed=2)
    means = pd.Series(scores(REFERENCE)).groupby(REFERENCE["carrier"]).mean().rank()

    def table(frame: pd.DataFrame) -> np.ndarray:
        return np.stack([frame["carrier"].map(means), frame["temp"], frame["hour"]], axis=1).astype(np.float32)

    tree = DecisionTreeRegressor(max_leaf_nodes=60, min_samples_leaf=LEAST_ROWS, max_depth=14, random_state=0)
    tree.fit(table(REFERENCE), scores(REFERENCE))
    assigned = CELLS.assign(fresh)
    inside = ~assigned.beyond
    theirs = tree.apply(table(fresh))[inside]
    pairs = pd.DataFrame({"ours": assigned.cell[inside], "theirs": theirs})
    assert pairs.groupby("theirs")["ours"].nunique().max() == 1
    assert pairs["ours"].nunique() == pairs["theirs"].nunique()


def test_cells_follow_the_score_so_rows_of_one_cell_are_scored_alike() -> None:
    cell, score = CELLS.assign(REFERENCE).cell, scores(REFERENCE)
    spread = pd.Series(score) - pd.Series(score).groupby(cell).transform("mean")
    assert (spread**2).mean() < 0.03 * score.var()


@pytest.mark.parametrize(
    ("column", "value"), [("temp", 500.0), ("temp", -500.0), ("hour", 99), ("carrier", "XX"), ("temp", np.inf)]
)
def test_what_the_reference_never_saw_lies_beyond_it(column: str, value: float | str) -> None:
    odd = REFERENCE.head(3).assign(**{column: value})
    assigned = CELLS.assign(odd)
    assert assigned.beyond.all()
    assert (assigned.cell == CELLS.outside).all()


def test_a_null_is_beyond_only_where_the_reference_had_none() -> None:
    holey = REFERENCE.copy()
    holey.loc[::10, "temp"] = np.nan
    cells = build_cells(holey, FEATURES, scores(holey), 20)
    assert cells.counts[-1] == 600
    for column, surprising in (("temp", False), ("carrier", True)):
        odd = holey.iloc[1:4].assign(**{column: None})
        assigned = cells.assign(odd)
        assert (assigned.cell == cells.outside).all()
        assert assigned.beyond.all() == surprising


def test_bytes_give_the_same_cells_back_and_hold_no_code() -> None:
    again = Cells.from_bytes(CELLS.to_bytes())
    fresh = rows(2000, seed=3)
    np.testing.assert_array_equal(again.assign(fresh).cell, CELLS.assign(fresh).cell)
    assert again.to_bytes() == CELLS.to_bytes()
    with pytest.raises(ValueError, match="train the model again"):
        Cells.from_bytes(b"not an archive")


def test_the_same_rows_make_the_same_cells() -> None:
    assert build_cells(REFERENCE, FEATURES, scores(REFERENCE), 60).to_bytes() == CELLS.to_bytes()


def test_no_rows_a_constant_and_nothing_but_nulls_are_told_or_taken() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        build_cells(REFERENCE.head(0), FEATURES, np.zeros(0), 20)
    with pytest.raises(ValueError, match="1 cells"):
        build_cells(REFERENCE, FEATURES, scores(REFERENCE), 1)
    constant = build_cells(REFERENCE, FEATURES, np.full(len(REFERENCE), 0.5), 20)
    assert constant.counts.tolist() == [len(REFERENCE), 0]
    empty = build_cells(REFERENCE.assign(temp=np.nan), FEATURES, scores(REFERENCE), 20)
    assert empty.counts.tolist() == [0, len(REFERENCE)]
    assert empty.assign(REFERENCE).beyond.all()


def test_no_row_has_no_cell() -> None:
    assert CELLS.assign(REFERENCE.head(0)).cell.shape == (0,)
