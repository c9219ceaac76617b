"""Placement rules on small clusters, by hand."""

from __future__ import annotations

import pytest

from traincast import Placement, RequestError, SharedCluster, UnknownNameError
from traincast.scheduling import PLACEMENTS, Node, load_placement
from traincast.scheduling.space.cluster import NodeIndex
from traincast.scheduling.space.free import UNIT, Allocation, Free, JobDemand
from traincast.scheduling.space.placement import Packed


def free_of(*counts: int, size: int = 4, racks: str = "") -> Free:
    """Nodes of one size with so many free GPUs each."""
    nodes = tuple(
        Node(name=str(n), num_gpus=size, rack=racks[n : n + 1], switch=racks[n : n + 1]) for n in range(len(counts))
    )
    free = Free(NodeIndex(SharedCluster(nodes=nodes)))
    for node, count in enumerate(counts):
        used = (1 << size - count) - 1
        if used:
            free.take(Allocation(((node, used),), UNIT, 0, size - count, ""))
    return free


def place(name: str | Placement, gpus: float, free: Free) -> dict[int, int] | None:
    """GPUs by node."""
    rule = load_placement(name) if isinstance(name, str) else name
    pools = free.layout.pools(vc="", gpu_type="")
    whole = gpus >= 1
    found = rule.find(JobDemand(int(gpus) if whole else 1, UNIT if whole else round(gpus * UNIT), pools, ""), free)
    if found is None:
        return None
    assert free.fits(found)
    free.take(found)
    return {node: mask.bit_count() for node, mask in found.gpus}


def test_pooled_takes_any_free_gpus() -> None:
    assert place("pooled", 5, free_of(1, 0, 3, 2)) == {0: 1, 2: 3, 3: 1}


def test_consolidated_takes_the_node_with_the_fewest_free_gpus_that_still_fits() -> None:
    assert place("consolidated", 2, free_of(4, 1, 3, 2)) == {3: 2}


def test_consolidated_takes_whole_empty_nodes_and_one_best_fitting_remainder() -> None:
    assert place("consolidated", 10, free_of(4, 3, 4, 2, 4)) == {0: 4, 2: 4, 3: 2}


def test_consolidated_does_not_split_over_used_nodes() -> None:
    assert place("consolidated", 4, free_of(3, 3)) is None
    assert place("consolidated", 8, free_of(4, 3, 3)) is None


def test_consolidated_takes_smaller_empty_nodes_where_large_ones_do_not_do() -> None:
    nodes = tuple(Node(name=str(n), num_gpus=size) for n, size in enumerate((1, 4, 2, 1)))
    free = Free(NodeIndex(SharedCluster(nodes=nodes)))
    assert place("consolidated", 8, free) == {1: 4, 2: 2, 0: 1, 3: 1}


def test_spread_takes_one_gpu_after_the_other_from_the_emptiest_node() -> None:
    assert place("spread", 3, free_of(4, 2, 3)) == {0: 2, 2: 1}
    assert place("spread", 3, free_of(4, 4, 4)) == {0: 1, 1: 1, 2: 1}


def test_topology_takes_a_node_then_a_rack_then_anything() -> None:
    assert place("topology", 2, free_of(4, 2, 4, 4, racks="aabb")) == {1: 2}
    assert place("topology", 5, free_of(2, 3, 4, 4, racks="aabb")) == {1: 3, 0: 2}
    assert place("topology", 9, free_of(3, 3, 3, 3, racks="aabb")) == {0: 3, 1: 3, 2: 3}


def test_random_draws_by_its_seed() -> None:
    drawn = [place(load_placement("random", seed=seed), 4, free_of(4, 4, 4, 4)) for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert any(other != drawn[0] for other in drawn)


def test_shares_go_where_the_least_is_left_over() -> None:
    free = free_of(2, 2, size=2)
    assert place("consolidated", 0.6, free) == {0: 1}
    assert place("consolidated", 0.7, free) == {0: 1}
    assert place("consolidated", 0.3, free) == {0: 1}
    assert sorted(free.partial.values()) == [0, 400_000]
    assert free.total == 2


def test_three_thirds_are_one_gpu_and_leave_nothing_when_they_go() -> None:
    free = free_of(1, size=1)
    for _ in range(3):
        assert place("pooled", 1 / 3, free) == {0: 1}
    assert place("pooled", 1 / 3, free) is None


def test_packed_keeps_gpus_whole_for_jobs_that_need_them() -> None:
    """A half would fit a node with one GPU left as well as one with two; only the latter may serve a pair."""
    rule = Packed()
    rule.prepare({2.0: 5, 0.5: 5})
    free = free_of(2, 1, size=2)
    assert place(rule, 0.5, free) == {1: 1}
    assert place(rule, 0.5, free) == {1: 1}
    assert place(rule, 2, free) == {0: 2}


def test_gpu_types_are_not_mixed() -> None:
    nodes = (Node(name="a", num_gpus=2, gpu_type="x"), Node(name="b", num_gpus=4, gpu_type="y"))
    free = Free(NodeIndex(SharedCluster(nodes=nodes)))
    assert place("pooled", 5, free) is None
    assert place("pooled", 3, free) == {1: 3}


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("gpus", [0.5, 1, 3, 4])
def test_nothing_is_found_where_nothing_is_free(name: str, gpus: float) -> None:
    assert place(name, gpus, free_of(0, 0)) is None


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(UnknownNameError, match="did you mean pooled"):
        load_placement("poled")


def test_an_object_that_is_not_a_placement_is_refused() -> None:
    with pytest.raises(RequestError, match=r"subclass traincast\.scheduling\.Placement"):
        load_placement("traincast.scheduling:Exact")
