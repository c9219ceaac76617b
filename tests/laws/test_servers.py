"""Laws of training with parameter servers: what bounds a step, and how stale gradients are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import Link, RequestError
from traincast.simulate.server_waits import worker_times
from traincast.simulate.servers import SERVER_STEPS, ServerRun, measure, run_servers
from traincast.strategy.servers.tasks import Piece, ServerNode, ServerRole, ServerSetup, lay_out, shards

FREE = Link(name="free", bandwidth=float("inf"), latency_s=0.0)
GIGABYTE = Link(name="one gigabyte per second", bandwidth=1e9, latency_s=0.0)
PIECES = [Piece(forward_s=0.01 * n, backward_s=0.02 * n, nbytes=1e6 * n) for n in (1, 3, 2)]
COMPUTE_S = sum(p.forward_s + p.backward_s for p in PIECES)
HUGE = [Piece(forward_s=1e-9, backward_s=1e-9, nbytes=1e9)]
BOTH = pytest.mark.parametrize("asynchronous", [False, True])


def setup(
    servers: int = 1, workers: int = 1, *, link: Link = GIGABYTE, asynchronous: bool = False, **others: float
) -> ServerSetup:
    base = ServerSetup(
        servers=servers, workers=workers, asynchronous=asynchronous, worker_nic=link, server_nic=link, local=link
    )
    return replace(base, **others)  # type: ignore[arg-type]


def simulate_servers(setup: ServerSetup, pieces: Sequence[Piece], *, steps: int = SERVER_STEPS) -> ServerRun:
    """The steady state of a run of ``steps`` steps."""
    return measure(setup, run_servers(setup, pieces, steps=steps))


@BOTH
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 4), (2, 3), (4, 2)])
def test_with_a_free_network_and_free_updates_a_step_is_its_computation(
    servers: int, workers: int, asynchronous: bool
) -> None:
    run = simulate_servers(setup(servers, workers, link=FREE, asynchronous=asynchronous), PIECES)
    assert run.step_s == pytest.approx(COMPUTE_S, rel=1e-9)
    assert run.worker_steps_per_s == pytest.approx(workers / COMPUTE_S, rel=1e-9)
    assert run.nic_utilization == (0.0,) * servers


@BOTH
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_on_one_server_take_as_many_times_as_long_as_one(workers: int, asynchronous: bool) -> None:
    """Bound by the server's NIC: it receives all gradients and sends all parameters."""
    alone = simulate_servers(setup(asynchronous=asynchronous), HUGE)
    assert alone.step_s == pytest.approx(2.0, rel=1e-6)
    run = simulate_servers(setup(workers=workers, asynchronous=asynchronous), HUGE, steps=40)
    if asynchronous and workers > 1:  # some push while others pull, so the NIC works both ways at once
        assert workers * 1.0 * (1 - 1e-6) <= run.step_s < workers * 2.0
    else:
        assert run.step_s == pytest.approx(workers * 2.0, rel=1e-6)


def test_asynchronous_workers_that_do_not_begin_at_once_use_their_links_both_ways() -> None:
    pieces = [Piece(forward_s=0.1, backward_s=0.2, nbytes=2e8)] * 3
    together = setup(workers=5, asynchronous=True, spread=0.0)
    alike = simulate_servers(replace(together, asynchronous=False), pieces).step_s
    assert simulate_servers(together, pieces).step_s == pytest.approx(alike)
    # Five workers' 0.6 GB over 1 GB/s is 3 s, both ways at once.
    apart = simulate_servers(replace(together, spread=1.0), pieces, steps=40)
    assert apart.step_s == pytest.approx(3.0, rel=0.01)
    assert apart.nic_utilization[0] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("servers", [1, 2, 4, 8])
def test_servers_divide_what_their_nics_carry(servers: int) -> None:
    run = simulate_servers(setup(servers, 8, sharding="even"), HUGE)  # type: ignore[arg-type]
    assert run.step_s == pytest.approx(8 * 2.0 / servers, rel=1e-6)


