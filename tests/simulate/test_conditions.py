"""Real clusters: slow ranks, jitter, busy networks, interference, shared links, mixed devices; who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import check_timeline, request_of, seconds_of
from traincast import Conditions, RequestError, Timeline
from traincast.simulate import expand, simulate, under, who_waits
from traincast.simulate.conditions import compute_factors
from traincast.strategy import NUM_STREAMS, Plan, Stream, lower
from traincast.strategy.plan_builder import Grain
from traincast.work import Collective, Launch, Transfer

Floats = npt.NDArray[np.float64]

STRATEGIES = ["dp=4", "dp=4,zero=1,num_microbatches=2", "dp=4,zero=3", "tp=4,sp", "dp=2,tp=2,pp=2,num_microbatches=4"]
GRAINS: list[Grain] = ["segment", "operator"]
SLOW = pytest.mark.parametrize("factor", [1.5, 4.0])


def planned(strategy: str, *, grain: Grain = "segment", runtime: str = "pytorch") -> tuple[Plan, Floats]:
    request = request_of(strategy, runtime=runtime)
    plan = lower(request, grain=grain).plan
    return plan, seconds_of(plan, request)


def compute_bound(plan: Plan, seconds: Floats) -> Floats:
    """The same works without launches, and with collectives that hardly matter."""
    kinds = [
        0.0 if isinstance(w, Launch) else 1e-3 if isinstance(w, Collective | Transfer) else 1.0 for w in plan.works
    ]
    return np.asarray(seconds * np.array(kinds))


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_conditions_change_nothing(strategy: str, grain: Grain) -> None:
    plan, seconds = planned(strategy, grain=grain)
    usual, found = simulate(expand(plan), seconds), under(plan, seconds, Conditions())
    assert (found.start == usual.start).all()
    assert (found.end == usual.end).all()


def test_sharing_of_links_that_nothing_shares_changes_nothing() -> None:
    plan, seconds = planned("tp=4,sp", grain="operator")  # compute waits for all communication, one at a time
    assert under(plan, seconds, Conditions(share_links=True)).step_s == simulate(plan, seconds).step_s


@SLOW
@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("runtime", ["pytorch", "nanotron"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_slow_rank_slows_the_step_by_no_more_than_its_factor(
    strategy: str, runtime: str, grain: Grain, factor: float
) -> None:
    plan, seconds = planned(strategy, grain=grain, runtime=runtime)
    usual = simulate(plan, seconds).step_s
    slowed = under(plan, seconds, Conditions(slow=((1, factor),)))
    check_timeline(slowed)
    assert usual * (1 - 1e-12) <= slowed.step_s <= usual * factor * (1 + 1e-12)


@SLOW
@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("runtime", ["pytorch", "nanotron"])
def test_all_other_replicas_wait_for_the_slow_one(runtime: str, grain: Grain, factor: float) -> None:
    plan, seconds = planned("dp=4", grain=grain, runtime=runtime)
    seconds = compute_bound(plan, seconds)
    usual = simulate(plan, seconds).step_s
    slowed = under(plan, seconds, Conditions(slow=((2, factor),)))
    assert slowed.step_s == pytest.approx(usual * factor, rel=0.02)
    waits = who_waits(slowed)
    assert waits.for_rank.tolist() == [2, 2, -1, 2]
    others = [0, 1, 3]
    assert waits.for_rank_s[others] == pytest.approx(usual * (factor - 1), rel=0.1)
    assert waits.busy_s[2] == pytest.approx(slowed.step_s, rel=0.02)


@pytest.mark.parametrize("conditions", [Conditions(slow=((1, 3.0),)), Conditions(jitter=0.2)], ids=["slow", "jitter"])
@pytest.mark.parametrize("runtime", ["megatron", "nanotron"])
@pytest.mark.parametrize("strategy", [*STRATEGIES, "dp=2,tp=2", "dp=2,cp=2"])
def test_segments_and_operators_agree_where_members_of_a_group_differ(
    strategy: str, runtime: str, conditions: Conditions
) -> None:
    steps = []
    for grain in GRAINS:
        plan, seconds = planned(strategy, grain=grain, runtime=runtime)
        steps.append(under(plan, seconds, conditions).step_s)
    assert steps[0] == pytest.approx(steps[1], rel=1e-6)


def test_a_slow_stage_holds_up_its_neighbours() -> None:
    plan, seconds = planned("pp=4,num_microbatches=8", grain="operator")
    waits = who_waits(under(plan, compute_bound(plan, seconds), Conditions(slow=((2, 3.0),))))
    assert waits.for_rank[1] == 2
    assert waits.for_rank[3] == 2
    assert np.argmin(waits.waiting_s) == 2


@pytest.mark.parametrize("strategy", ["dp=4", "dp=4,zero=3", "tp=4,sp", "dp=2,tp=2", "dp=2,cp=2"])
def test_ranks_that_are_alike_wait_for_no_other(strategy: str) -> None:
    plan, seconds = planned(strategy, grain="operator")
    waits = who_waits(under(plan, seconds, Conditions()))
    assert waits.for_rank.tolist() == [-1] * 4
    assert waits.for_rank_s.tolist() == [0.0] * 4


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("conditions", [Conditions(jitter=0.1), Conditions(slow=((0, 2.0),), interference=0.3)])
def test_busy_and_waiting_add_up_to_the_step(strategy: str, conditions: Conditions) -> None:
    plan, seconds = planned(strategy, grain="operator")
    timeline = under(plan, seconds, conditions)
    waits = who_waits(timeline)
    assert waits.busy_s + waits.waiting_s == pytest.approx(np.full(len(waits.ranks), timeline.step_s))
    assert (waits.for_rank_s <= waits.waiting_s * (1 + 1e-9)).all()
    assert (waits.for_rank != waits.ranks).all()


def test_the_same_seed_is_the_same_step() -> None:
    plan, seconds = planned("dp=4")
    first, again, other = (under(plan, seconds, Conditions(jitter=0.1, seed=s)) for s in (3, 3, 4))
    assert (first.end == again.end).all()
    assert first.step_s != other.step_s


def test_jitter_has_mean_one_and_the_spread_it_was_given() -> None:
    factors = compute_factors(Conditions(jitter=0.2, seed=1), 200_000)
    assert factors.mean() == pytest.approx(1.0, rel=5e-3)
    assert np.log(factors).std() == pytest.approx(0.2, rel=5e-3)


def test_jitter_lengthens_a_step_of_replicas_on_average() -> None:
    plan, seconds = planned("dp=4")
    seconds = compute_bound(plan, seconds)
    steps = [under(plan, seconds, Conditions(jitter=0.1, seed=s)).step_s for s in range(20)]
    assert np.mean(steps) > simulate(plan, seconds).step_s * 1.05


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_busy_network_stretches_what_crosses_nodes_and_nothing_else(share: float) -> None:
    request = request_of("dp=16", global_batch=32)
    plan = lower(request, grain="operator").plan
    seconds = seconds_of(plan, request)
    usual, found = (under(plan, seconds, Conditions(busy_network=s)) for s in (0.0, share))
    crossing = np.array([isinstance(w, Collective) and w.num_nodes > 1 for w in plan.works])[usual.plan.cost]
    assert crossing.any()
    ratio = (found.end - found.start)[crossing] / (usual.end - usual.start)[crossing]
    assert ratio == pytest.approx(np.full(crossing.sum(), 1 / (1 - share)))
    same = (found.end - found.start)[~crossing]
    assert same == pytest.approx((usual.end - usual.start)[~crossing], abs=1e-12)


def test_a_busy_network_leaves_a_single_node_alone() -> None:
    plan, seconds = planned("dp=4")
    assert under(plan, seconds, Conditions(busy_network=0.9)).step_s == simulate(plan, seconds).step_s


@pytest.mark.parametrize("grain", GRAINS)
def test_devices_that_differ_are_as_slow_as_the_slowest(grain: Grain) -> None:
    plan, fast = planned("dp=4", grain=grain)
    computes = np.array([not isinstance(w, Collective | Transfer | Launch) for w in plan.works])
    slow = np.where(computes, 2.5 * fast, fast)
    mixed = under(plan, np.stack([fast, slow]), Conditions(), kind_of_rank=np.array([0, 1, 0, 1]))
    assert mixed.step_s == pytest.approx(simulate(plan, slow).step_s, rel=1e-12)
    all_fast = under(plan, np.stack([fast, slow]), Conditions(), kind_of_rank=np.zeros(4, dtype=np.int64))
    assert all_fast.step_s == simulate(plan, fast).step_s


def test_a_collective_takes_the_largest_of_its_members_seconds() -> None:
    plan, seconds = planned("dp=2", grain="operator")
    slower_links = np.where(plan.communicates(), 7.0 * seconds, seconds)
    mixed = under(plan, np.stack([seconds, slower_links]), Conditions(), kind_of_rank=np.array([0, 1]))
    collective = plan.communicates()[mixed.plan.cost]
    wanted = slower_links[mixed.plan.cost[collective]]
    assert (mixed.end - mixed.start)[collective] == pytest.approx(wanted)


def overlapping(timeline: Timeline) -> Floats:
    """Per task, seconds it takes."""
    return timeline.end - timeline.start


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("weight", [0.1, 0.5])
def test_interference_slows_a_step_by_no_more_than_its_weights(strategy: str, weight: float) -> None:
    """At most one kernel and one communication per stream are on a device at once."""
    plan, seconds = planned(strategy, grain="operator")
    usual = simulate(expand(plan), seconds)
    found = under(plan, seconds, Conditions(interference=weight))
    check_timeline(found)
    bound = 1 + weight * (NUM_STREAMS - 2)
    assert (overlapping(found) <= overlapping(usual) * bound * (1 + 1e-9) + 1e-12).all()
    assert (overlapping(found) >= overlapping(usual) * (1 - 1e-9) - 1e-12).all()
    assert usual.step_s * (1 - 1e-9) <= found.step_s <= usual.step_s * bound * (1 + 1e-9)


def test_interference_leaves_alone_what_does_not_overlap() -> None:
    plan, seconds = planned("tp=4", grain="operator")  # compute waits for every collective
    assert under(plan, seconds, Conditions(interference=0.5)).step_s == pytest.approx(simulate(plan, seconds).step_s)


def test_interference_slows_the_kernels_beside_a_collective() -> None:
    plan, seconds = planned("dp=4,zero=3", grain="operator")
    seconds = np.where([isinstance(w, Launch) for w in plan.works], 0.0, seconds)
    usual, found = simulate(expand(plan), seconds), under(plan, seconds, Conditions(interference=0.5))
    on_compute = usual.plan.lanes[usual.plan.lane_start[:-1]] % NUM_STREAMS == Stream.COMPUTE
    stretch = overlapping(found)[on_compute].sum() / overlapping(usual)[on_compute].sum()
    assert 1.0 < stretch < 1.5


def test_streams_of_a_rank_share_its_link_only_if_asked() -> None:
    """Sends both ways of a pipeline at once, over links so slow that they overlap."""
    plan, seconds = planned("pp=4,num_microbatches=8", grain="operator", runtime="megatron")
    seconds = np.where(plan.communicates(), 50.0 * seconds, seconds)
    apart, shared = (under(plan, seconds, Conditions(share_links=s)) for s in (False, True))
    check_timeline(shared)
    assert shared.step_s > apart.step_s
    sends = plan.communicates()[plan.cost]
    assert (overlapping(shared)[sends] <= 2 * overlapping(apart)[sends] * (1 + 1e-9)).all()


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    strategy=st.sampled_from(STRATEGIES),
    grain=st.sampled_from(GRAINS),
    factors=st.dictionaries(st.integers(0, 3), st.floats(1, 5), max_size=3),
    more=st.floats(1, 3),
)
def test_a_slower_rank_never_shortens_a_step(
    strategy: str, grain: Grain, factors: dict[int, float], more: float
) -> None:
    plan, seconds = planned(strategy, grain=grain)
    before = under(plan, seconds, Conditions(slow=tuple(factors.items())))
    after = under(plan, seconds, Conditions(slow=tuple((rank, f * more) for rank, f in factors.items())))
    check_timeline(after)
    assert after.step_s >= before.step_s * (1 - 1e-12)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"slow": ((0, 0.5),)}, "rank 0 is slow by a factor of 0.5"),
        ({"slow": ((1, 2.0), (1, 3.0))}, r"slow ranks \[1, 1\]"),
        ({"busy_network": 1.0}, "busy_network is 1.0: expected a share"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"interference": float("nan")}, "interference is nan"),
    ],
)
def test_wrong_conditions_are_refused(change: dict[str, object], line: str) -> None:
    with pytest.raises(RequestError, match=line):
        replace(Conditions(), **change)  # type: ignore[arg-type]


def test_what_does_not_fit_the_plan_is_refused() -> None:
    plan, seconds = planned("dp=4")
    with pytest.raises(RequestError, match="rank 4 is slow, but ranks go from 0 to 3"):
        under(plan, seconds, Conditions(slow=((4, 2.0),)))
    with pytest.raises(RequestError, match="give seconds of shape"):
        under(plan, seconds[:-1], Conditions())
    with pytest.raises(RequestError, match="kind_of_rank has kinds 0 to 1, but there are seconds for 1 kinds"):
        under(plan, seconds, Conditions(), kind_of_rank=np.array([0, 1, 0, 1]))
