"""The own points of a system: evenly over curves and sizes, whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.fitting.collectives.prior import choose_points

SIZES = np.arange(10.0, 31.0)


def test_the_smallest_and_the_largest_size_are_among_them() -> None:
    assert choose_points(["a"] * 21, SIZES, 5) == [0, 5, 10, 15, 20]
    assert choose_points(["a"] * 21, SIZES, 2) == [0, 20]


def test_curves_take_turns_the_longest_first() -> None:
    curves = ["few"] * 3 + ["many"] * 18
    chosen = choose_points(curves, SIZES, 5)
    assert sum(curves[i] == "few" for i in chosen) == 2
    assert sum(curves[i] == "many" for i in chosen) == 3
    assert [curves[i] for i in choose_points(curves, SIZES, 1)] == ["many"]


def test_curves_with_a_single_point_give_the_largest_the_smallest_and_a_middle_size() -> None:
    curves, sizes = ["a"] * 5 + ["b"] * 5 + ["c"] * 5, np.tile(np.arange(5.0), 3)
    assert choose_points(curves, sizes, 3) == [4, 5, 12]


def test_a_second_measurement_of_a_size_comes_after_all_sizes() -> None:
    sizes = np.array([1.0, 1.0, 2.0, 2.0])
    assert choose_points(["a"] * 4, sizes, 2) == [0, 2]
    assert choose_points(["a"] * 4, sizes, 3) == [0, 2, 3]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(3, 34)), min_size=1, max_size=60),
    st.integers(0, 70),
    st.randoms(),
)
def test_there_are_as_many_as_asked_for_and_the_order_of_rows_does_not_matter(
    points: list[tuple[str, int]], count: int, random: object
) -> None:
    def chosen(rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
        found = choose_points([curve for curve, _ in rows], np.array([float(size) for _, size in rows]), count)
        assert len(set(found)) == len(found) == min(count, len(rows))
        return sorted(rows[i] for i in found)

    mixed = list(points)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert chosen(points) == chosen(mixed)


@pytest.mark.parametrize("count", [0, 3])
def test_no_rows_give_no_points(count: int) -> None:
    assert choose_points([], np.zeros(0), count) == []