@pytest.mark.long(but=1)
@BOTH
@pytest.mark.parametrize("sharding", ["greedy", "even"])
def test_more_servers_never_slow_a_step_that_their_nics_bound(sharding: str, asynchronous: bool) -> None:
    pieces = [Piece(forward_s=1e-6, backward_s=1e-6, nbytes=1e8) for _ in range(8)]
    steps = [
        simulate_servers(setup(n, 8, asynchronous=asynchronous, sharding=sharding), pieces).step_s  # type: ignore[arg-type]
        for n in (1, 2, 4, 8)
    ]
    assert all(more <= fewer * (1 + 1e-6) for fewer, more in pairwise(steps))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_synchronous_gradients_are_never_stale(workers: int) -> None:
    run = simulate_servers(setup(2, workers, update_s_per_byte=1e-9), PIECES)
    assert (run.mean_staleness, run.max_staleness) == (0.0, 0)


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
@pytest.mark.parametrize("link", [FREE, GIGABYTE], ids=["free", "gigabyte"])
@pytest.mark.parametrize("servers", [1, 2])
def test_equal_asynchronous_workers_are_one_update_of_each_other_stale(workers: int, link: Link, servers: int) -> None:
    """Between two updates of a worker every other makes one, on average: overlap changes when, not how many."""
    chosen = setup(servers, workers, link=link, asynchronous=True, update_s_per_byte=1e-9)
    run = simulate_servers(chosen, PIECES, steps=60)
    assert run.mean_staleness == pytest.approx(workers - 1, rel=0.05, abs=0.05)
    assert run.max_staleness <= 2 * (workers - 1)


def test_a_slow_worker_holds_up_all_others_only_if_they_are_synchronous() -> None:
    factors = (1.0, 1.0, 1.0, 4.0)
    together, apart = (
        simulate_servers(replace(setup(workers=4, link=FREE, asynchronous=a), worker_factors=factors), PIECES, steps=40)
        for a in (False, True)
    )
    assert together.worker_steps_per_s == pytest.approx(4 / (4 * COMPUTE_S), rel=1e-9)
    assert apart.worker_steps_per_s == pytest.approx((3 + 1 / 4) / COMPUTE_S, rel=1e-9)
    assert apart.max_staleness >= 3 * 4


TWICE = [
    replace(p, elsewhere=(replace(p, forward_s=p.forward_s / 2, backward_s=p.backward_s / 2),))
    for p in PIECES
]  # fmt: skip
"""The same pieces, and a second kind of device that computes twice as fast."""


def test_asynchronous_workers_of_speeds_one_and_two_make_one_and_two_updates() -> None:
    mixed = replace(setup(workers=2, link=FREE, asynchronous=True), kind_of_worker=(0, 1))
    run = simulate_servers(mixed, TWICE, steps=40)
    assert run.steps_per_s_by_worker == pytest.approx((1 / COMPUTE_S, 2 / COMPUTE_S), rel=1e-9)
    assert run.worker_steps_per_s == pytest.approx((1 + 2) / COMPUTE_S, rel=1e-9)
    assert run.step_s == pytest.approx(2 / 3 * COMPUTE_S, rel=1e-9)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_worker_a_thousand_times_slower_leaves_the_rates_of_others_as_they_are(slow: int) -> None:
    """All begin within a step of the fastest, whoever is the slow one."""
    factors = tuple(1000.0 if worker == slow else 1.0 for worker in range(3))
    run = simulate_servers(replace(setup(workers=3, link=FREE, asynchronous=True), worker_factors=factors), PIECES)
    assert run.worker_steps_per_s == pytest.approx((2 + 1e-3) / COMPUTE_S, rel=1e-3)


@pytest.mark.parametrize("kinds", [(0, 1), (1, 0), (0, 1, 1, 1)])
def test_synchronous_workers_of_two_speeds_are_as_fast_as_the_slower(kinds: tuple[int, ...]) -> None:
    mixed = replace(setup(2, len(kinds), link=FREE), kind_of_worker=kinds)
    assert simulate_servers(mixed, TWICE).step_s == pytest.approx(COMPUTE_S, rel=1e-9)
    fast = replace(mixed, kind_of_worker=(1,) * len(kinds))
    assert simulate_servers(fast, TWICE).step_s == pytest.approx(COMPUTE_S / 2, rel=1e-9)


def test_a_pass_takes_what_its_device_or_its_host_takes() -> None:
    """A factor slows the device alone: a host that is the slower one hides it."""
    piece = Piece(forward_s=1.0, backward_s=2.0, nbytes=0.0, forward_host_s=1.5, backward_host_s=0.5)
    assert piece.takes_s(1.0) == (1.5, 2.0)
    assert piece.takes_s(1.2) == (1.5, 2.4)
    slow = replace(setup(workers=1, link=FREE), worker_factors=(1.2,))
    assert simulate_servers(slow, [piece]).step_s == pytest.approx(1.5 + 2.4)


