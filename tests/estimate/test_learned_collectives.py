"""Laws of the learned collectives: sane beyond what was measured, equal to it where it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import Cluster, FileFormatError, load_cluster
from traincast.estimate.collectives.curves import Curve, ring_threshold
from traincast.estimate.collectives.features import KINDS, Condition, Message, condition_of, route_of
from traincast.estimate.collectives.learned import CollectiveModel
from traincast.work import Collective, CollectiveKind, Transfer

H100 = load_cluster("dgx-h100")
ALPS = load_cluster("alps:64")
NCCL = Condition(family="NCCL", version="2.27", dtype="fp16")
KERNEL = Condition(family="custom kernel", version="mine 1", dtype="fp16")
SIZES = np.arange(9.0, 31.0)


def ring(size: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    return (ranks - 1) * (5e-6 + 2.0**size / ranks / 50e9)


def tree(size: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    return math.log2(ranks) * (12e-6 + 2.0**size / 200e9)


def all_reduce_seconds(size: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    """A tree below 1 MiB per rank, a ring of 2 (n − 1) steps above."""
    return np.where(2.0**size < 2**20 * ranks, tree(size, ranks), 2 * ring(size, ranks))


def curve(
    cluster: Cluster, kind: str, ranks: int, nodes: int, seconds: np.ndarray[Any, Any], **more: Any
) -> dict[str, Any]:
    route = route_of(cluster, ranks=ranks, nodes=nodes)
    return {"route": route, "kind": kind, "ranks": ranks, "islands": nodes, "seconds": seconds, **more}


def model_of(*curves: dict[str, Any], **card: Any) -> CollectiveModel:
    routes = list(dict.fromkeys(c["route"] for c in curves))
    conditions = list(dict.fromkeys(c.get("condition", NCCL) for c in curves))
    knots = [c.get("sizes", SIZES) for c in curves]
    weights = {
        "curve_route": np.array([routes.index(c["route"]) for c in curves]),
        "curve_kind": np.array([KINDS.index(c["kind"]) for c in curves]),
        "curve_condition": np.array([conditions.index(c.get("condition", NCCL)) for c in curves]),
        "curve_ranks": np.array([c["ranks"] for c in curves]),
        "curve_islands": np.array([c["islands"] for c in curves]),
        "curve_sound": np.array([c.get("sound", True) for c in curves]),
        "curve_start": np.concatenate([[0], np.cumsum([len(k) for k in knots])]),
        "knot_log2_bytes": np.concatenate(knots).astype(np.float32),
        "knot_log_seconds": np.log(np.concatenate([c["seconds"] for c in curves])).astype(np.float32),
    }
    described = {
        "format": 1,
        "routes": [asdict(r) for r in routes],
        "conditions": [asdict(c) for c in conditions],
        "intervals": {"all": [0.9, 1.1]},
    }
    return CollectiveModel(weights=weights, card={**described, **card})


@pytest.fixture(scope="module")
def model() -> CollectiveModel:
    one_node = [
        curve(H100, kind, n, 1, ring(SIZES, n) if kind != "p2p" else 1e-5 + 2.0**SIZES / 3e11)
        for kind in ("all_reduce", "all_gather", "p2p")
        for n in (2, 4, 8)
        if kind != "p2p" or n == 2
    ]
    across = [curve(ALPS, "all_reduce", n, n // 4, all_reduce_seconds(SIZES, n)) for n in (16, 32, 64)]
    gather = [curve(ALPS, "all_gather", n, n // 4, ring(SIZES, n)) for n in (16, 32)]
    return model_of(*one_node, *across, *gather)


def messages(kind: CollectiveKind, sizes: Sequence[float], ranks: int, nodes: int = 1) -> list[Message]:
    return [Collective(kind=kind, nbytes=b, num_ranks=ranks, num_nodes=nodes) for b in sizes]


def test_measured_sizes_and_ranks_come_back(model: CollectiveModel) -> None:
    found = model.estimate(messages("all_reduce", list(2.0**SIZES), 8), H100)
    assert found.learned.all()
    assert found.warnings == ()
    np.testing.assert_allclose(found.seconds, ring(SIZES, 8), rtol=1e-4)
    assert (found.low <= found.seconds).all()
    assert (found.seconds <= found.high).all()


def test_a_size_or_a_number_of_ranks_in_between_lies_in_between(model: CollectiveModel) -> None:
    few, between, many = (model.estimate(messages("all_reduce", [3e6], n), H100).seconds[0] for n in (4, 6, 8))
    assert few < between < many
    assert ring(np.array([21.0]), 8)[0] < many < ring(np.array([22.0]), 8)[0]


@given(
    nbytes=st.floats(min_value=2.0**30, max_value=1e18),
    more=st.floats(min_value=1.0, max_value=100.0),
    ranks=st.sampled_from([2, 3, 8, 16, 24, 64, 128, 200]),
)
def test_time_never_falls_when_bytes_grow_beyond_the_measured(
    model: CollectiveModel, nbytes: float, more: float, ranks: int
) -> None:
    cluster, nodes = (H100, 1) if ranks <= 8 else (ALPS, ranks // 4)
    for kind in ("all_reduce", "all_gather"):
        seconds = model.estimate(messages(kind, [2.0**30, nbytes, nbytes * more], ranks, nodes), cluster).seconds
        assert seconds[0] <= seconds[1] * (1 + 1e-9)
        assert seconds[1] <= seconds[2] * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("nbytes", [0.0, -1.0, math.nan, 1e-300, 1.0, 1e30, math.inf])
@pytest.mark.parametrize("ranks", [1, 2, 7, 4096])
def test_extreme_input_gives_numbers(model: CollectiveModel, kind: CollectiveKind, nbytes: float, ranks: int) -> None:
    for cluster, nodes in ((H100, 1), (ALPS, -(-ranks // 4))):
        found = model.estimate(messages(kind, [nbytes], ranks, nodes), cluster)
        for column in (found.seconds, found.low, found.high):
            assert not np.isnan(column).any()
            assert (column >= 0).all()


def test_a_transfer_follows_its_curve_and_its_links(model: CollectiveModel) -> None:
    inside, outside = Transfer(nbytes=2.0**20), Transfer(nbytes=2.0**20, crosses_nodes=True)
    found = model.estimate([inside, outside], H100.with_nodes(2))
    assert found.learned.tolist() == [True, False]
    assert found.seconds[0] == pytest.approx(1e-5 + 2.0**20 / 3e11, rel=1e-4)


def test_beyond_the_measured_ranks_small_messages_are_trees_and_large_ones_rings(model: CollectiveModel) -> None:
    sizes = np.array([10.0, 14.0, 29.0, 30.0])
    found = model.estimate(messages("all_reduce", list(2.0**sizes), 256, 64), ALPS)
    np.testing.assert_allclose(found.seconds, all_reduce_seconds(sizes, 256), rtol=0.05)
    assert "at most 64 ranks were measured; the time with 256 is extrapolated" in found.warnings[0]
    gathered = model.estimate(messages("all_gather", list(2.0**sizes), 128, 32), ALPS)
    np.testing.assert_allclose(gathered.seconds, ring(sizes, 128), rtol=0.05)


def test_more_ranks_never_take_much_less(model: CollectiveModel) -> None:
    for nbytes in (2.0**10, 2.0**20, 2.0**28):
        seconds = [
            model.estimate(messages("all_reduce", [nbytes], n, n // 4), ALPS).seconds[0] for n in range(16, 257, 16)
        ]
        assert all(b > 0.9 * a for a, b in pairwise(seconds))


def test_intervals_widen_with_distance(model: CollectiveModel) -> None:
    widths = []
    for ranks in (64, 128, 256):
        found = model.estimate(messages("all_reduce", [1e6], ranks, ranks // 4), ALPS)
        widths.append(float(found.high[0] / found.low[0]))
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_a_route_that_was_not_measured_is_not_learned(model: CollectiveModel) -> None:
    work = messages("all_reduce", [1e6], 8)
    assert not model.estimate(work, load_cluster("dgx-a100")).learned.any()
    assert not model.estimate(messages("all_reduce", [1e6], 16, 2), H100.with_nodes(2)).learned.any()
    assert not model.estimate(messages("reduce_scatter", [1e6], 8), H100).learned.any()
    assert model.knows([*work, *messages("broadcast", [1e6], 8)], H100).tolist() == [True, False]


def test_a_sibling_of_the_same_architecture_is_scaled_by_its_links(model: CollectiveModel) -> None:
    h200 = load_cluster("dgx-h200")
    own = model.estimate(messages("all_gather", [2.0**28], 8), H100)
    same = model.estimate(messages("all_gather", [2.0**28], 8), h200)
    half = replace(h200, intra_node=replace(h200.intra_node, bandwidth=h200.intra_node.bandwidth / 2))
    slower = model.estimate(messages("all_gather", [2.0**28], 8), half)
    assert same.learned.all()
    assert same.seconds[0] == pytest.approx(own.seconds[0])
    assert same.high[0] > own.high[0]
    assert 1.7 * own.seconds[0] < slower.seconds[0] < 2.1 * own.seconds[0]
    assert "times measured on h100-sxm5-80gb are used, scaled" in same.warnings[0]


def test_groups_that_share_nics_take_longer(model: CollectiveModel) -> None:
    alone = Collective(kind="all_reduce", nbytes=2.0**30, num_ranks=64, num_nodes=16)
    seconds = model.estimate([alone, replace(alone, sharing=4)], ALPS).seconds
    assert seconds[1] > 1.5 * seconds[0]


def test_software_is_asked_for_by_condition_and_defaults_to_the_library() -> None:
    seconds = ring(SIZES, 8)
    both = model_of(
        curve(H100, "all_reduce", 8, 1, seconds / 3, condition=KERNEL),
        curve(H100, "all_reduce", 8, 1, seconds),
    )
    work = messages("all_reduce", [2.0**16], 8)
    default = both.estimate(work, H100)
    kernel = both.estimate(work, H100, conditions=[KERNEL])
    other = both.estimate(work, H100, conditions=[Condition(family="gloo")])
    assert kernel.seconds[0] == pytest.approx(default.seconds[0] / 3, rel=1e-4)
    assert other.seconds[0] == default.seconds[0]
    assert other.high[0] > default.high[0]


def test_an_untuned_series_answers_only_for_its_own_software() -> None:
    slow = model_of(curve(ALPS, "all_reduce", 16, 4, ring(SIZES, 16) * 20, sound=False))
    work = messages("all_reduce", [1e6], 16, 4)
    assert not slow.estimate(work, ALPS).learned.any()
    assert slow.estimate(work, ALPS, conditions=[NCCL]).learned.all()


def test_a_slow_window_of_a_protocol_is_not_carried_to_more_ranks() -> None:
    curves = []
    for ranks in (16, 32, 64):
        seconds = tree(SIZES, ranks)
        if ranks == 32:
            seconds = np.where((SIZES >= 17) & (SIZES <= 18), seconds * 6, seconds)
        curves.append(curve(ALPS, "all_reduce", ranks, ranks // 4, seconds))
    found = model_of(*curves).estimate(messages("all_reduce", [2.0**17, 2.0**18], 128, 32), ALPS)
    np.testing.assert_allclose(found.seconds, tree(np.array([17.0, 18.0]), 128), rtol=0.25)


def test_the_ring_begins_where_curves_follow_from_each_other_as_rings() -> None:
    curves = []
    for n in (16, 32, 64):
        seconds = np.where(2**20 * n > 2.0**SIZES, 12e-6 * math.log2(n), 2 * ring(SIZES, n))
        curves.append(Curve(ranks=n, islands=n // 4, log2_bytes=SIZES, log_seconds=np.log(seconds)))
    assert 2**19 <= ring_threshold(curves) <= 2**21
    assert ring_threshold(curves[1:]) == 2**20


@pytest.mark.parametrize(
    ("library", "variant", "dtype", "condition"),
    [
        ("NCCL 2.27.3", "NCCL", "half", ("NCCL", "2.27.3", "fp16")),
        ("NCCL (torch.distributed)", "large", "fp16", ("NCCL", "torch.distributed", "fp16")),
        ("vllm custom 0.19.0", "graph/x", "bfloat16", ("custom graph", "vllm 0.19.0", "bf16")),
        ("gloo", "", "float32", ("gloo", "", "fp32")),
        ("", "", "", ("unknown", "", "")),
    ],
)
def test_a_condition_is_read_from_library_variant_and_dtype(
    library: str, variant: str, dtype: str, condition: tuple[str, str, str]
) -> None:
    found = condition_of(library, variant, dtype)
    assert (found.family, found.version, found.dtype) == condition


def test_damaged_weights_are_refused(model: CollectiveModel) -> None:
    weights = dict(model.weights)
    with pytest.raises(FileFormatError, match="format 7"):
        CollectiveModel(weights=weights, card={**model.card, "format": 7})
    with pytest.raises(FileFormatError, match="lack curve_ranks"):
        CollectiveModel(weights={k: v for k, v in weights.items() if k != "curve_ranks"}, card=model.card)
    with pytest.raises(FileFormatError, match="damaged"):
        CollectiveModel(weights={**weights, "curve_start": weights["curve_start"][:-1]}, card=model.card)
    broken = {**weights, "knot_log_seconds": np.full_like(weights["knot_log_seconds"], np.nan)}
    with pytest.raises(FileFormatError, match="knots that are not finite"):
        CollectiveModel(weights=broken, card=model.card)
