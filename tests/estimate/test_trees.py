"""Trees in the compact form say what LightGBM says."""

from __future__ import annotations

import lightgbm
import numpy as np
import numpy.typing as npt
import pytest

from traincast.estimate.operators.trees import Trees
from traincast.fitting.boosting import BoostingConfig, compact, grow

SETTINGS = {"num_threads": 1, "verbose": -1, "seed": 0, "deterministic": True, "force_row_wise": True, "max_bin": 255}


def data(rows: int = 600, columns: int = 7, seed: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(rows, columns)).astype(np.float32)
    table[:, 1] = np.round(table[:, 1])  # few distinct values
    table[:, 2] = 4.0  # a constant
    target = np.sin(table[:, 0]) + 0.5 * (table[:, 1] > 0) + 0.1 * rng.normal(size=rows)
    return table, target


def by_hand() -> Trees:
    """First tree: 10 where x ≤ 1.5, else 20 where y ≤ −1, else 30; second tree: one leaf of 0.5."""
    return Trees(
        base=np.zeros(1),
        nodes=np.array([[[0, 0, 2, 1], [1, 0, 3, 4]], [[0, 255, 2, 2], [0, 255, 2, 2]]], dtype=np.uint8),
        leaves=np.array([[10, 20, 30], [0.5, 0, 0]], dtype=np.float16),
        depth=np.array([2, 1], dtype=np.uint8),
        cuts=np.array([1.5, -1.0], dtype=np.float32),
        starts=np.array([0, 1, 2], dtype=np.int32),
    )


def test_a_tree_made_by_hand_is_walked() -> None:
    rows = np.array([[1, 0], [1.5, 0], [2, -1], [2, -0.9]], dtype=np.float32)
    assert by_hand()(rows).tolist() == [10.5, 10.5, 20.5, 30.5]


def test_more_rows_than_a_block_are_walked_alike() -> None:
    rows = np.tile(np.array([[1, 0], [2, -1], [2, 0]], dtype=np.float32), (200, 1))
    assert by_hand()(rows).tolist() == [10.5, 20.5, 30.5] * 200
    assert by_hand()(rows[:0]).tolist() == []


@pytest.mark.parametrize("leaves", [2, 15, 127])
def test_the_compact_form_equals_lightgbm(leaves: int) -> None:
    table, target = data()
    booster = lightgbm.train(
        {**SETTINGS, "num_leaves": leaves, "min_data_in_leaf": 1}, lightgbm.Dataset(table, target), 60
    )
    unseen = data(seed=1)[0] * 2
    for rows in (table, unseen):
        trees = compact(booster.model_to_string(), table.shape[1])
        np.testing.assert_allclose(trees(rows), booster.predict(rows), atol=1e-3)


def test_a_target_that_cannot_be_split_is_one_leaf() -> None:
    table, _ = data()
    trees = grow(table, np.full(len(table), 0.75), BoostingConfig(rounds=5))
    np.testing.assert_allclose(trees(table), 0.75, atol=1e-3)


def test_trees_with_and_without_splits_stand_side_by_side() -> None:
    text = (
        "tree\n"
        "\nTree=0\nnum_leaves=1\nnum_cat=0\nsplit_feature=\nthreshold=\nleft_child=\nright_child=\nleaf_value=0.25\n"
        "\nTree=1\nnum_leaves=3\nsplit_feature=1 0\nthreshold=0.5 -2\nleft_child=1 -1\nright_child=-2 -3\n"
        "leaf_value=1 2 3\n"
        "\nTree=2\nnum_leaves=1\nleaf_value=0.5\n"
        "end of trees\n"
    )
    trees = compact(text, 2)
    rows = np.array([[-2, 0], [-1.5, 0.5], [0, 0.75]], dtype=np.float32)
    assert trees(rows).tolist() == [1.75, 3.75, 2.75]


def test_arrays_make_the_same_forest() -> None:
    table, target = data()
    trees = grow(table, target, BoostingConfig(rounds=20))
    again = Trees.from_arrays({name: array.copy() for name, array in trees.arrays().items()})
    np.testing.assert_array_equal(again(table), trees(table))


def test_growing_stops_where_held_rows_get_no_better() -> None:
    table, target = data()
    held = data(seed=1)
    noise = np.random.default_rng(2).normal(size=len(target))
    config = BoostingConfig(rounds=400, rate=0.3)
    assert len(grow(table, noise, config, held=(held[0], held[1] * 0)).nodes) < 100
    grown = grow(table, target, config, held=held)
    assert np.abs(grown(held[0]) - held[1]).mean() < 0.5 * np.abs(held[1] - held[1].mean()).mean()


def test_a_seed_decides_a_forest() -> None:
    table, target = data()
    first, again, other = (grow(table, target, BoostingConfig(rounds=10), seed=seed)(table) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
