"""The mesh of ranks: groups partition the ranks, and lie on nodes as Megatron-LM places them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import devices
from traincast import Strategy, StrategyError, load_cluster
from traincast.strategy import Mesh
from traincast.strategy.mesh import Axis

AXES: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
meshes = st.builds(
    Mesh,
    dp=st.integers(1, 4),
    tp=st.integers(1, 4),
    pp=st.integers(1, 4),
    cp=st.integers(1, 3),
    devices_per_node=st.sampled_from([1, 4, 8]),
)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(mesh=meshes, axes=st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True))
def test_groups_along_axes_partition_the_ranks(mesh: Mesh, axes: list[Axis]) -> None:
    seen: list[int] = []
    size = int(np.prod([mesh.degree(a) for a in axes]))
    for rank in range(mesh.num_ranks):
        group = mesh.group(rank, *axes)
        assert len(group) == size
        assert rank in group
        if rank == group.min():
            seen += group.tolist()
    assert sorted(seen) == list(range(mesh.num_ranks))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(mesh=meshes)
def test_coordinates_and_ranks_are_two_names_of_one_thing(mesh: Mesh) -> None:
    for rank in range(mesh.num_ranks):
        at = {axis: mesh.coordinate(rank, axis) for axis in AXES}
        assert mesh.rank(**at) == rank
        assert all(0 <= at[axis] < mesh.degree(axis) for axis in AXES)


def test_tensor_ranks_are_neighbours_and_pipeline_ranks_are_far_apart() -> None:
    mesh = Mesh(dp=2, tp=4, pp=2, cp=1, devices_per_node=8)
    assert mesh.group(5, "tp").tolist() == [4, 5, 6, 7]
    assert mesh.group(5, "dp").tolist() == [1, 5]
    assert mesh.group(5, "pp").tolist() == [5, 13]


@pytest.mark.parametrize(
    ("axes", "strategy", "expected"),
    [
        (("tp",), Strategy(tp=8, dp=4), (8, 1, 1)),  # inside a node
        (("dp", "cp"), Strategy(tp=8, dp=4), (4, 4, 8)),  # one rank on each of four nodes, eight groups at once
        (("dp", "cp"), Strategy(dp=32), (32, 4, 1)),  # everyone
        (("tp",), Strategy(tp=16, dp=2), (16, 2, 1)),  # two whole nodes
        (("dp", "cp"), Strategy(tp=4, dp=8), (8, 4, 4)),  # two per node on four nodes, four groups at once
    ],
)
def test_a_group_says_how_it_lies_on_the_nodes(
    axes: tuple[Axis, ...], strategy: Strategy, expected: tuple[int, int, int]
) -> None:
    span = Mesh.of(strategy, devices(32)).span(*axes)
    assert (span.num_ranks, span.num_nodes, span.sharing) == expected


def test_a_collective_of_a_span_has_its_ranks_and_nodes() -> None:
    work = Mesh.of(Strategy(tp=8, dp=4), devices(32)).span("dp", "cp").collective("all_reduce", 100.0)
    assert (work.kind, work.nbytes, work.num_ranks, work.num_nodes, work.sharing) == ("all_reduce", 100.0, 4, 4, 8)
    assert work.ranks_per_node == 1


def test_ranks_that_do_not_fill_the_cluster_are_refused_with_the_product_and_a_remedy() -> None:
    cluster = load_cluster("dgx-a100:2")
    said = "dp·cp·tp·pp = 3·1·4·1 = 12 ranks, but dgx-a100 has 2 × 8 = 16 devices; set dp=4, or another number of nodes"
    with pytest.raises(StrategyError, match=re.escape(said)):
        Mesh.of(Strategy(dp=3, tp=4), cluster)
    with pytest.raises(StrategyError, match="choose degrees whose product is 16"):
        Mesh.of(Strategy(tp=3), cluster)