def nodes_of(chosen: ServerSetup, *nics: Link) -> tuple[ServerNode, ...]:
    assert len(nics) == chosen.num_nodes
    return tuple(
        ServerNode(nic=nic, local=chosen.local, update_s_per_byte=chosen.update_s_per_byte) for nic in nics
    )  # fmt: skip


@BOTH
def test_nodes_that_are_alike_change_nothing_to_the_last_digit(asynchronous: bool) -> None:
    plain = setup(2, 4, asynchronous=asynchronous, workers_per_node=2, update_s_per_byte=1e-9)
    told = replace(
        plain, nodes=nodes_of(plain, *[GIGABYTE] * 4), kind_of_worker=(0, 1, 0, 1), worker_factors=(1.0,) * 4
    )
    same = [replace(p, elsewhere=(p,)) for p in PIECES]
    assert simulate_servers(told, same) == simulate_servers(plain, PIECES)


def test_every_node_sends_at_its_own_rate() -> None:
    """Two workers on nodes of 1 and 4 GB/s, a server on an endless one: pushes and pulls of 1 GB each."""
    base = setup(workers=2, asynchronous=True)
    fast = Link(name="four", bandwidth=4e9, latency_s=0.0)
    unlike = replace(base, nodes=nodes_of(base, GIGABYTE, fast, FREE))
    run = simulate_servers(unlike, HUGE, steps=40)
    assert run.steps_per_s_by_worker == pytest.approx((1 / 2, 4 / 2), rel=1e-6)
    assert simulate_servers(replace(unlike, asynchronous=False), HUGE).step_s == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(("rate", "expected"), [(0.2e9, 10.0), (0.25e9, 8.0), (0.5e9, 8.0), (1e9, 8.0)])
def test_a_worker_on_a_slow_link_is_not_slowed_by_those_that_share_the_server_with_it(
    rate: float, expected: float
) -> None:
    """Four workers push 1 GB to a server of 1 GB/s: a worker whose link has less than a quarter keeps all of it."""
    base = setup(workers=4)
    slow = Link(name="slow", bandwidth=rate, latency_s=0.0)
    mixed = replace(base, nodes=nodes_of(base, GIGABYTE, GIGABYTE, slow, GIGABYTE, GIGABYTE))
    assert simulate_servers(mixed, HUGE).step_s == pytest.approx(expected, rel=1e-6)


@BOTH
def test_listed_nodes_of_workers_and_servers_are_used_as_they_are(asynchronous: bool) -> None:
    """Servers beside the workers of node 0 and of node 2, in a cluster of nodes with 1, 2 and 1 workers."""
    base = setup(2, 4, asynchronous=asynchronous)
    listed = replace(base, nodes_of_workers=(0, 1, 1, 2), nodes_of_servers=(0, 2), own_nodes=False)
    assert (listed.worker_nodes, listed.num_nodes) == (3, 3)
    assert simulate_servers(listed, PIECES).nodes == (0, 2)
    # Written as a list, the usual places change nothing.
    usual = setup(2, 4, asynchronous=asynchronous, workers_per_node=2)
    told = replace(usual, nodes_of_workers=(0, 0, 1, 1), nodes_of_servers=(2, 3))
    assert simulate_servers(told, PIECES) == simulate_servers(usual, PIECES)
    with pytest.raises(RequestError, match="3 nodes of workers are given for 4 workers"):
        replace(base, nodes_of_workers=(0, 1, 2))


def test_a_server_on_slower_memory_updates_more_slowly() -> None:
    base = setup(2, 1, link=FREE, own_nodes=True)
    nodes = [replace(nodes_of(base, FREE, FREE, FREE)[0], update_s_per_byte=s) for s in (0.0, 1e-9, 3e-9)]
    pieces = [Piece(forward_s=0.0, backward_s=0.1, nbytes=1e9), Piece(forward_s=0.0, backward_s=0.1, nbytes=1e9)]
    # The second server holds the last piece: pushed after 0.1 s, updated for 3 s, pulled for the second forward.
    assert simulate_servers(replace(base, nodes=tuple(nodes)), pieces).step_s == pytest.approx(0.1 + 3.0)


def test_servers_are_spread_evenly_over_nodes_of_their_own() -> None:
    chosen = setup(5, 4, server_nodes=3, workers_per_node=2)
    assert [chosen.node_of_server(server) for server in range(5)] == [2, 2, 3, 3, 4]
    assert chosen.num_nodes == 5
    run = simulate_servers(chosen, PIECES)
    assert run.nodes == (2, 2, 3, 3, 4)
    assert run.own_nodes


