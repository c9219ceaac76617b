"""Laws of collectives on a system that was hardly measured: near its own points, sane everywhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import Cluster, FileFormatError, learned_cost_model, load_cluster
from traincast.estimate.collectives.adapted import AdaptedSystem, adapted_from, link_of
from traincast.estimate.collectives.features import Condition, baseline_seconds, condition_of, message_of, route_of
from traincast.estimate.collectives.prior import FEATURES, Points, SystemPrior, setting_of, transport_of, unpacked
from traincast.work import Collective

Floats = npt.NDArray[np.float64]
NCCL = condition_of("NCCL 2.27.3")
MINE = load_cluster("dgx-h100:2")
SIZES = 2.0 ** np.arange(12.0, 34.0)


@cache
def prior() -> SystemPrior:
    found = learned_cost_model().collectives[0].prior
    assert found is not None
    return found


def works(sizes: Floats, *, ranks: int = 16, nodes: int = 2, kind: str = "all_reduce") -> list[Any]:
    return [message_of(kind, float(size), ranks, nodes) for size in sizes]


def truth(sizes: Floats, *, ranks: int = 16, nodes: int = 2, kind: str = "all_reduce") -> Floats:
    """A fabric that is 1.6 times slower than its datasheet, and 2.5 times slower for small messages."""
    factor = 1.6 + 0.9 / (1.0 + sizes / 1e6)
    return factor * baseline_seconds(works(sizes, ranks=ranks, nodes=nodes, kind=kind), MINE)


def system(sizes: Floats, seconds: Floats | None = None, cluster: Cluster = MINE, **more: Any) -> AdaptedSystem:
    measured = truth(sizes) if seconds is None else seconds
    setting = setting_of("all_reduce", route_of(cluster, ranks=16, nodes=2), 16, NCCL)
    points = Points(
        settings=(setting,) if len(sizes) else (),
        setting=np.zeros(len(sizes), dtype=np.int64),
        log2_bytes=np.log2(sizes),
    )
    residual = np.log(measured / baseline_seconds(works(sizes), cluster)) if len(sizes) else np.zeros(0)
    return AdaptedSystem(prior=prior(), points=points, residual=residual, condition=NCCL, **more)


def error(own: int) -> float:
    chosen = SIZES[np.round(np.linspace(0, len(SIZES) - 1, own)).astype(int)] if own else SIZES[:0]
    found = system(chosen).estimate(works(SIZES), MINE)
    return float(np.median(np.abs(found.seconds / truth(SIZES) - 1)))


def test_own_points_reproduce_themselves() -> None:
    own = SIZES[::3]
    found = system(own).estimate(works(own), MINE)
    assert found.known.all()
    np.testing.assert_allclose(found.seconds, truth(own), rtol=0.05)


def test_the_error_falls_with_the_number_of_own_points() -> None:
    none, few, many = error(0), error(3), error(10)
    assert none > 0.2
    assert none > 2 * few
    assert many < 0.03
    assert many <= few


def test_intervals_are_widest_without_points_and_hold_the_truth_with_them() -> None:
    widths = []
    for own in (SIZES[:0], SIZES[::4]):
        found = system(own).estimate(works(SIZES), MINE)
        assert (found.low < found.seconds).all()
        assert (found.seconds < found.high).all()
        widths.append(found.high / found.low)
    assert (widths[0] > 1.5 * widths[1]).all()
    found = system(SIZES[::4]).estimate(works(SIZES), MINE)
    assert ((found.low < truth(SIZES)) & (truth(SIZES) < found.high)).all()


def test_without_own_points_the_posterior_is_the_prior() -> None:
    none = system(SIZES[:0])
    at = system(SIZES).points
    mean, deviation = none.posterior(at)
    np.testing.assert_array_equal(mean, prior().residual(at))
    np.testing.assert_allclose(deviation**2, prior().variance(at) + prior().scatter ** 2)


@settings(max_examples=25, deadline=None)
@given(
    chosen=st.sets(st.integers(0, len(SIZES) - 1), min_size=1, max_size=8),
    factors=st.lists(st.floats(0.05, 20.0), min_size=8, max_size=8),
    ranks=st.sampled_from([16, 64]),
)
def test_own_points_never_widen_the_interval(chosen: set[int], factors: list[float], ranks: int) -> None:
    asked = works(SIZES, ranks=ranks, nodes=ranks // 8)
    cluster, before = MINE.with_nodes(ranks // 8), np.full(len(SIZES), np.inf)
    order = sorted(chosen)
    for count in range(len(order) + 1):
        own = SIZES[order[:count]]
        found = system(own, truth(own) * np.array(factors[:count])).estimate(asked, cluster)
        assert (found.high / found.low <= before * (1 + 1e-9)).all()
        before = found.high / found.low


def test_the_interval_of_a_common_machine_is_narrower_than_that_of_an_unknown_network() -> None:
    large = works(SIZES[-4:])
    widths = []
    for network in ("NDR InfiniBand", "carrier pigeon"):
        cluster = replace(MINE, inter_node=replace(MINE.inter_node, name=network))
        found = system(SIZES[:0]).estimate(large, cluster)
        widths.append(found.high / found.low)
    assert (widths[0] < widths[1]).all()
    assert widths[0].max() < 4


def test_far_from_the_own_points_the_interval_is_wider_than_near_them() -> None:
    near = system(SIZES[::4]).estimate(works(SIZES[10:11]), MINE)
    far = system(SIZES[::4]).estimate(works(SIZES[10:11], ranks=512, nodes=64), MINE)
    assert far.high[0] / far.low[0] > 1.2 * near.high[0] / near.low[0]


def test_one_congested_point_moves_the_estimate_little() -> None:
    own = SIZES[::2]
    congested = truth(own)
    congested[5] *= 10
    found = system(own, congested).estimate(works(own), MINE)
    others = np.arange(len(own)) != 5
    np.testing.assert_allclose(found.seconds[others], truth(own)[others], rtol=0.35)
    assert found.seconds[5] < 0.4 * congested[5]


@settings(max_examples=25, deadline=None)
@given(
    factors=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=8),
    ranks=st.sampled_from([2, 16, 24, 1024]),
    kind=st.sampled_from(["all_reduce", "all_gather", "all_to_all", "p2p"]),
)
def test_times_are_positive_and_never_fall_when_bytes_grow(factors: list[float], ranks: int, kind: str) -> None:
    own = SIZES[:: len(SIZES) // len(factors)][: len(factors)]
    adapted = system(own, truth(own) * np.array(factors))
    sizes = 2.0 ** np.arange(0.0, 45.0, 0.31)
    group = 2 if kind == "p2p" else ranks
    found = adapted.estimate(works(sizes, ranks=group, nodes=2, kind=kind), MINE)
    assert np.isfinite(found.high).all()
    assert (found.low > 0).all()
    assert (np.diff(found.seconds) >= -1e-12 * found.seconds[1:]).all()


def test_only_works_over_the_own_links_are_known() -> None:
    links = frozenset({link_of(route_of(MINE, ranks=16, nodes=2))})
    adapted = system(SIZES[::4], links=links)
    nothing = Collective(kind="all_reduce", nbytes=0.0, num_ranks=16, num_nodes=2)
    across, inside = works(SIZES[:1]), works(SIZES[:1], ranks=8, nodes=1)
    found = adapted.estimate([*across, *inside, nothing], MINE)
    assert found.known.tolist() == [True, False, False]
    more = adapted.estimate(works(SIZES[:1], ranks=32, nodes=4), MINE.with_nodes(4))
    assert more.known.all()
    assert "none of 32 ranks like this" in more.warnings[0]
    assert found.warnings == ()


def test_groups_that_share_the_nics_take_longer() -> None:
    (work,) = works(SIZES[-1:])
    adapted = system(SIZES[::4])
    alone, shared = adapted.estimate([work, replace(work, sharing=4)], MINE).seconds
    assert shared > 2 * alone


def test_packed_and_read_again_the_estimates_are_the_same() -> None:
    adapted = system(SIZES[::3], links=frozenset({link_of(route_of(MINE, ranks=16, nodes=2))}))
    (arrays, card), (prior_arrays, prior_card) = adapted.packed(), prior().packed()
    again = adapted_from(unpacked(prior_arrays, prior_card), arrays, card)
    before, after = (each.estimate(works(SIZES), MINE) for each in (adapted, again))
    np.testing.assert_allclose(after.seconds, before.seconds, rtol=1e-4)
    np.testing.assert_allclose(after.high, before.high, rtol=1e-4)
    assert again.links == adapted.links


def test_a_damaged_prior_is_refused() -> None:
    arrays, card = prior().packed()
    for wrong in (
        {**card, "features": ["colour"]},
        {**card, "words": card["words"][:1]},
        {key: value for key, value in card.items() if key != "noise"},
    ):
        with pytest.raises(FileFormatError, match="prior of unmeasured systems is damaged"):
            unpacked(arrays, wrong)
    for name in ("prior_texts", "prior_weight", "prior_numbers"):
        with pytest.raises(FileFormatError, match="prior of unmeasured systems is damaged"):
            unpacked({**arrays, name: arrays[name][:-1]}, card)


def test_settings_tell_transports_and_patterns_apart() -> None:
    names = (
        "NDR InfiniBand",
        "EFA 100G",
        "RoCE",
        "Slingshot-11",
        "TCPX",
        "10G Ethernet",
        "Omni-Path",
        "carrier pigeon",
    )
    kinds = ["infiniband", "efa", "roce", "slingshot", "tcpx", "tcp", "omni-path", "carrier pigeon"]
    assert [transport_of(name) for name in names] == kinds
    route = route_of(MINE, ranks=16, nodes=2)
    busy = replace(NCCL, beside_compute=True)
    isolated, beside = (setting_of("all_reduce", route, 16, c) for c in (NCCL, busy))
    assert isolated != beside
    assert dict(zip(FEATURES, beside.texts, strict=True))["pattern"] == "beside compute"
    assert Condition(family="gloo", concurrent_groups=2).pattern == "2 groups"
