"""The prior of unmeasured systems: learned from similar systems, sceptical of odd ones, with intervals that hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.fitting.test_collectives import Row, row, write
from traincast import RequestError
from traincast.estimate.collectives.features import baseline_seconds
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
    assert len(entry.row_links) == len(entry.row_deviation) == 13


def test_spread_holds_nine_of_ten() -> None:
    draw = np.random.default_rng(0)
    judged = [
        LeftOut(
            system=str(n),
            own_points=0,
            missed=np.zeros(10),
            row_links=("across",) * 50,
            row_missed=0.3 * draw.standard_normal(50),
            row_deviation=np.full(50, 0.1),
        )
        for n in range(20)
    ]
    factor = spread_of(judged)["across"][0]
    inside = np.concatenate([np.abs(e.row_missed) <= factor * e.row_deviation for e in judged])
    assert inside.mean() == pytest.approx(0.9, abs=0.002)
    assert set(spread_of(judged[:3])) == {"all"}


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