def test_messages_that_interfere_stretch_what_they_run_beside() -> None:
    """Push and pull of 0.5 s run wholly behind 2 s of backward: each second together takes 1.5."""
    pieces = [Piece(forward_s=0.0, backward_s=2.0, nbytes=0.0), Piece(forward_s=0.0, backward_s=1.0, nbytes=0.5e9)]
    assert simulate_servers(setup(), pieces).step_s == pytest.approx(3.0)
    stretched = simulate_servers(setup(interference=0.5), pieces)
    assert stretched.step_s == pytest.approx(3.0 + 2 * 0.5 * 0.5)


def test_everyone_waits_for_the_slow_worker_and_it_for_nobody() -> None:
    slow = replace(setup(2, 3, update_s_per_byte=1e-9), worker_factors=(1.0, 3.0, 1.0))
    times = worker_times(slow, PIECES, run_servers(slow, PIECES, steps=20))
    assert times.for_worker.tolist() == [1, -1, 1]
    assert times.computing_s.tolist() == pytest.approx([10 * COMPUTE_S, 30 * COMPUTE_S, 10 * COMPUTE_S])
    assert times.for_worker_s[0] == pytest.approx(20 * COMPUTE_S, rel=0.02)


def test_backward_hides_the_pushes_of_what_is_ready_early() -> None:
    """The last piece's gradient is ready first, and travels while backward goes on."""
    pieces = [Piece(forward_s=0.0, backward_s=1.0, nbytes=0.0), Piece(forward_s=0.0, backward_s=1.0, nbytes=0.5e9)]
    assert simulate_servers(setup(), pieces).step_s == pytest.approx(2.0)
    swapped = [pieces[1], pieces[0]]
    assert simulate_servers(setup(), swapped).step_s == pytest.approx(3.0)


def test_forward_hides_the_pull_of_what_is_needed_late() -> None:
    pieces = [Piece(forward_s=1.0, backward_s=0.0, nbytes=0.0), Piece(forward_s=1.0, backward_s=0.0, nbytes=0.5e9)]
    # Push and pull take a second, and so does the forward of the first piece.
    assert simulate_servers(setup(), pieces).step_s == pytest.approx(2.0)


def test_latency_and_update_are_paid_once_each_way() -> None:
    link = Link(name="far", bandwidth=float("inf"), latency_s=0.25)
    run = simulate_servers(setup(link=link, update_s_per_byte=1e-9), HUGE)
    assert run.step_s == pytest.approx(0.25 + 1.0 + 0.25, rel=1e-6)


def test_a_fast_link_is_filled_by_as_many_slow_ones() -> None:
    chosen = replace(setup(workers=4), server_nic=Link(name="four", bandwidth=4e9, latency_s=0.0))
    run = simulate_servers(chosen, HUGE)
    assert run.step_s == pytest.approx(2.0, rel=1e-6)  # as if each worker had the server to itself
    assert run.nic_utilization == pytest.approx((0.5,), rel=1e-3)  # half the time each way


def test_on_one_node_bytes_do_not_touch_the_network() -> None:
    slow = Link(name="slow", bandwidth=1.0, latency_s=1.0)
    one = replace(
        setup(2, 2), workers_per_node=2, servers_per_node=2, own_nodes=False, worker_nic=slow, server_nic=slow
    )
    run = simulate_servers(one, PIECES)
    assert one.num_nodes == 1
    assert run.step_s < 2 * COMPUTE_S
    assert run.nic_utilization == (0.0, 0.0)


def test_workers_of_one_node_share_its_nic() -> None:
    apart = replace(setup(4, 4, sharding="even"), workers_per_node=1)  # type: ignore[arg-type]
    together = replace(apart, workers_per_node=4)
    assert simulate_servers(together, HUGE).step_s == pytest.approx(4 * simulate_servers(apart, HUGE).step_s, rel=1e-6)


def test_greedy_shards_go_where_least_is_held() -> None:
    pieces = [Piece(forward_s=0.0, backward_s=0.0, nbytes=n) for n in (5.0, 3.0, 1.0, 1.0, 4.0)]
    assert shards(pieces, setup(2)) == [[(0, 5.0)], [(1, 3.0)], [(1, 1.0)], [(1, 1.0)], [(0, 4.0)]]


