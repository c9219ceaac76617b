"""Whether memory suffices: how far real memory is from its forecast, and how probable "fits" must be.

Weights, gradients and optimizer states of a rank are counted exactly. The rest (activations, workspaces,
fragmentation, communicators) is a forecast, and a real run holds x times that forecast. log x follows two
exponentials, one on each side of 0: the probability that x is below q ≥ 1 is 1 − ½ · exp(−log q / b). The scale b
puts 5 % of runs above a runtime's ``memory.high``; in the same way, 5 % are below its ``memory.low``. The tails of
measured runs have this form: they are heavier than those of a normal distribution.

Programs for fine-tuning differ in what they store in which dtype, so that their states are no exact count either: a run
holds x to the power of ``memory.states_doubt`` times the states.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.strategy.memory.peak import Memory
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Strategy
from traincast.units import format_bytes

Floats = npt.NDArray[np.float64]

MARGIN: Final = 0.85
"""A strategy fits if its memory suffices with this probability.

With this value, the F1 score of "fits" is largest over 1,757 runs of one cluster, half of which failed: see
docs/accuracy.md.
"""
HOST_SHARE: Final = 0.9
"""Share of a host's memory that offloading may use; the rest is for the system and the data loader."""
_HARDLY: Final = 0.05
"""Below this probability a strategy does not fit; between this and :data:`MARGIN` it may not fit."""
_TAIL: Final = math.log(10.0)
"""Distance from the middle to the point with 5 % beyond it, in scales of the exponential."""

_FARTHEST: Final = 20.0
_HALVINGS: Final = 60
"""A share is found between exp(−20) and exp(20) by halving 60 times."""


class MemoryFit(enum.Enum):
    """Whether a strategy fits into the memory of devices and hosts, in words."""

    FITS = "fits"
    MAY_NOT_FIT = "may not fit"
    DOES_NOT_FIT = "does not fit"


def factor(runtime: Runtime, probability: float) -> float:
    """The factor on the forecast that a rank's memory beyond its states does not exceed, with ``probability``."""
    if probability >= 0.5:
        return math.exp(math.log(runtime.memory.high) * math.log(0.5 / (1.0 - probability)) / _TAIL)
    return math.exp(math.log(runtime.memory.low) * math.log(0.5 / probability) / _TAIL)


def at_share(memory: Memory, runtime: Runtime, share: float) -> Memory:
    """``memory`` of a run that holds ``share`` times the forecast beyond the states."""
    parts = {name: nbytes * share if name == "fragmentation" else nbytes for name, nbytes in memory.parts.items()}
    of_states = share**runtime.memory.states_doubt
    return replace(
        memory,
        weights=memory.weights * of_states,
        gradients=memory.gradients * of_states,
        optimizer=memory.optimizer * of_states,
        activations=memory.activations * share,
        other=memory.other * share,
        parts=parts,
    )


def bytes_with(memory: Memory, runtime: Runtime, probability: float) -> float:
    """Bytes that suffice for a rank with ``probability``."""
    return float(total_at(memory.states, memory.activations, memory.other, runtime, factor(runtime, probability)))


def total_at(states: Any, activations: Any, other: Any, runtime: Runtime, share: float) -> Any:
    """Bytes of a rank whose memory beyond its states is ``share`` times the forecast; takes numbers or arrays."""
    return states * share**runtime.memory.states_doubt + activations * share + other * share


def probability_of(memory: Memory, capacity: float, runtime: Runtime) -> float:
    """The probability that a rank's memory fits into ``capacity`` bytes."""
    beyond = _log_share(memory, capacity, runtime)
    if math.isinf(beyond):
        return float(beyond > 0.0)
    if beyond >= 0.0:
        return 1.0 - 0.5 * _decay(beyond, math.log(runtime.memory.high))
    return 0.5 * _decay(-beyond, -math.log(runtime.memory.low))


def _log_share(memory: Memory, capacity: float, runtime: Runtime) -> float:
    """The logarithm of the share at which a rank's memory is ``capacity`` bytes; infinite if no share is."""
    doubt = runtime.memory.states_doubt
    room, forecast = capacity - memory.states, memory.total - memory.states
    if not doubt:
        if room <= 0.0:
            return -math.inf
        return math.log(room / forecast) if forecast > 0.0 else math.inf
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        held = memory.states * math.exp(doubt * middle) + forecast * math.exp(middle)
        low, high = (middle, high) if held < capacity else (low, middle)
    return low


def _decay(distance: float, tail: float) -> float:
    """The value at ``distance`` of an exponential that falls from 1 at 0 to 0.1 at ``tail``."""
    return math.exp(-_TAIL * distance / tail) if tail > 0.0 else float(distance == 0.0)


