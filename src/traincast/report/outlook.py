"""What to expect of a real run, given its simulation and what its cluster was calibrated to: time, interval, warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import MOST_LIKELY, Calibration, Correction
from traincast.report.breakdown import breakdown_of_row, mean_breakdown
from traincast.simulate import Timeline
from traincast.strategy import Request

FEATURES: Final = (
    "nodes", "tensor ranks", "stages", "replicas", "microbatches", "tokens of a microbatch", "work of a device",
    "exposed communication", "bubble", "host",
)  # fmt: skip
"""What a correction depends on: counts as logarithms of base 2, shares of the simulated step in tenths."""


_RARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What of a simulated step decides how far a real one may be from it.

    ``messages`` are those that the busiest stage sends and receives, ``tensor_nodes`` the nodes that a tensor-parallel
    group spans.
    """

    features: tuple[float, ...]
    messages: int
    nodes: int
    tensor_nodes: int
    stages: int

    def stalls(self, calibration: Calibration) -> float:
        """How likely the run is to be in the slow mode of its cluster."""
        if calibration.stall is None:
            return 0.0
        return calibration.stall.probability(nodes=self.nodes, tensor_nodes=self.tensor_nodes, stages=self.stages)


def features_of(request: Request, timeline: Timeline, seconds: npt.NDArray[np.float64]) -> Look:
    """What a correction and an interval need to know of a simulated step."""
    plan, strategy, graph = timeline.plan, request.strategy, request.graph
    spans = timeline.spans()
    communication = plan.shares(seconds, plan.communicates())
    rows = range(min(len(plan.ranks), plan.mesh.pp))
    mean = mean_breakdown([breakdown_of_row(timeline, spans, row, communication) for row in rows])
    total = mean.total_s or 1.0
    micro_batch = max(1, strategy.micro_batch(request.global_batch))
    tokens = micro_batch * max(1, graph.tokens_per_sample) / strategy.cp
    flops = sum(op.flops * count for op, count in graph) * request.global_batch / request.cluster.num_devices
    features = (
        math.log2(request.cluster.num_nodes),
        math.log2(strategy.tp),
        math.log2(strategy.pp),
        math.log2(strategy.dp),
        math.log2(strategy.num_microbatches),
        math.log2(tokens),
        math.log2(max(flops, 1.0)) / 2.0,
        10.0 * mean.exposed_communication_s / total,
        10.0 * mean.bubble_s / total,
        10.0 * mean.overhead_s / total,
    )
    messages = strategy.num_microbatches * 2 * min(2, strategy.pp - 1)
    return Look(
        features=features,
        messages=messages,
        nodes=request.cluster.num_nodes,
        tensor_nodes=plan.mesh.span("tp").num_nodes,
        stages=strategy.pp,
    )


def correction_at(correction: Correction | None, features: Sequence[float]) -> float:
    """The factor that a correction puts on a step."""
    if correction is None or not correction.points:
        return 1.0
    distance = (np.array(correction.points) - np.array(features)) / np.array(correction.scales)
    return math.exp(float(np.exp(-0.5 * (distance**2).sum(axis=1)) @ np.array(correction.weights)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a run is expected to take, between what and what, and the sentences that go with it."""

    step_s: float
    low_s: float
    high_s: float
    warnings: tuple[str, ...] = ()


def outlook(calibration: Calibration, look: Look, *, simulated_s: float, stalled_s: float) -> Outlook:
    """Expectation and interval of a run that is simulated to take ``simulated_s``, or ``stalled_s`` in a slow mode.

    ``simulated_s`` and ``stalled_s`` are under ``calibration``, its correction left out.
    """
    factor = correction_at(calibration.correction, look.features)
    usual = simulated_s * factor
    low, high = usual * calibration.low, usual * calibration.high
    if calibration.stall is None:
        return Outlook(step_s=usual, low_s=low, high_s=high)
    chance = look.stalls(calibration)
    slow = max(stalled_s * factor, usual)
    return _between_modes(chance, usual, slow, low, high, calibration)


def _between_modes(
    chance: float, usual: float, slow: float, low: float, high: float, calibration: Calibration
) -> Outlook:
    """The likelier of two modes, with an interval that reaches the other where that is not too unlikely."""
    stalls = chance >= MOST_LIKELY
    if chance > _RARE:
        high = max(high, slow * calibration.high)
    if chance > 1.0 - _RARE:
        low = slow * calibration.low
    warnings = []
    if chance > _RARE:
        warnings.append(
            f"{chance:.0%} of runs like this stalled on this cluster and took {slow / usual:.1f} times as long, for no "
            f"reason that their configuration shows: {'taken as stalled' if stalls else 'taken as not stalled'}"
        )
    return Outlook(step_s=slow if stalls else usual, low_s=low, high_s=high, warnings=tuple(warnings))
