"""The input of the inspector: features of the groups of a graph, and of the setting that it runs in.

Everything that is an amount is turned into the seconds that it takes at the peak rates of the hardware, so that a
network sees ratios of times rather than models and devices. Logarithms have base 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.cluster.topology import effective_intra_bandwidth
from traincast.estimate.inspector.amounts import PHASES, Amounts, Floats, amounts_of, weights_of
from traincast.estimate.inspector.grouping import Grouping, Groups, group
from traincast.graph import OperatorGraph, Phase

FEATURES_VERSION: Final = 2
"""Counts up when a feature changes its meaning: bundles of other versions are refused."""

GROUP_FEATURES: Final = (
    "type_weight",  # mean over operators of minus the log of how frequent their type is
    "operators",  # log of how many operators
    "output_s",  # log of the time to write all outputs to memory once
    "compute_s",  # log of FLOPs over the peak rate
    "memory_s",  # log of bytes over the memory's bandwidth
    "busy_s",  # log of the sum over operators of the longest of computing, moving and launching
    "gradient_s",  # log of the time of the updated parameters' gradients on the slowest link
    "share",  # busy time of the group over that of the step
    "compute_bound",  # share of the busy time in operators that computing binds
    "launch_bound",  # share of the busy time in operators that launching binds
    "forward",  # share of the busy time in forward operators
    "backward",
    "optimizer",
)
SETTING_FEATURES: Final = (
    "batch",  # log of samples of a replica in one microbatch
    "microbatches",  # log
    "workers",  # log of replicas
    "tensor",  # log of tp
    "pipeline",  # log of pp
    "servers",  # log of 1 + parameter servers
    "has_servers",
    "own_nodes",  # whether servers have nodes of their own
    "asynchronous",
    "sharded",  # 0 to 3: stage of ZeRO
    "recompute",
    "nodes",  # log
    "devices_per_node",  # log
    "peak_flops",  # log of FLOP/s
    "memory_bandwidth",  # log of bytes/s
    "intra_bandwidth",  # log of bytes/s
    "inter_bandwidth",  # log of bytes/s of a device's share of the NICs
    "latency_s",  # log, of the slowest link
    "operators",  # log
    "compute_s",  # logs of times of one step of one rank, as for groups
    "memory_s",
    "busy_s",
    "launch_s",
    "exchange_s",  # log of the time to exchange all gradients over the slowest link
    "exchange_share",  # exchange_s over exchange_s + busy_s
    "boundary_s",  # log of the time to send all outputs over the link of a tensor or pipeline group; 0 without one
    "bubble",  # (pp - 1) / (microbatches + pp - 1)
    "overlap",  # share of the exchanged bytes that is there before the second half of backward
)
_SMALLEST_S: Final = 1e-9
_SAMPLE_S: Final = 0.02
"""Seconds between two samples of the monitors whose figures are predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetting:
    """What the inspector knows of how a graph is trained, beside the graph.

    ``cluster`` has the nodes that run ranks. ``batch`` are the samples of a replica in one microbatch. ``workers`` are
    the replicas, ``tp`` and ``pp`` the degrees of tensor and pipeline parallelism, ``zero`` the stage of ZeRO.
    ``products`` names the precision of matrix products; ``activation_bytes`` and ``gradient_bytes`` are those of one
    element. ``updates``: ranks update the weights themselves.
    """

    cluster: Cluster
    batch: int
    microbatches: int
    workers: int
    ranks: int
    tp: int
    pp: int
    zero: int
    recompute: bool
    servers: int
    own_nodes: bool
    asynchronous: bool
    products: str
    activation_bytes: float
    gradient_bytes: float
    updates: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
    """One graph in one setting, as the inspector sees it.

    ``groups`` [groups, GROUP_FEATURES], ``adjacency`` [groups, groups] and ``setting`` [SETTING_FEATURES].
    ``busy_s`` are the seconds that a rank's operators need at peak rates. ``reference`` [12] is a first guess of each
    figure, by which it is measured: 1 for amounts and, for durations, seconds at peak rates. A device is busy for
    ``busy_s``, and pauses as long as the exchange of gradients or, if that is shorter, as ``busy_s``. A network is busy
    during the exchange, and pauses for the geometric mean of ``busy_s`` and the pause of the device. No duration is
    seen that is shorter than a sample.
    """

    groups: npt.NDArray[np.float32]
    adjacency: npt.NDArray[np.float32]
    setting: npt.NDArray[np.float32]
    busy_s: float
    reference: Floats
    operators: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Rates of the setting: FLOP/s, bytes/s of memory, seconds of a launch, bytes/s of the slowest link."""

    flops: float
    memory: float
    launch_s: float
    link: float


def inputs_of(
    graph: OperatorGraph,
    setting: StepSetting,
    *,
    grouping: Grouping,
    weights: Mapping[str, float],
    groups: int | None = None,
) -> Inputs:
    """Return the input of ``graph`` in ``setting``; ``groups`` overrides the number that ``grouping`` gives."""
    amounts = amounts_of(graph)
    found = group(amounts, grouping.number(amounts.operators) if groups is None else groups)
    rates = _rates(setting)
    times = _times(amounts, setting, rates)
    busy_s = float(times["busy"].sum())
    return Inputs(
        groups=_group_features(amounts, found, times, weights).astype(np.float32),
        adjacency=found.adjacency.astype(np.float32),
        setting=_setting_features(setting, amounts, times, rates).astype(np.float32),
        busy_s=busy_s,
        reference=_reference(busy_s, _exchange_s(setting, times)),
        operators=amounts.operators,
    )


def _rates(setting: StepSetting) -> _Rates:
    cluster = setting.cluster
    intra = effective_intra_bandwidth(cluster, min(setting.ranks, cluster.devices_per_node))
    several = cluster.num_nodes > 1 and setting.ranks > cluster.devices_per_node
    return _Rates(
        flops=cluster.device.peak(setting.products),
        memory=cluster.device.memory_bandwidth,
        launch_s=cluster.launch_s,
        link=min(cluster.nic_bandwidth_per_device, intra) if several else intra,
    )


def _times(amounts: Amounts, setting: StepSetting, rates: _Rates) -> dict[str, Floats]:
    """Seconds of every operator in one step of one rank, all repeats and microbatches together."""
    batch = setting.batch
    update = amounts.phase == PHASES.index(Phase.OPTIMIZER)
    runs = amounts.count * np.where(update, 1.0, setting.microbatches) / setting.pp
    if not setting.updates:
        runs = np.where(update, 0.0, runs)
    width = np.where(update, 1.0, setting.activation_bytes / 4.0)
    compute = (amounts.flops[0] + batch * amounts.flops[1]) / rates.flops / setting.tp
    memory = width * (amounts.nbytes[0] + batch * amounts.nbytes[1]) / rates.memory / setting.tp
    longest = np.maximum(np.maximum(compute, memory), rates.launch_s)
    gradients = amounts.parameter_bytes * setting.gradient_bytes / 4.0 / setting.tp / setting.pp
    return {
        "runs": runs,
        "compute": runs * compute,
        "memory": runs * memory,
        "busy": runs * longest,
        "launch": runs * rates.launch_s,
        "output": runs * width * (amounts.output_bytes[0] + batch * amounts.output_bytes[1]) / rates.memory,
        "gradient": amounts.count * gradients / rates.link,
        "compute_bound": runs * longest * (compute >= np.maximum(memory, rates.launch_s)),
        "launch_bound": runs * longest * (rates.launch_s > np.maximum(compute, memory)),
    }


def _log(value: Floats | float) -> Floats:
    return np.log10(np.maximum(value, _SMALLEST_S))


def _group_features(
    amounts: Amounts, groups: Groups, times: Mapping[str, Floats], weights: Mapping[str, float]
) -> Floats:
    def total(column: Floats) -> Floats:
        return np.bincount(groups.member, weights=column, minlength=groups.number).astype(np.float64)

    busy, operators = total(times["busy"]), total(amounts.count)
    safe = np.maximum(busy, _SMALLEST_S)
    return np.stack(
        [
            total(amounts.count * weights_of(amounts.kind, weights)) / operators,
            np.log10(operators),
            _log(total(times["output"])),
            _log(total(times["compute"])),
            _log(total(times["memory"])),
            _log(busy),
            _log(total(times["gradient"])),
            busy / max(_SMALLEST_S, float(busy.sum())),
            total(times["compute_bound"]) / safe,
            total(times["launch_bound"]) / safe,
            *(total(times["busy"] * (amounts.phase == number)) / safe for number in range(len(PHASES))),
        ],
        axis=1,
    )


def _setting_features(setting: StepSetting, amounts: Amounts, times: Mapping[str, Floats], rates: _Rates) -> Floats:
    cluster = setting.cluster
    exchange, busy = _exchange_s(setting, times), float(times["busy"].sum())
    split = setting.tp > 1 or setting.pp > 1
    boundary = float(times["output"].sum()) * rates.memory / rates.link if split else 0.0
    peers = min(setting.ranks, cluster.devices_per_node)
    return np.array(
        [
            np.log10(setting.batch),
            np.log10(setting.microbatches),
            np.log10(setting.workers),
            np.log10(setting.tp),
            np.log10(setting.pp),
            np.log10(1 + setting.servers),
            setting.servers > 0,
            setting.own_nodes,
            setting.asynchronous,
            setting.zero,
            setting.recompute,
            np.log10(cluster.num_nodes),
            np.log10(cluster.devices_per_node),
            np.log10(rates.flops),
            np.log10(rates.memory),
            np.log10(effective_intra_bandwidth(cluster, peers)),
            np.log10(cluster.nic_bandwidth_per_device),
            _log(cluster.inter_node.latency_s if cluster.num_nodes > 1 else cluster.intra_node.latency_s),
            np.log10(amounts.count.sum()),
            *(_log(float(times[name].sum())) for name in ("compute", "memory", "busy", "launch")),
            _log(exchange),
            exchange / max(_SMALLEST_S, exchange + busy),
            _log(boundary) - _log(0.0),
            (setting.pp - 1) / (setting.microbatches + setting.pp - 1),
            _early_share(amounts, times),
        ],
        dtype=np.float64,
    )


def _exchange_s(setting: StepSetting, times: Mapping[str, Floats]) -> float:
    """Seconds to exchange all gradients over the slowest link, through servers or in a ring."""
    gradients = float(times["gradient"].sum())
    if setting.servers:
        return gradients * max(2.0, setting.workers / setting.servers)
    return 2.0 * gradients * (setting.workers - 1) / setting.workers


def _reference(busy_s: float, exchange_s: float) -> Floats:
    busy, exchange = (float(np.hypot(seconds, _SAMPLE_S)) for seconds in (busy_s, exchange_s))
    longer = max(busy, exchange)
    device, network = (1.0, busy, longer), (1.0, exchange, float(np.sqrt(busy * longer)))
    return np.array([*device, *device, *network, *network])


def _early_share(amounts: Amounts, times: Mapping[str, Floats]) -> float:
    """Share of the gradients' bytes that the first half of backward computes: it can hide behind the second half."""
    backward = np.flatnonzero(amounts.phase == PHASES.index(Phase.BACKWARD))
    done = np.zeros(amounts.operators)
    done[backward] = np.cumsum(times["busy"][backward])
    total = done.max(initial=0.0)
    made = {int(target): int(source) for source, target in amounts.edges}
    updates = np.flatnonzero(times["gradient"] > 0.0)
    early = sum(times["gradient"][u] for u in updates.tolist() if done[made.get(u, u)] < total / 2)
    return float(early / max(_SMALLEST_S, times["gradient"].sum()))
