"""Ranks that do not all run the same works: replicas with other shares of the batch, nodes with other links.

Replicas with shares of different sizes run the same tasks on tensors of different sizes. The plan of each size is laid
out, and the plans are joined task by task into one, whose works have one form for each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.strategy.lower import Layout, Lowered
from traincast.strategy.mesh import Mesh
from traincast.strategy.plan import Overlap, Plan
from traincast.strategy.prepare import Prepared, prepare
from traincast.strategy.strategy import Strategy
from traincast.strategy.variants import variants_of
from traincast.work import Work

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_RANKS: Final = 64
"""Greatest number of ranks for which balanced shares are sought."""


def with_variants(lowered: Lowered) -> Lowered:
    """``lowered`` with the works of each rank; its plan has the grain of operators."""
    request, mesh = lowered.request, lowered.plan.mesh
    samples = request.strategy.samples(request.global_batch)
    sizes = sorted(set(samples), reverse=True)
    plans = [
        Layout(request=replace(request, strategy=replace(request.strategy, shares=())), prepared=each).plan("operator")
        for each in prepared_for(lowered, sizes)[1:]
    ]
    plan, works = joined_plans([lowered.plan, *plans])
    of_replica = np.array([sizes.index(size) for size in samples], dtype=np.int64)
    variants = variants_of(works, mesh, request.cluster, class_of_rank=of_replica[_replicas(mesh)])
    return replace(lowered, plan=plan, variants=variants)


def _replicas(mesh: Mesh) -> Ints:
    """The replica that every rank belongs to."""
    return np.arange(mesh.num_ranks) // mesh.stride("dp") % mesh.dp


def balanced_shares(strategy: Strategy, mesh: Mesh, global_batch: int, seconds: Floats) -> tuple[int, ...]:
    """Shares with which all replicas compute for about the same time, as the smallest whole numbers.

    ``seconds`` are those that each rank computes with equal shares; the slowest rank of a replica counts. Every
    microbatch has whole samples. Returns an empty tuple if equal shares are the best, or if there are too few samples
    to divide or too many ranks for a list of shares.
    """
    if mesh.num_ranks > _MOST_RANKS:
        return ()
    units = global_batch // strategy.num_microbatches  # samples in one microbatch of all replicas
    longest = np.zeros(mesh.dp)
    np.maximum.at(longest, _replicas(mesh), seconds)
    if units < strategy.dp or longest.min() <= 0.0:
        return ()
    speeds = 1.0 / longest
    wanted = speeds / speeds.sum() * units
    shares = np.maximum(1, np.floor(wanted)).astype(np.int64)
    while shares.sum() > units:
        shares[np.argmax(np.where(shares > 1, shares / speeds, 0.0))] -= 1
    while shares.sum() < units:  # the replica that would be done first takes one more
        shares[np.argmin((shares + 1) / speeds)] += 1
    if len(set(shares.tolist())) == 1:
        return ()
    return tuple((shares // np.gcd.reduce(shares)).tolist())


def prepared_for(lowered: Lowered, sizes: Sequence[int]) -> list[Prepared]:
    """The inputs of plans in which every replica has one of ``sizes`` samples, with the same stages.

    The first of ``sizes`` is that of ``lowered``.
    """
    strategy = replace(lowered.request.strategy, shares=())
    found = [lowered.prepared]
    for size in sizes[1:]:
        request = replace(lowered.request, strategy=strategy, global_batch=size * strategy.dp)
        found.append(replace(prepare(request), pieces=lowered.prepared.pieces))
    return found


def joined_plans(plans: Sequence[Plan]) -> tuple[Plan, list[tuple[Work, ...]]]:
    """One plan for several that have the same tasks with other works.

    Returns the plan, with the works of the first, and for each of ``plans`` its works in the order of the plan. Two
    works that are equal in one plan and differ in another stay apart.
    """
    first = plans[0]
    if len(plans) == 1:
        return first, [first.works]
    for other in plans[1:]:
        for name in ("lane_start", "lanes", "predecessor_start", "predecessors", "category", "group"):
            assert np.array_equal(getattr(first, name), getattr(other, name)), f"plans of one step differ in {name}"
    tuples, cost = np.unique(np.stack([plan.cost for plan in plans]), axis=1, return_inverse=True)
    numbers: dict[tuple[int, ...], int] = {}

    def number(works: Sequence[int]) -> int:
        return numbers.setdefault(tuple(works), len(numbers))

    found: dict[Overlap, int] = {}
    leaves: list[tuple[bool, int]] = []  # of every distinct tuple of costs: whether it is a work, and its number
    for costs in tuples.T.tolist():
        if costs[0] < len(first.works):
            leaves.append((True, number(costs)))
            continue
        each = [plan.overlaps[c - len(plan.works)] for plan, c in zip(plans, costs, strict=True)]
        behind = tuple(number(works) for works in zip(*(o.behind for o in each), strict=True))
        overlap = replace(each[0], work=number([o.work for o in each]), behind=behind)
        leaves.append((False, found.setdefault(overlap, len(found))))
    leaf = np.array([n if is_work else len(numbers) + n for is_work, n in leaves], dtype=np.int32)
    works = [tuple(plan.works[row[p]] for row in numbers) for p, plan in enumerate(plans)]
    joint = replace(first, works=works[0], overlaps=tuple(found), cost=leaf[cost.reshape(-1)])
    return joint, works
