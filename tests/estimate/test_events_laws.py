"""Measured curves: interpolation between sizes, and the law of each algorithm for more ranks."""

from __future__ import annotations

import numpy as np
import pytest

from traincast.estimate.events.laws import GLOO_LAWS, LAWS, MeasuredCurve, interpolated

SIZES = np.array([1e3, 1e4, 1e5, 1e6, 1e7])


def curve(collective: str, *, num_ranks: int = 2) -> MeasuredCurve:
    """A curve of 1 ms and 1 GB/s, with an interval of 10 % around it."""
    seconds = 1e-3 + SIZES / 1e9
    return MeasuredCurve(
        collective=collective,
        num_ranks=num_ranks,
        num_nodes=num_ranks,
        nbytes=SIZES,
        seconds=seconds,
        low=0.9 * seconds,
        high=1.1 * seconds,
    )


def two(nbytes: float) -> float:
    """Seconds of two ranks, as measured."""
    return 1e-3 + nbytes / 1e9


def test_a_measured_size_takes_exactly_its_time() -> None:
    found = curve("all_reduce").at(1e6, 2)
    assert found == (two(1e6), 0.9 * two(1e6), 1.1 * two(1e6))


@pytest.mark.parametrize(("n", "factor"), [(2, 1.0), (4, 3.0), (8, 7.0)])
def test_an_all_reduce_is_a_ring_of_twice_n_minus_one_messages(n: int, factor: float) -> None:
    # t_n(S) = 2(n-1) m(S/n) with m(c) = t_2(2c)/2: at S = n/2 MB the messages are those of 1 MB among two.
    assert curve("all_reduce").at(n / 2 * 1e6, n)[0] == pytest.approx(factor * two(1e6), rel=1e-12)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_a_ring_is_n_minus_one_messages(kind: str) -> None:
    assert curve(kind).at(2e6, 4)[0] == pytest.approx(3.0 * two(1e6), rel=1e-12)


def test_a_broadcast_is_a_tree_of_whole_messages() -> None:
    assert curve("broadcast").at(1e6, 8)[0] == pytest.approx(3.0 * two(1e6), rel=1e-12)


def test_a_curve_of_four_ranks_is_carried_like_one_of_two() -> None:
    for kind, law in LAWS.items():
        if kind != "p2p":
            of_four, of_two = curve(kind, num_ranks=4), curve(kind)
            ratio = of_four.at(1e6, 4)[0] / of_two.at(1e6, 2)[0]
            assert ratio == 1.0
            message = law.message_bytes(1e6, 4)
            expected = two(1e6) * law.messages(8) / law.messages(4)
            assert of_four.at(law.buffer_bytes(message, 8), 8)[0] == pytest.approx(expected, rel=1e-12)


def test_between_two_sizes_the_line_is_straight_in_logarithms() -> None:
    assert interpolated(10.0, np.array([1.0, 100.0]), np.array([2.0, 8.0])) == pytest.approx(4.0, rel=1e-12)


def test_a_size_below_all_measured_ones_takes_the_least_time() -> None:
    assert interpolated(0.1, np.array([1.0, 100.0]), np.array([2.0, 8.0])) == 2.0


def test_a_size_beyond_all_measured_ones_follows_the_last_slope_but_never_more_than_in_proportion() -> None:
    sizes = np.array([1.0, 10.0, 100.0])
    assert interpolated(1e4, sizes, np.array([1.0, 1.0, 10.0])) == pytest.approx(1000.0, rel=1e-12)
    assert interpolated(1e4, sizes, np.array([1.0, 1.0, 100.0])) == pytest.approx(1e4, rel=1e-12)
    assert interpolated(1e4, sizes, np.array([1.0, 3.0, 2.0])) == 2.0


def test_two_ranks_of_gloo_gather_in_three_halves_and_four_in_six() -> None:
    sizes = np.array([1e6, 2e6, 4e6])
    seconds = 0.75 * sizes / 62.5e6  # as measured: three messages of a quarter of the buffer
    curve = MeasuredCurve(
        collective="all_gather", num_ranks=2, num_nodes=2, nbytes=sizes, seconds=seconds, low=seconds, high=seconds,
        laws=GLOO_LAWS,
    )  # fmt: skip
    assert curve.at(4e6, 2)[0] == pytest.approx(0.75 * 4e6 / 62.5e6)
    assert curve.at(4e6, 4)[0] == pytest.approx(0.75 * 4e6 / 62.5e6)  # six messages of an eighth
    assert curve.at(6e6, 3)[0] == pytest.approx(4.0 * 1e6 / 62.5e6)
