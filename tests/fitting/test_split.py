"""Partitions without leakage: disjoint, near 4 : 1, and the same whatever the order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import RequestError
from traincast.fitting.split import (
    Floats,
    Ints,
    Keys,
    Merged,
    Split,
    by_unseen_dims,
    carve_validation,
    protocol_split,
)


def table(count: int, distinct: int, groups: int = 3, seed: int = 0) -> tuple[Keys, Ints, Floats]:
    """Rows with repeats: keys from ``distinct`` values, measured times with noise."""
    random = np.random.default_rng(seed)
    keys = random.integers(0, distinct, count).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return keys, random.integers(0, groups, count), random.lognormal(size=count)


def keys_of(side: Merged, keys: Keys) -> set[int]:
    return set(keys[side.rows].tolist())


def content(side: Merged, keys: Keys, groups: Ints, values: Floats) -> set[tuple[int, int, float]]:
    columns = (keys[side.first].tolist(), groups[side.first].tolist(), side.median(values).tolist())
    return set(zip(*columns, strict=True))


def assert_whole(split: Split, keys: Keys, groups: Ints) -> None:
    """Every row is in one example, and every example is of one key and group."""
    assert sorted([*split.train.rows.tolist(), *split.test.rows.tolist()]) == list(range(len(keys)))
    for side in (split.train, split.test):
        names = [
            set(zip(keys[r].tolist(), groups[r].tolist(), strict=True)) for r in np.split(side.rows, side.starts[1:-1])
        ]
        assert all(len(name) <= 1 for name in names)
        assert len(set().union(*names)) == len(side)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.integers(1, 60), st.integers(-(2**70), 2**70))
def test_no_configuration_is_on_both_sides(count: int, distinct: int, seed: int) -> None:
    keys, groups, values = table(count, distinct, seed=count)
    split = protocol_split(keys, groups, values, seed=seed)
    assert keys_of(split.train, keys) & keys_of(split.test, keys) == set()
    assert_whole(split, keys, groups)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_of_rows_is_of_no_consequence(seed: int) -> None:
    keys, groups, values = table(400, 90, seed=1)
    order = np.random.default_rng(seed).permutation(len(keys))
    one = protocol_split(keys, groups, values, seed=seed)
    other = protocol_split(keys[order], groups[order], values[order], seed=seed)
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert content(a, keys, groups, values) == content(b, keys[order], groups[order], values[order])


@pytest.mark.parametrize("repeats", [1, 2, 5, 20])
def test_the_sides_are_near_four_to_one(repeats: int) -> None:
    keys, groups, values = table(20_000, 20_000 // repeats)
    split = protocol_split(keys, groups, values)
    share = len(split.train) / (len(split.train) + len(split.test))
    assert 0.77 < share < 0.88


def test_another_seed_is_another_split() -> None:
    keys, groups, values = table(1000, 500)
    first, second = (keys_of(protocol_split(keys, groups, values, seed=s).test, keys) for s in (0, 1))
    assert first != second


def test_a_plain_random_split_of_the_same_rows_leaks() -> None:
    keys, groups, values = table(5000, 1000)
    tested = np.random.default_rng(0).random(len(keys)) < 0.2
    both = set(keys[tested].tolist()) & set(keys[~tested].tolist())
    assert len(both) > 0.9 * len(set(keys[tested].tolist()))
    split = protocol_split(keys, groups, values)
    assert keys_of(split.train, keys) & keys_of(split.test, keys) == set()


def test_rows_of_one_key_and_group_are_merged_to_their_median() -> None:
    keys = np.array([7, 7, 7, 7, 7], dtype=np.uint64)
    groups = np.array([0, 0, 0, 1, 1])
    values = np.array([5.0, 1.0, 2.0, 4.0, 8.0])
    split = protocol_split(keys, groups, values)
    side = split.train if len(split.train) else split.test
    assert side.median(values).tolist() == [2.0, 6.0]


def test_examples_can_be_taken_by_mask() -> None:
    keys, groups, values = table(200, 40)
    train = protocol_split(keys, groups, values).train
    odd = train.take(np.arange(len(train)) % 2 == 1)
    assert odd.first.tolist() == train.first[1::2].tolist()
    assert odd.median(values).tolist() == train.median(values)[1::2].tolist()


def test_validation_is_disjoint_from_what_is_left_to_train_on() -> None:
    keys, groups, values = table(5000, 2000)
    split = protocol_split(keys, groups, values)
    carved = carve_validation(split.train, keys, share=0.1)
    sides = [keys_of(side, keys) for side in (carved.train, carved.test, split.test)]
    assert sides[0] & sides[1] == sides[0] & sides[2] == sides[1] & sides[2] == set()
    assert sides[0] | sides[1] == keys_of(split.train, keys)
    assert 0.07 < len(carved.test) / len(split.train) < 0.13


def test_unseen_widths_are_in_no_trained_dim() -> None:
    random = np.random.default_rng(0)
    n, k = random.choice([32, 64, 128, 256, 512, 1024, 2048, 4096, 8192], (2, 3000))
    keys = (n * 10_000 + k).astype(np.uint64)
    groups = random.integers(0, 3, 3000)
    split = by_unseen_dims(keys, groups, (n, k))
    held = set(n[split.test.rows].tolist()) - set(n[split.train.rows].tolist())
    assert len(held) == 4
    assert held.isdisjoint(k[split.train.rows].tolist())
    assert {32, 8192}.isdisjoint(held)
    assert keys_of(split.train, keys) & keys_of(split.test, keys) == set()
    assert_whole(split, keys, groups)


def test_too_few_widths_are_refused_with_their_number() -> None:
    keys, groups, _ = table(10, 5)
    with pytest.raises(RequestError, match="have 3"):
        by_unseen_dims(keys, groups, (np.array([1, 2, 3, 1, 2, 3, 1, 2, 3, 1]),))
