"""Communities divide a graph into connected groups, the same at every call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import capture
from traincast.estimate.inspector import communities as module
from traincast.estimate.inspector.amounts import amounts_of
from traincast.estimate.inspector.communities import Ints, communities, components


def parts_inside(edges: Ints, member: Ints, vertices: int) -> int:
    """Number of connected parts if only edges inside communities count, and those that join parts of the graph."""
    joined = module._joined(edges, vertices)
    inside = joined[member[joined[:, 0]] == member[joined[:, 1]]]
    return int(components(inside, vertices).max()) + 1


@pytest.mark.parametrize("model", ["resnet50", "llama3-8b", "densenet121", "dlrm-small"])
@pytest.mark.parametrize("groups", [1, 8, 40])
def test_communities_of_models_are_connected_and_none_is_empty(model: str, groups: int) -> None:
    amounts = amounts_of(capture(model))
    member = communities(amounts.edges, vertices=amounts.operators, groups=groups)
    assert sorted(set(member.tolist())) == list(range(groups))
    assert parts_inside(amounts.edges, member, amounts.operators) == groups
    again = communities(amounts.edges, vertices=amounts.operators, groups=groups)
    assert np.array_equal(member, again)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_communities_of_any_graph_are_connected_and_none_is_empty(data: st.DataObject) -> None:
    vertices = data.draw(st.integers(1, 40))
    pair = st.tuples(st.integers(0, vertices - 1), st.integers(0, vertices - 1))
    edges = np.array(data.draw(st.lists(pair, max_size=80)), dtype=np.int64).reshape(-1, 2)
    groups = data.draw(st.integers(1, vertices))
    member = communities(edges, vertices=vertices, groups=groups)
    assert sorted(set(member.tolist())) == list(range(groups))
    assert parts_inside(edges, member, vertices) == groups


def test_communities_are_numbered_by_their_first_vertices() -> None:
    member = communities(np.array([[i, i + 1] for i in range(11)]), vertices=12, groups=3)
    firsts = [member.tolist().index(group) for group in range(3)]
    assert firsts == sorted(firsts)


def test_a_chain_is_cut_into_runs_of_similar_length() -> None:
    member = communities(np.array([[i, i + 1] for i in range(59)]), vertices=60, groups=6)
    assert (np.diff(member) >= 0).all()
    sizes = np.bincount(member)
    assert sizes.min() >= 5
    assert sizes.max() <= 20


def test_as_many_groups_as_vertices_leave_every_vertex_alone() -> None:
    assert communities(np.array([[0, 1]]), vertices=2, groups=5).tolist() == [0, 1]


def test_the_compiled_loop_gives_the_same_communities() -> None:
    amounts = amounts_of(capture("resnet18"))
    start, near = module._neighbours(module._joined(amounts.edges, amounts.operators), amounts.operators)
    label = np.full(amounts.operators, -1, dtype=np.int64)
    label[[0, 50, 100, 150, 200]] = np.arange(5)
    plain = module._settle(start.tolist(), near.tolist(), label.tolist(), 5)
    assert module._settle_compiled(start, near, label.copy(), 5).tolist() == plain
