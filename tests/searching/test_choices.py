"""Clusters to choose from."""

from __future__ import annotations

import pytest

from tests.conftest import devices
from traincast import RequestError, UnknownNameError, load_cluster
from traincast.searching.ask import parse_nodes
from traincast.searching.places import clusters_to_try


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("8..128", (8, 16, 32, 64, 128)),
        ("8..100", (8, 16, 32, 64, 100)),
        ("8,12,16", (8, 12, 16)),
        ("4, 8..32 ,4", (4, 8, 16, 32)),
        ("3..3", (3,)),
        ("1..1", (1,)),
        ("5..9", (5, 9)),
        (" 7 ", (7,)),
    ],
)
def test_nodes_are_numbers_and_doublings(text: str, nodes: tuple[int, ...]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nodes '': expected numbers of nodes, such as 8..128"),
        (",", "expected numbers of nodes"),
        ("eight", "nodes 'eight': expected a number, or a range such as 8..128"),
        ("8..", "expected a number, or a range"),
        ("..8", "expected a number, or a range"),
        ("8...16", "expected a number, or a range"),
        ("1.5", "expected a number, or a range"),
        ("16..8", "nodes '16..8': expected numbers from 1 to 1000000, the smaller one first"),
        ("0..4", "expected numbers from 1"),
        ("-1", "expected numbers from 1"),
        ("1..2000000", "expected numbers from 1 to 1000000"),
    ],
)
def test_wrong_numbers_of_nodes_are_told(text: str, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_nodes(text)
    assert said in str(caught.value)


def test_every_device_comes_with_every_number_of_nodes() -> None:
    found = clusters_to_try("dgx-a100", (1, 2), ("a100-sxm4-80gb", "dgx-h100"))
    assert [(c.device.name, c.num_nodes) for c in found] == [
        (load_cluster("dgx-a100").device.name, 1),
        (load_cluster("dgx-a100").device.name, 2),
        (load_cluster("dgx-h100").device.name, 1),
        (load_cluster("dgx-h100").device.name, 2),
    ]
    assert clusters_to_try("dgx-a100:4", (), ()) == [load_cluster("dgx-a100:4")]
    assert [c.num_nodes for c in clusters_to_try("dgx-a100:4", (), ("h200-sxm",))] == [4]


def test_clusters_that_cannot_be_varied_are_told() -> None:
    with pytest.raises(RequestError, match="65 clusters to choose from: at most 64 are searched"):
        clusters_to_try("dgx-a100", tuple(range(1, 66)), ())
    with pytest.raises(UnknownNameError):
        clusters_to_try("dgx-a100", (), ("abacus",))
    mixed = load_cluster("dgx-a100:1+dgx-h100:1")
    assert clusters_to_try(mixed, (), ()) == [mixed]
    for nodes, names in (((1, 2), ()), ((), ("h100-sxm5-80gb",))):
        with pytest.raises(RequestError, match="has nodes of several kinds: neither their number nor their device"):
            clusters_to_try(mixed, nodes, names)


def test_a_cluster_given_as_a_value_is_tried_as_it_is() -> None:
    assert clusters_to_try(devices(4), (), ()) == [devices(4)]


def test_a_bare_device_is_one_device_unless_nodes_are_asked_for() -> None:
    assert [c.num_devices for c in clusters_to_try("rtx-4090", (), ("rtx-4090", "rtx-3090"))] == [1, 1]
    assert clusters_to_try("rtx-4090", (1, 2), ()) == [load_cluster("rtx-4090:1"), load_cluster("rtx-4090:2")]
