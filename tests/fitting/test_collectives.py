"""Tables of collectives: what is wrong is said by row, and what is right is recovered by the fit."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from traincast import FileFormatError, RequestError, load_cluster
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.fitting.collectives.fit import (
    compare_collectives,
    fit_collectives,
    held_out_split,
    predict_rows,
    read_collectives,
)
from traincast.work import Collective

Row = dict[str, Any]


def seconds_of(nbytes: float, ranks: int, *, per_step: float = 4e-6, bandwidth: float = 300e9) -> float:
    """A ring with a cliff of a protocol at 64 KiB."""
    cliff = 1.0 if nbytes < 2**16 else 1.4
    return cliff * (ranks * per_step + 2 * (ranks - 1) / ranks * nbytes / bandwidth)


def row(nbytes: float = 2**20, ranks: int = 8, **changes: Any) -> Row:
    time_us = seconds_of(nbytes, ranks) * 1e6
    made = {
        "source": "mine",
        "system": "",
        "device": "H100-SXM5-80GB",
        "collective": "all_reduce",
        "bytes": float(nbytes),
        "n_ranks": float(ranks),
        "n_nodes": 1.0,
        "ranks_per_node": float(ranks),
        "interconnect": "NVSwitch",
        "library": "NCCL 2.27.3",
        "dtype": "half",
        "variant": "",
        "time_us": time_us,
        "busbw_GBps": 2 * (ranks - 1) / ranks * nbytes / (time_us * 1e3),
        "suspect": False,
    }
    if "time_us" in changes and "busbw_GBps" not in changes:
        made["busbw_GBps"] = None
    return {**made, **changes}


def grid(noise: float = 0.0, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows = []
    for device, speed in (("H100-SXM5-80GB", 1.0), ("H200", 1.03)):
        for ranks in (2, 4, 8):
            for exponent in range(9, 30):
                exact = row(2**exponent, ranks, device=device)
                factor = float(np.exp(noise * rng.standard_normal())) / speed
                rows.append({**exact, "time_us": exact["time_us"] * factor})
    return rows


def write(path: Path, rows: list[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "collectives.parquet"


BAD: list[tuple[Row, str]] = [
    ({"collective": "gossip"}, "unknown collective 'gossip'"),
    ({"time_us": None}, "missing or not a number"),
    ({"time_us": float("nan")}, "missing or not a number"),
    ({"time_us": 0.0}, "the time is 0 µs"),
    ({"time_us": -3.0}, "the time is -3 µs"),
    ({"bytes": 0.0}, "bytes is 0"),
    ({"n_ranks": 1.0, "busbw_GBps": None}, "n_ranks is 1"),
    ({"n_ranks": 2.5, "busbw_GBps": None}, "n_ranks is 2.5"),
    ({"n_nodes": 9.0}, "n_nodes is 9 for 8 ranks"),
    ({"n_nodes": None, "ranks_per_node": None}, "n_nodes is nan"),
    ({"suspect": True}, "suspect"),
    ({"device": "abacus"}, "unknown device 'abacus'"),
    ({"time_us": seconds_of(2**20, 8) * 1e3, "busbw_GBps": row()["busbw_GBps"]}, "factor of 1000 apart: mixed units"),
    ({"bytes": 2.0**30, "time_us": 10.0}, "faster than the stated bandwidth"),
    ({"time_us": seconds_of(2**20, 8) * 1e9}, "more than 100 times off the rest of its series"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_row_is_reported_by_its_number_and_not_used(file: Path, changes: Row, reason: str) -> None:
    rows = [row(2**e) for e in range(12, 28)]
    rows[5] = row(**{**changes, "bytes": changes.get("bytes", 2**20)})
    table = read_collectives(write(file, rows))
    assert [(p.row, p.source) for p in table.problems] == [(5, "mine")]
    assert reason in table.problems[0].reason
    assert 5 not in table.index.tolist()
    assert len(table) == len(rows) - 1
    assert table.problems_summary()[0].startswith("row 5: ")


def test_a_series_with_many_impossible_rows_is_not_believed_at_all(file: Path) -> None:
    good = [row(2**e, library="gloo") for e in range(12, 28)]
    bad = [row(2**e, time_us=2**e / 450e9 * 1e6 / 100 if e > 22 else 50.0) for e in range(20, 30)]
    table = read_collectives(write(file, [*good, *bad]))
    assert {p.row for p in table.problems} == set(range(16, 26))
    assert {"none is used" in p.reason for p in table.problems} == {True, False}


def test_rows_equal_to_the_digit_on_two_devices_are_reported(file: Path) -> None:
    def sizes(device: str, factor: float) -> list[Row]:
        return [row(1000.0 * i, device=device, time_us=factor * (20 + i / 7)) for i in range(1, 80)]

    copied = [*sizes("A100-SXM4-80GB", 1.0), *sizes("H100-SXM5-80GB", 1.0)]
    assert len(read_collectives(write(file, copied)).problems) == 158
    measured = [*sizes("A100-SXM4-80GB", 1.0), *sizes("H100-SXM5-80GB", 0.9)]
    assert read_collectives(write(file, measured)).problems == ()


def test_nodes_are_told_by_ranks_per_node_or_by_the_text(file: Path) -> None:
    rows = [
        row(ranks=16, n_nodes=None, ranks_per_node=8.0),
        row(ranks=32, n_nodes=None, ranks_per_node=None, interconnect="IB (8-GPU servers)"),
    ]
    assert read_collectives(write(file, rows)).nodes.tolist() == [2, 4]


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no such file"):
        read_collectives(tmp_path / "none.parquet")
    whole = write(tmp_path / "whole.parquet", grid())
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_collectives(cut)
    pq.write_table(pa.table({"device": ["H100"]}), tmp_path / "few.parquet")
    with pytest.raises(FileFormatError, match="lacks the columns collective"):
        read_collectives(tmp_path / "few.parquet")


def test_no_configuration_is_on_both_sides(file: Path) -> None:
    software = product(range(9, 30), (2, 8), ("NCCL 2.27.3", "NCCL 2.29.2"), ("half", "int8"))
    rows = [row(2**e, ranks, library=library, dtype=dtype) for e, ranks, library, dtype in software]
    table = read_collectives(write(file, rows))
    split = held_out_split(table)
    assert len(split.test)
    assert not set(table.key[split.train.rows].tolist()) & set(table.key[split.test.rows].tolist())


def test_curves_are_recovered_and_sizes_left_out_are_told_by_the_rest(file: Path) -> None:
    rows = [r for r in grid(noise=0.01) if not (r["bytes"] in (2**13, 2**24) and r["n_ranks"] == 4)]
    table = read_collectives(write(file, rows))
    weights, card = fit_collectives(table)
    model = CollectiveModel(weights=weights, card=card)
    assert np.median(np.abs(predict_rows(model, table) / table.seconds - 1)) < 0.01
    works = [Collective(kind="all_reduce", nbytes=2.0**e, num_ranks=4) for e in (13, 24)]
    found = model.estimate(works, load_cluster("dgx-h100"))
    np.testing.assert_allclose(found.seconds, [seconds_of(2**13, 4), seconds_of(2**24, 4)], rtol=0.15)
    assert card["held_out"]["mape"] < 12
    assert sum(w.nbytes for w in weights.values()) < 100_000


def test_single_outliers_do_not_bend_a_curve(file: Path) -> None:
    rows = grid()
    rows[30]["time_us"] *= 8
    table = read_collectives(write(file, rows))
    weights, card = fit_collectives(table)
    predicted = predict_rows(CollectiveModel(weights=weights, card=card), table)
    near = [29, 31]
    np.testing.assert_allclose(predicted[near], table.seconds[near], rtol=0.1)


def test_intervals_hold_nine_in_ten_of_new_measurements(file: Path) -> None:
    table = read_collectives(write(file, grid(noise=0.05, seed=1) + grid(noise=0.05, seed=2)))
    weights, card = fit_collectives(table)
    fresh = read_collectives(write(file, grid(noise=0.05, seed=3)))
    _, low, high = predict_rows(CollectiveModel(weights=weights, card=card), fresh, interval=True)
    inside = np.mean((low <= fresh.seconds) & (fresh.seconds <= high))
    assert inside >= 0.8


def test_the_same_rows_and_seed_give_the_same_weights_in_any_order(file: Path) -> None:
    rows = grid(noise=0.02)
    weights, card = fit_collectives(read_collectives(write(file, rows)), seed=3)
    again, _ = fit_collectives(read_collectives(write(file, rows)), seed=3)
    assert all((weights[name] == again[name]).all() for name in weights)
    turned = read_collectives(write(file, rows[::-1]))
    predicted = predict_rows(CollectiveModel(weights=weights, card=card), turned)
    other, other_card = fit_collectives(turned, seed=3)
    np.testing.assert_allclose(
        predict_rows(CollectiveModel(weights=other, card=other_card), turned), predicted, rtol=1e-4
    )


def test_a_table_of_ones_own_with_gloo_on_cpus_is_fitted(tmp_path: Path) -> None:
    rows = []
    for ranks in (2, 4):
        for e in range(10, 26):
            time_us = 80.0 * ranks + 2 * (ranks - 1) / ranks * 2**e / 1e3
            rows.append({
                "system": "my servers", "device": "cpu", "collective": "all_reduce", "bytes": 2**e, "n_ranks": ranks,
                "n_nodes": ranks, "ranks_per_node": 1, "interconnect": "10G Ethernet", "library": "gloo",
                "dtype": "float32", "variant": "", "time_us": time_us, "time_us_min": time_us * 0.9, "n_meas": 20,
                "dispersion": 0.05, "busbw_GBps": 2 * (ranks - 1) / ranks * 2**e / time_us / 1e3,
            })  # fmt: skip
    path = tmp_path / "own.csv"
    csv.write_csv(pa.Table.from_pylist(rows), path)
    table = read_collectives(path)
    assert table.problems == ()
    weights, card = fit_collectives(table)
    model = CollectiveModel(weights=weights, card=card)
    works = [Collective(kind="all_reduce", nbytes=2.0**20, num_ranks=4, num_nodes=4)]
    found = model.estimate(works, load_cluster("cpu-server:4"))
    assert found.learned.all()
    assert found.seconds[0] == pytest.approx(320e-6 + 1.5 * 2**20 / 1e9, rel=0.1)


def test_an_empty_table_is_refused(file: Path) -> None:
    with pytest.raises(RequestError, match="there is no row to fit: all 1 rows have problems"):
        fit_collectives(read_collectives(write(file, [row(suspect=True)])))


def test_rivals_are_judged_on_the_same_rows(file: Path) -> None:
    table = read_collectives(write(file, grid(noise=0.01)))
    seen: list[tuple[int, int]] = []
    rows = compare_collectives(table, rivals=["ridge"], progress=lambda done, of: seen.append((done, of)))
    assert [r.name for r in rows] == ["analytical", "ridge", "traincast"]
    assert len({r.cells for r in rows}) == 1
    assert rows[-1].mape < rows[0].mape
    assert seen[-1] == (2, 2)
    with pytest.raises(RequestError, match="unknown rivals oracle"):
        compare_collectives(table, rivals=["oracle"])
