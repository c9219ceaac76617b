"""The prior of unmeasured systems: learned from similar systems, sceptical of odd ones, with intervals that hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.fitting.test_collectives import Row, row, write
from traincast import RequestError
from traincast.estimate.collectives.features import baseline_seconds
from traincast.estimate.collectives.prior import variance
from traincast.fitting.collectives.prior import LeftOut, doubted, fit_prior, left_out_systems, spread_of, system_cells
from traincast.fitting.collectives.table import CollectiveTable, read_collectives

FACTORS = {"a": 1.5, "b": 1.6, "c": 1.7, "d": 1.45, "e": 1.55, "f": 1.65}
"""How much slower each of some systems with the same network is than its datasheet."""


def rows_of(system: str, factor: float) -> list[Row]:
    place = {"n_nodes": 2.0, "ranks_per_node": 8.0, "system": system, "interconnect": "NVSwitch + 8x400G NDR IB"}
    return [row(2.0**e, 16, time_us=1000.0 * factor, busbw_GBps=None, **place) for e in range(16, 32, 2)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "table.parquet"


def table(file: Path, factors: dict[str, float]) -> CollectiveTable:
    """Systems that take ``factors`` times their baseline."""
    rows = [each for system, factor in factors.items() for each in rows_of(system, factor)]
    found = read_collectives(write(file, rows))
    assert not found.problems
    return replace(found, seconds=found.baseline * np.array([factors[s] for s in found.system]))


def test_a_new_system_is_expected_to_be_as_the_others(file: Path) -> None:
    made = table(file, FACTORS)
    prior, cells = fit_prior([made]), system_cells([made])
    expected = prior.residual(cells.of(cells.system == 0))
    np.testing.assert_allclose(np.exp(expected), 1.57, rtol=0.08)


def test_an_odd_system_says_little_about_others(file: Path) -> None:
    odd = {**FACTORS, "tcp": 20.0}
    cells = system_cells([table(file, odd)])
    number = cells.systems.index("tcp")
    assert cells.variance[cells.system == number].min() > 100 * cells.variance[cells.system != number].max()
    expected = fit_prior([table(file, odd)]).residual(cells.of(cells.system == 0))
    np.testing.assert_allclose(np.exp(expected), 1.57, rtol=0.12)


def test_a_system_left_out_is_not_seen(file: Path) -> None:
    cells = system_cells([table(file, FACTORS)])
    changed = replace(cells, value=np.where(cells.system == 0, cells.value + 1.0, cells.value))
    before, after = (next(left_out_systems(c, (0,))) for c in (cells, changed))
    assert before.system == after.system == "a"
    np.testing.assert_allclose(before.missed - after.missed, 1.0)


def test_own_points_reduce_the_error_of_a_system_left_out(file: Path) -> None:
    judged = list(left_out_systems(system_cells([table(file, {**FACTORS, "slow": 4.0})]), (0, 3)))
    none, some = (next(e for e in judged if e.system == "slow" and e.own_points == n) for n in (0, 3))
    assert (len(none.missed), len(some.missed)) == (8, 5)
    assert np.abs(none.missed).mean() > 0.7
    assert np.abs(some.missed).mean() < 0.1
    assert some.row_deviation.max() < none.row_deviation.min()


def test_all_rows_but_the_own_points_are_judged_by_the_intervals(file: Path) -> None:
    twice = [each for _ in range(2) for system, factor in FACTORS.items() for each in rows_of(system, factor)]
    cells = system_cells([read_collectives(write(file, twice))])
    entry = next(left_out_systems(cells, (3,)))
    assert (len(entry.missed), len(entry.row_missed)) == (5, 13)
    assert len(entry.row_deviation) == 13


def left_out(system: str, off: npt.NDArray[np.float64], own_points: int = 0) -> LeftOut:
    """A system whose rows took exp(``off``) times as long as estimated, where the model states 0.1."""
    deviation = np.full(len(off), 0.1)
    return LeftOut(system=system, own_points=own_points, missed=-off[:1], row_missed=-off, row_deviation=deviation)


def test_spread_holds_nine_of_ten() -> None:
    draw = np.random.default_rng(0)
    judged = [left_out(str(n), 0.3 * draw.standard_normal(50)) for n in range(20)]
    below, above = spread_of(judged)
    inside = [(-below * 0.1 <= -e.row_missed) & (-e.row_missed <= above * 0.1) for e in judged]
    assert np.concatenate(inside).mean() == pytest.approx(0.9, abs=0.002)
    assert below == pytest.approx(above, rel=0.25)


def test_intervals_reach_further_where_systems_left_out_were_slower() -> None:
    below, above = spread_of([left_out(str(n), np.linspace(-0.05, 0.4, 46)) for n in range(10)])
    assert below == pytest.approx(0.5, abs=0.1)
    assert above == pytest.approx(3.5, abs=0.2)


def test_a_system_counts_once_however_many_rows_it_has() -> None:
    small = [left_out(str(n), np.full(4, 0.1)) for n in range(18)]
    odd = left_out("odd", np.full(10_000, 2.0))
    assert spread_of([*small, odd]) == pytest.approx((0.0, 1.0))


def test_doubt_is_small_where_alike_systems_were_measured_and_large_elsewhere(file: Path) -> None:
    prior = fit_prior([table(file, FACTORS)])
    alike = prior.points.take(np.arange(8))
    other = tuple(
        replace(s, texts=tuple("tcp" if text == "infiniband" else "all_gather" if text == "all_reduce" else text
                               for text in s.texts))
        for s in alike.settings
    )  # fmt: skip
    strange = replace(alike, settings=other)
    own = variance(prior.own, alike)
    assert (prior.variance(alike) < prior.variance(strange)).all()
    assert (prior.variance(alike) >= own).all()
    total = variance((*prior.shared, *prior.own), strange)
    assert (prior.variance(strange) <= total).all()
    np.testing.assert_allclose(np.diag(prior.covariance(alike, alike)), prior.variance(alike), rtol=1e-6)


def test_kernels_of_frameworks_and_busy_machines_are_left_out(file: Path) -> None:
    rows = [row(2.0**e, library="sglang custom 0.5") for e in range(12, 20)]
    with pytest.raises(RequestError, match="no row of a collective library"):
        system_cells([read_collectives(write(file, rows))])


@cache
def sizes() -> list[float]:
    return [2.0**e for e in range(8, 32)]


def test_a_large_system_is_thinned(file: Path) -> None:
    many = [
        row(s, n, system="big", collective=k) for s in sizes() for n in (2, 4, 8) for k in ("all_reduce", "all_gather")
    ]
    cells = system_cells([read_collectives(write(file, many))])
    assert len(cells.value) == 144
    assert cells.kept.sum() == 72
    assert doubted(cells).variance.shape == cells.value.shape
    made = read_collectives(file)
    np.testing.assert_allclose(made.baseline[:1], baseline_seconds(made.works([0]), made.clusters[0]))
