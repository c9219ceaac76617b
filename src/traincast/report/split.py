"""Splits time as DeletePop does: into computation, memory access and communication; and copies to and from hosts.

An operator with F FLOPs and B bytes needs F/P seconds to compute at the device's peak rate P of its dtype, and B/W
seconds to read and write at the bandwidth W of its memory. Its time is divided in proportion to the two. Every other
work has one part. Works run one after another on a device, so the parts of its operators add up to the time in which
it computes. What the device waits for comes from the breakdown of the step; together they add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.graph import Operator
from traincast.report.breakdown import Breakdown
from traincast.strategy.plan import Category, Plan
from traincast.work import Collective, HostCopy, Transfer, Work, demand_of

Floats = npt.NDArray[np.float64]

PARTS: Final = ("computation", "memory_access", "communication", "host_copies", "host")
"""The parts of a work's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSplit:
    """The seconds of all works with one label in a step, by part, on average over ranks; ``bound_by`` is the largest.

    A message that runs beside compute counts with its whole time, one that runs behind single works with the time
    that these do not hide.
    """

    label: str
    count: float
    seconds: float
    computation_s: float
    memory_access_s: float
    communication_s: float
    host_copies_s: float
    host_s: float
    bound_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """The seconds of a step by what bounds them; on average over ranks. They add up to the step.

    ``computation_s`` and ``memory_access_s`` are the time of operators. The device waits ``communication_s`` for
    messages, ``host_copies_s`` for copies to and from its host, ``host_s`` for launches and for updates on the host,
    and ``waiting_s`` for other ranks. ``calibrated_s`` is what a calibration adds. ``operators`` has the longest first.
    """

    computation_s: float
    memory_access_s: float
    communication_s: float
    host_copies_s: float
    host_s: float
    waiting_s: float
    calibrated_s: float
    operators: tuple[OperatorSplit, ...] = ()

    @property
    def parts(self) -> dict[str, float]:
        """The seconds by part."""
        return {name: value for name, value in asdict(self).items() if name != "operators"}


def split_of(
    plan: Plan, seconds: Floats, cluster: Cluster, *, breakdown: Breakdown, calibrated_s: float = 0.0
) -> TimeSplit:
    """Return the split of a step with this ``breakdown``; ``seconds`` are those of the works of ``plan``."""
    by_label, counts = _by_label(plan, seconds, _weights(plan, cluster))
    computation, access, _, copies, host = by_label.sum(axis=0).tolist()
    own = breakdown.compute_s + breakdown.optimizer_s
    scale = own / (computation + access + host) if computation + access + host else 0.0
    copied = min(copies, breakdown.exposed_communication_s)
    return TimeSplit(
        computation_s=computation * scale,
        memory_access_s=access * scale,
        communication_s=breakdown.exposed_communication_s - copied,
        host_copies_s=copied,
        host_s=breakdown.overhead_s + host * scale,
        waiting_s=breakdown.bubble_s + (0.0 if scale else own),
        calibrated_s=calibrated_s,
        operators=_operators(plan.labels, by_label, counts),
    )


def _weights(plan: Plan, cluster: Cluster) -> Floats:
    """The share of each of :data:`PARTS` in the time of every work and overlap."""
    of_works = np.array([_parts(work, cluster) for work in plan.works]).reshape(-1, len(PARTS))
    behind = [overlap.work if overlap.waited else overlap.behind[0] for overlap in plan.overlaps]
    return np.concatenate([of_works, of_works[np.array(behind, dtype=np.int64)]])


def _parts(work: Work, cluster: Cluster) -> tuple[float, ...]:
    match work:
        case Operator():
            need, device = demand_of(work), cluster.device
            computing = need.computation_flop / device.peak(work.dtype.value)
            moving = need.memory_access_bytes / device.memory_bandwidth
            share = computing / (computing + moving) if computing + moving > 0.0 else 0.0
            return share, 1.0 - share, 0.0, 0.0, 0.0
        case Collective() | Transfer():
            return 0.0, 0.0, 1.0, 0.0, 0.0
        case HostCopy():
            return 0.0, 0.0, 0.0, 1.0, 0.0
        case _:
            return 0.0, 0.0, 0.0, 0.0, 1.0


def _by_label(plan: Plan, seconds: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The seconds of each part and the number of works, by label, on average over rows; launches are left out."""
    device = np.flatnonzero((plan.category != Category.HOST) & (plan.category != Category.WAIT))
    cost, label = plan.cost[device].astype(np.int64), plan.label[device].astype(np.int64)
    single = cost < plan.num_leaves
    labels, leaves, times = [label[single]], [cost[single]], [np.ones(int(single.sum()))]
    runs = np.bincount(cost[~single] - plan.num_leaves, minlength=3 * len(plan.segments))[1::3]
    for segment, count in zip(plan.segments, runs.tolist(), strict=True):
        labels.append(segment.labels)
        leaves.append(segment.works)
        times.append(np.full(len(segment.works), float(count)))
    of_label, leaf, count = np.concatenate(labels), np.concatenate(leaves), np.concatenate(times) / len(plan.ranks)
    found = np.zeros((len(plan.labels), len(PARTS)))
    np.add.at(found, of_label, (plan.leaves(seconds)[leaf] * count)[:, None] * weights[leaf])
    counts = np.zeros(len(plan.labels))
    np.add.at(counts, of_label, count)
    return found, counts


def _operators(labels: Sequence[str], by_label: Floats, counts: Floats) -> tuple[OperatorSplit, ...]:
    total = by_label.sum(axis=1)
    found = []
    for number in np.argsort(-total, kind="stable").tolist():
        if not total[number] > 0.0:
            break
        parts = dict(zip(PARTS, by_label[number].tolist(), strict=True))
        found.append(
            OperatorSplit(
                label=labels[number],
                count=float(counts[number]),
                seconds=float(total[number]),
                bound_by=max(parts, key=lambda name: parts[name]),
                **{f"{name}_s": value for name, value in parts.items()},
            )
        )
    return tuple(found)