@st.composite
def setups(draw: st.DrawFn) -> ServerSetup:
    per_node = draw(st.integers(1, 3))
    return replace(
        setup(draw(st.integers(1, 4)), draw(st.integers(1, 4)), asynchronous=draw(st.booleans())),
        sharding=draw(st.sampled_from(["greedy", "even"])),
        own_nodes=draw(st.booleans()),
        workers_per_node=per_node,
        servers_per_node=per_node,
        update_s_per_byte=1e-10,
    )


@settings(deadline=None, derandomize=True, max_examples=40)
@given(chosen=setups(), sizes=st.lists(st.floats(0, 1e8), min_size=1, max_size=5))
def test_no_step_is_shorter_than_its_computation_and_no_nic_more_than_full(
    chosen: ServerSetup, sizes: list[float]
) -> None:
    pieces = [Piece(forward_s=0.01, backward_s=0.02, nbytes=n) for n in sizes]
    run = simulate_servers(chosen, pieces, steps=8)
    assert run.step_s >= 0.03 * len(pieces) * (1 - 1e-9)
    assert all(0.0 <= share <= 1.0 + 1e-9 for share in run.nic_utilization)
    if not chosen.asynchronous:
        assert run.max_staleness == 0


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    chosen=setups(),
    sizes=st.lists(st.floats(0, 1e8), min_size=1, max_size=4),
    factors=st.lists(st.floats(1, 5), min_size=4, max_size=4),
    host_s=st.floats(0, 0.04),
)
def test_what_workers_do_adds_up_to_the_time_there_is(
    chosen: ServerSetup, sizes: list[float], factors: list[float], host_s: float
) -> None:
    slowed = replace(chosen, worker_factors=tuple(factors[: chosen.workers]))
    pieces = [Piece(forward_s=0.01, backward_s=0.02, nbytes=n, forward_host_s=host_s) for n in sizes]
    times = worker_times(slowed, pieces, run_servers(slowed, pieces, steps=8))
    parts = (times.computing_s, times.launching_s, times.bytes_s, times.others_s)
    assert all((part >= -1e-12).all() for part in parts)
    assert sum(parts) == pytest.approx(times.window_s)
    assert (times.for_worker_s <= times.others_s + 1e-12).all()
    assert chosen.asynchronous is False or (times.for_worker == -1).all()


@BOTH
def test_updates_wait_for_pushes_and_forward_for_pulls(asynchronous: bool) -> None:
    timeline = run_servers(setup(2, 3, asynchronous=asynchronous, update_s_per_byte=1e-9), PIECES, steps=3)
    tasks, start, end = timeline.tasks, timeline.start, timeline.end
    waiting = np.repeat(np.arange(len(end)), np.diff(tasks.predecessor_start))
    assert (end[tasks.predecessors] <= start[waiting]).all()
    updates = np.flatnonzero(tasks.role == ServerRole.UPDATE)
    pushes = [tasks.predecessors[tasks.predecessor_start[u] : tasks.predecessor_start[u + 1]] for u in updates]
    assert all(len(p) == (1 if asynchronous else 3) for p in pushes)
    assert (tasks.role[np.concatenate(pushes)] == ServerRole.PUSH).all()


def test_each_step_has_the_same_tasks() -> None:
    tasks = lay_out(setup(2, 3), PIECES, steps=5)
    counts = np.bincount(tasks.step)
    assert (counts == counts[0]).all()
    # Per worker: both passes of each piece; per piece and worker two messages with their latencies; one update.
    assert counts[0] == 3 * 2 * 3 + 3 * (3 * 4 + 1)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"servers": 0}, "servers is 0"),
        ({"worker_factors": (1.0,)}, "1 worker factors are given for 2 workers"),
        ({"kind_of_worker": (0, 1, 1)}, "3 kinds of devices are given for 2 workers"),
        ({"nodes": (ServerNode(nic=FREE, local=FREE, update_s_per_byte=0.0),)}, "1 descriptions of nodes .* 3 nodes"),
        ({"interference": -1.0}, "interference is -1.0"),
        ({"local": Link(name="cut", bandwidth=0.0, latency_s=0.0)}, "link cut moves 0.0 bytes/s"),
    ],
)
def test_a_wrong_setup_is_refused(change: dict[str, object], line: str) -> None:
    with pytest.raises(RequestError, match=line):
        replace(setup(1, 2), **change)  # type: ignore[arg-type]