def fullest_node(hosts: Floats, *, ranks_per_stage: int, devices_per_node: int) -> Floats:
    """Bytes that the fullest node holds in host memory; ``hosts`` has those of one rank of each stage in its last axis.

    Ranks of a stage are consecutive and packed node by node. H(r), the bytes of all ranks below r, is therefore linear
    within a stage, and a node holds H at its last rank minus H at its first.
    """
    stages = hosts.shape[-1]
    ends = np.minimum(
        np.arange(0, stages * ranks_per_stage + devices_per_node, devices_per_node), stages * ranks_per_stage
    )
    stage, within = np.divmod(ends, ranks_per_stage)
    nothing = np.zeros((*hosts.shape[:-1], 1))
    below = np.concatenate([nothing, np.cumsum(hosts, axis=-1) * ranks_per_stage], axis=-1)
    total = below[..., stage] + within * np.concatenate([hosts, nothing], axis=-1)[..., stage]
    found: Floats = np.diff(total, axis=-1).max(axis=-1)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that a strategy needs on a device and on the host of a node, and the capacity of both.

    ``forecast`` is the expected memory of the fullest rank; 90 % of runs are between ``low`` and ``high``. ``sure``
    bytes are enough with a probability of :data:`MARGIN`; ``capacity``, those of the device, are enough with
    ``probability``. ``host_capacity`` is 0 if it is not known.
    """

    forecast: float
    low: float
    high: float
    sure: float
    probability: float
    capacity: float
    host: float = 0.0
    host_capacity: float = 0.0

    @property
    def host_fits(self) -> bool:
        """Whether the host has room for everything that is offloaded to it; true if its memory is not known."""
        return not self.host_capacity or self.host <= HOST_SHARE * self.host_capacity

    @property
    def fits(self) -> bool:
        """Whether the device is large enough with a probability of :data:`MARGIN`, and the host as well."""
        return self.sure <= self.capacity and self.host_fits

    @property
    def load(self) -> float:
        """Memory needed divided by memory available, on device or host, whichever is larger; fits up to 1."""
        of_host = self.host / (HOST_SHARE * self.host_capacity) if self.host_capacity else 0.0
        return max(self.sure / self.capacity, of_host)

    @property
    def fit(self) -> MemoryFit:
        """Fits, may not fit (the probability is below :data:`MARGIN` but at least 5 %), or does not fit."""
        if self.fits:
            return MemoryFit.FITS
        return MemoryFit.DOES_NOT_FIT if not self.host_fits or self.probability < _HARDLY else MemoryFit.MAY_NOT_FIT

    @property
    def verdict(self) -> str:
        """Whether it fits, in a few words."""
        return f"fits with {shown_share(self.probability)}" if self.fits else self.fit.value

    def shortage(self) -> str:
        """Which memory is short, and by how much; empty if the strategy fits."""
        short = []
        if self.sure > self.capacity and self.probability < _HARDLY:
            missing = max(0.0, self.forecast - self.capacity)
            short.append(
                f"needs {format_bytes(self.forecast)} per device, {format_bytes(missing)} more than the "
                f"{format_bytes(self.capacity)} available"
            )
        elif self.sure > self.capacity:
            short.append(
                f"the forecast of {format_bytes(self.forecast)} per device fits into the {format_bytes(self.capacity)} "
                f"available with {shown_share(self.probability)}; {MARGIN * 100:.0f} % is required"
            )
        if not self.host_fits:
            usable = HOST_SHARE * self.host_capacity
            short.append(
                f"needs {format_bytes(self.host)} of host memory per node for offloading, "
                f"{format_bytes(self.host - usable)} more than the {format_bytes(usable)} available "
                f"({HOST_SHARE:.0%} of {format_bytes(self.host_capacity)})"
            )
        return " and ".join(short)


def shown_share(probability: float) -> str:
    """A probability in per cent, rounded down: one below :data:`MARGIN` never looks as if it reached it."""
    whole = math.floor(probability * 100.0 + 1e-9)  # 0.29 · 100 is just below 29
    return "over 99 %" if probability > 0.99 else "under 1 %" if probability < 0.01 else f"{whole} %"


def need_of(memories: Sequence[Memory], *, strategy: Strategy, runtime: Runtime, cluster: Cluster) -> MemoryNeed:
    """The memory that ``strategy`` needs on ``cluster``; ``memories`` has one rank of each stage.

    The forecasts of all stages err in the same direction. So the probability that all stages fit is that of the stage
    that is least likely to fit.
    """
    capacity = cluster.device.memory_bytes
    hosts = np.array([sum(m.host.values()) for m in memories])
    return MemoryNeed(
        forecast=max(m.total for m in memories),
        low=max(bytes_with(m, runtime, 0.05) for m in memories),
        high=max(bytes_with(m, runtime, 0.95) for m in memories),
        sure=max(bytes_with(m, runtime, MARGIN) for m in memories),
        probability=min(probability_of(m, capacity, runtime) for m in memories),
        capacity=capacity,
        host=float(
            fullest_node(
                hosts, ranks_per_stage=strategy.num_ranks // strategy.pp, devices_per_node=cluster.most_devices_per_node
            )
        ),
        host_capacity=cluster.host_memory_bytes,
    )
