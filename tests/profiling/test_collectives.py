"""Collectives: bytes as nccl-tests counts them, groups on nodes, and a real run on two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import CollectiveRequest, RequestError
from traincast.profiling.collectives.cases import (
    COLLECTIVES,
    bus_factor,
    cases_of,
    companions,
    counted_bytes,
    elements_of,
    parse_size,
    parse_sizes,
    placements,
)
from traincast.profiling.collectives.measure import collective_identity, library_name
from traincast.profiling.machine.device import device_name
from traincast.profiling.output import ProfileOutput, journal_path
from traincast.profiling.rows import COLLECTIVE_COLUMNS

TWO_NODES = ["a"] * 4 + ["b"] * 4


def test_bytes_are_counted_as_nccl_tests_does() -> None:
    held = {name: elements_of(name, 1 << 20, 4) for name in COLLECTIVES}
    assert held == {
        "all_reduce": 1 << 18,
        "all_gather": 1 << 16,  # a quarter each, the whole output counts
        "reduce_scatter": 1 << 18,  # the whole input counts
        "all_to_all": 1 << 18,  # the send buffer of a rank counts
        "broadcast": 1 << 18,
        "p2p": 1 << 18,
    }


@given(st.sampled_from(COLLECTIVES), st.integers(1, 1 << 30), st.integers(2, 64))
def test_counted_bytes_are_those_asked_for_or_a_little_less(collective: str, nbytes: int, ranks: int) -> None:
    found = counted_bytes(collective, elements_of(collective, nbytes, ranks), ranks)
    assert found <= max(nbytes, 4 * ranks)
    assert found > nbytes - 4 * ranks
    assert counted_bytes(collective, elements_of(collective, found, ranks), ranks) == found


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 4) for name in COLLECTIVES] == [1.5, 0.75, 0.75, 0.75, 1.0, 1.0]


def test_sizes_are_read_as_lists_and_ranges() -> None:
    assert [parse_size(s) for s in ("1", "4KiB", "1MB", "1.5GiB")] == [1, 4096, 10**6, 3 << 29]
    assert parse_sizes("1KiB..16KiB") == (1024, 2048, 4096, 8192, 16384)
    assert parse_sizes("1KiB..64KiB:8, 1KiB,3MiB") == (1024, 8192, 65536, 3 << 20)
    for wrong in ("", "foo", "1KiB..", "4KiB..1KiB", "1KiB..2KiB:1", "0", "-4", "1e30", "1TiB"):
        with pytest.raises(RequestError, match="size"):
            parse_sizes(wrong)


def test_groups_are_packed_on_a_node_and_spread_over_nodes() -> None:
    found = {(len(p.ranks), p.num_nodes): p for p in placements(TWO_NODES, (2, 4, 8))}
    assert set(found) == {(2, 1), (2, 2), (4, 1), (4, 2), (8, 2)}
    assert found[4, 1].ranks == (0, 1, 2, 3)
    assert found[4, 2].ranks == (0, 1, 4, 5)
    assert found[2, 2].ranks == (0, 4)
    assert (found[2, 1].variant, found[2, 2].variant) == ("packed", "spread")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_every_group_has_as_many_ranks_on_each_of_its_nodes(counts: list[int]) -> None:
    nodes = [str(n) for n, count in enumerate(counts) for _ in range(count)]
    for placement in placements(nodes, ()):
        homes = [nodes[rank] for rank in placement.ranks]
        assert len(set(homes)) == placement.num_nodes
        assert {homes.count(home) for home in homes} == {len(homes) // placement.num_nodes}
        assert len(set(placement.ranks)) == len(placement.ranks)


def test_without_groups_they_double_up_to_all_ranks() -> None:
    assert [len(p.ranks) for p in placements(["a"] * 6, ())] == [2, 4, 6]


def test_cases_that_come_out_the_same_are_one() -> None:
    request = CollectiveRequest(collectives=("all_gather", "p2p"), sizes=(1024, 1025, 4096), groups=(2, 4))
    cases = cases_of(request, ["a"] * 4)
    assert [(c.collective, c.nbytes, len(c.placement.ranks)) for c in cases] == [
        ("all_gather", 1024, 2),
        ("all_gather", 4096, 2),
        ("p2p", 1024, 2),
        ("p2p", 4096, 2),
        ("all_gather", 1024, 4),
        ("all_gather", 4096, 4),
    ]


def test_patterns_come_after_the_isolated_cases() -> None:
    request = CollectiveRequest(
        collectives=("all_reduce",), sizes=(1024,), groups=(2,), beside_compute=True, concurrent_groups=2
    )
    cases = cases_of(request, ["a"] * 4)
    assert [(case.computing, len(case.groups)) for case in cases] == [(False, 1), (True, 1), (False, 2), (True, 2)]
    assert cases[2].ranks == (0, 1, 2, 3)
    assert [case.computing for case in cases_of(request, ["a"] * 3)] == [False, True]


def test_concurrent_groups_share_the_nodes_and_no_rank() -> None:
    (spread,) = (p for p in placements(TWO_NODES, (4,)) if p.num_nodes == 2)
    (other,) = companions(spread, TWO_NODES, 1)
    assert (spread.ranks, other.ranks) == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert companions(spread, TWO_NODES, 2) == ()


def test_groups_are_placed_on_several_sets_of_nodes() -> None:
    nodes = ["a", "b", "c"]
    found = [p.ranks for p in placements(nodes, (2,), node_sets=2)]
    assert found == [(0, 1), (1, 2)]
    assert [p.ranks for p in placements(nodes, (3,), node_sets=2)] == [(0, 1, 2)]


@pytest.mark.long(guard="test_two_local_processes_measure_every_collective_and_go_on_where_a_run_stopped")
def test_patterns_are_measured_and_named_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    asked = ("--local", "4", "--groups", "2", "--ops", "all_reduce", "--sizes", "1KiB", "--repeats", "3")
    done = run(*asked, "--beside-compute", "--concurrent-groups", "2", "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(path).to_pylist()
    assert [(r["beside_compute"], r["concurrent_groups"], r["n_ranks"]) for r in rows] == [
        (False, 1, 2),
        (True, 1, 2),
        (False, 2, 2),
        (True, 2, 2),
    ]
    assert all(r["time_us"] > 0 for r in rows)
    assert len(json.loads(done.stdout)["summary"]) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"collectives": ("all_reduze",)}, "all_reduce"),
        ({"backend": "mpi"}, "unknown backend"),
        ({"repeats": -1}, "repeats is -1"),
        ({"groups": (1,)}, "2 ranks or more"),
        ({"concurrent_groups": 0}, "concurrent_groups is 0"),
        ({"node_sets": -1}, "node_sets is -1"),
        ({"time_limit_s": 0.0}, "time_limit_s is 0"),
        ({"sizes": ()}, "nothing to profile"),
    ],
)
def test_a_request_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        CollectiveRequest(**{"sizes": (1024,), **change})


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincast", "profile", "collectives", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_two_local_processes_measure_every_collective_and_go_on_where_a_run_stopped(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    # As if a run had been killed: its journal holds one row, and half of another.
    zero: dict[str, Any] = {"string": "", "int64": 4, "double": 0.0, "bool": False}
    row = {name: zero[kind] for name, kind in COLLECTIVE_COLUMNS.items()} | {
        "source": "profile",
        "system": "here",
        "device": device_name("cpu"),
        "collective": "all_reduce",
        "bytes": 1024,
        "n_ranks": 2,
        "n_nodes": 1,
        "interconnect": "TCP loopback",
        "library": library_name("gloo"),
        "time_us": 123.0,
        "concurrent_groups": 1,
    }
    with ProfileOutput(path, table="collectives", identity=collective_identity) as stopped:
        stopped.add(row)
    with journal_path(path).open("a", encoding="utf-8") as file:
        file.write('["x",{"row":{"s')
    done = run("--local", "2", "--sizes", "1KiB,4KiB", "--repeats", "4", "--system", "here", "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["measured"], said["kept"], len(said["warnings"]), said["failures"]) == (11, 1, 1, [])
    found = pq.read_table(path)
    assert found.column_names == list(COLLECTIVE_COLUMNS)
    rows = found.to_pylist()
    assert rows[0] == row
    assert {(r["collective"], r["bytes"]) for r in rows} == {(c, s) for c in COLLECTIVES for s in (1024, 4096)}
    assert len(rows) == 12
    for r in rows[1:]:
        assert (r["n_ranks"], r["n_nodes"], r["ranks_per_node"], r["variant"]) == (2, 1, 2, "packed")
        assert (r["stat"], r["n_meas"], r["system"], r["dtype"]) == ("median, max over ranks", 4, "here", "float")
        assert (r["library"], r["device"]) == (row["library"], row["device"])
        rate = r["bytes"] * bus_factor(r["collective"], 2) / r["time_us"] / 1e3
        assert r["busbw_GBps"] == pytest.approx(rate)
        assert 0 < r["time_us_min"] <= r["time_us"]
    assert list(tmp_path.iterdir()) == [path]
