"""What training runs on: devices, the links between them, and clusters of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from traincast.cluster.architecture import load_architecture
from traincast.cluster.calibration import Calibration
from traincast.errors import RequestError
from traincast.schema import Text

MAX_NODES: Final = 1_000_000
Rate: TypeAlias = Annotated[float, Meta(ge=1e6, le=1e19, description="FLOP/s")]
Bandwidth: TypeAlias = Annotated[float, Meta(ge=1e6, le=1e15, description="bytes/s")]
Bytes: TypeAlias = Annotated[float, Meta(ge=1e3, le=1e18, description="bytes")]
Delay: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0, description="seconds")]
Watts: TypeAlias = Annotated[float, Meta(ge=0.1, le=1e6, description="watts")]
Amount: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e9)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_NODES)]
PerNode: TypeAlias = Annotated[int, Meta(ge=1, le=10_000)]

IntraTopology: TypeAlias = Literal["nvswitch", "nvlink-mesh", "pcie-tree", "torus", "none"]
InterTopology: TypeAlias = Literal["fat-tree", "rail-optimized", "dragonfly", "torus", "none"]

INTERFERENCE: Final = 0.05
"""By what share a kernel slows down while a collective runs, if it was not measured."""
HOST_BANDWIDTH: Final = 25e9
"""Default bytes/s between a device and its host: PCIe 4."""
HOST_MEMORY_BANDWIDTH: Final = 200e9
"""Default bytes/s of a host's memory: eight channels of DDR4."""


PROCESSOR: Final = "cpu"
"""The architecture name of processors. A server may have any number of them, joined by its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of accelerator, with the figures of its datasheet.

    ``peak_flops`` are dense rates (no structured sparsity) in FLOP/s, by dtype; ``memory_bandwidth`` is in bytes/s.
    ``achievable`` holds fractions of these rates that were measured on the device at hand, under the names that
    :mod:`traincast.estimate.operators.efficiency` lists. ``reaches`` holds the fractions in which this kind of device
    differs from its architecture; all others are the architecture's. While a collective runs, it takes processors and
    bandwidth from kernels, which take ``interference`` of their time longer. ``power_limit_w`` is the limit that an
    operator has set, if it is not the TDP. ``source`` names the documents that the figures come from.
    """

    name: Text
    vendor: Text
    architecture: Text
    peak_flops: Mapping[str, Rate] = field(hash=False)
    memory_bytes: Bytes
    memory_bandwidth: Bandwidth
    l2_bytes: Bytes
    num_sms: Annotated[int, Meta(ge=1, le=100_000)]
    clock_hz: Annotated[float, Meta(ge=1e6, le=1e11, description="Hz")]
    tdp_w: Watts
    power_limit_w: Watts | None = None
    price_per_hour: Amount = 0.0
    achievable: Mapping[str, Annotated[float, Meta(ge=1e-6, le=10.0)]] = field(default_factory=dict, hash=False)
    reaches: Mapping[str, Annotated[float, Meta(ge=1e-6, le=1e4)]] = field(default_factory=dict, hash=False)
    interference: Annotated[float, Meta(ge=0.0, le=10.0)] = INTERFERENCE
    source: Text = ""

    @property
    def limit_w(self) -> float:
        """The most that the device may draw, in watts: the limit that was set, or its TDP."""
        return self.tdp_w if self.power_limit_w is None else self.power_limit_w

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s in ``dtype``; a dtype that the device lacks runs at the rate of :meth:`computes_in`."""
        used = self.computes_in(dtype)
        if used in self.peak_flops:
            return self.peak_flops[used]
        if used == "fp64" and "fp32" in self.peak_flops:
            return FP64_SHARE * self.peak_flops["fp32"]
        raise KeyError(f"{self.name} states no peak rate for {dtype} or any wider dtype")

    def supports(self, dtype: str) -> bool:
        """Whether the device states a rate for ``dtype`` itself."""
        return dtype in self.peak_flops

    def computes_in(self, dtype: str) -> str:
        """The format in which products in ``dtype`` are computed: itself, or the next wider one with a stated rate."""
        wider = _WIDER[dtype]
        return next((name for name in (dtype, *wider) if name in self.peak_flops), wider[-1] if wider else dtype)

    def lacks(self, dtype: str) -> str:
        """A sentence about products in ``dtype``, which the device lacks, and the format that stands for it."""
        used = self.computes_in(dtype)
        if used == dtype:
            return f"{self.name} states no rate of {dtype}: assumed 1/{1 / FP64_SHARE:.0f} of that of fp32"
        own = "; fp16 has a rate of its own" if dtype == "bf16" and self.supports("fp16") else ""
        return f"{self.name} has no {dtype}: its products run at the rate of {used}{own}"


FP64_SHARE: Final = 1 / 64
"""Rate of fp64 over that of fp32 on devices that state none: graphics chips have one unit of fp64 for 64 of fp32."""
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "nvfp4": ("fp8", "bf16", "tf32", "fp32"),
    "fp8": ("bf16", "tf32", "fp32"),
    "bf16": ("tf32", "fp32"),
    "fp16": ("tf32", "fp32"),
    "tf32": ("fp32",),
    "fp32": (),
    "fp64": (),
    "int64": ("fp32",),
    "int32": ("fp32",),
    "int16": ("fp32",),
    "int8": ("fp32",),
    "bool": ("fp32",),
}
"""Formats with at least the range and the precision of each, in the order in which they stand for it.

Neither of fp16 and bf16 is wider than the other: bf16 has the range of fp32, fp16 three more bits of precision. Without
matrix units for bf16, libraries convert its numbers to fp32 as they load them. Training in fp8 and below keeps its
activations in bf16, so its products run in bf16, or as those of bf16 do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way for bytes to leave a device: ``bandwidth`` in bytes/s per direction, ``latency_s`` per message.

    Inside a node the bandwidth is one device's; between nodes it is one NIC's.
    """

    name: Text
    bandwidth: Bandwidth
    latency_s: Delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes joined by a network: all of one kind, or several kinds listed in ``parts``.

    ``launch_s`` is the host's time to launch one kernel. ``host_memory_bytes`` is the memory of a node's host (0:
    unknown), ``host_bandwidth`` the bytes/s between it and each device, ``host_memory_bandwidth`` its own bytes/s,
    which all devices of a node share. ``oversubscription`` is the bandwidth at the network's edge over that of its
    upper tier (1: none). ``inter_node`` is one NIC of ``nics_per_node``.

    ``domain_nodes`` consecutive nodes share one domain of ``intra_node`` links (18 trays of four in an
    NVL72 rack; 1 for a plain server). ``group_nodes`` nodes share the network's first tier (a leaf
    switch, a dragonfly group). In meshes and with NVLink bridges, bandwidth depends on how many devices take part:
    ``subset_bandwidth`` lists the bytes/s per direction that each of the first 2, 3, … devices of a node can send to
    the others. For more devices than it lists, ``intra_node.bandwidth`` holds.

    With ``intra_topology`` = ``torus``, the devices of a domain form a torus of ``torus_dims`` axes of equal length;
    ``intra_node.bandwidth`` is what all links of one device send together. The ends of an axis are joined if it has at
    least ``torus_wrap`` devices; a shorter axis is a line. See :mod:`traincast.cluster.torus`.

    ``calibration`` holds parameters fitted to measured runs; without it, a forecast assumes those of other clusters.

    ``parts`` lists the nodes of a mixed cluster, in the order of ranks: nodes of one part are equal, and parts may
    differ in device, in size and in links. The other fields are then those of the slowest part (see :func:`joined`);
    they bound a step that waits for everyone. ``hosts`` are further nodes without accelerators: parameter servers may
    run there, ranks may not, and no count includes them.
    """

    name: Text
    device: Device
    num_nodes: Count
    devices_per_node: PerNode
    intra_node: Link
    inter_node: Link
    nics_per_node: PerNode
    intra_topology: IntraTopology
    inter_topology: InterTopology
    oversubscription: Annotated[float, Meta(ge=1.0, le=1e3)] = 1.0
    launch_s: Delay = 5e-6
    host_memory_bytes: Bytes = 0.0
    host_bandwidth: Bandwidth = HOST_BANDWIDTH
    host_memory_bandwidth: Bandwidth = HOST_MEMORY_BANDWIDTH
    storage_bandwidth: Bandwidth = 2e9
    price_per_node_hour: Amount = 0.0
    node_power_w: Amount = 0.0
    domain_nodes: Count = 1
    group_nodes: Count = 1
    subset_bandwidth: tuple[Bandwidth, ...] = ()
    torus_dims: Annotated[int, Meta(ge=1, le=6)] = 2
    torus_wrap: Count = 1
    parts: tuple[Cluster, ...] = ()
    hosts: tuple[Cluster, ...] = ()
    calibration: Calibration | None = None
    source: Text = ""

    @property
    def num_devices(self) -> int:
        """Devices in all nodes."""
        if self.parts:
            return sum(part.num_devices for part in self.parts)
        return self.num_nodes * self.devices_per_node

    @property
    def most_devices_per_node(self) -> int:
        """Devices of the largest node; ``devices_per_node`` of a mixed cluster are those of the smallest."""
        return max(part.devices_per_node for part in self.parts or (self,))

    @property
    def size_text(self) -> str:
        """Nodes times devices, as in ``2 × 8`` or ``1 × 8 + 2 × 4``."""
        runs: list[list[int]] = []
        for part in self.parts or (self,):
            if runs and runs[-1][1] == part.devices_per_node:
                runs[-1][0] += part.num_nodes
            else:
                runs.append([part.num_nodes, part.devices_per_node])
        return " + ".join(f"{nodes} × {devices}" for nodes, devices in runs)

    @property
    def domain_devices(self) -> int:
        """Devices that reach one another over ``intra_node`` links, without a NIC."""
        return self.devices_per_node * min(self.domain_nodes, self.num_nodes)

    @property
    def interference(self) -> float:
        """By what share a kernel slows down while a collective runs: the device's, times the calibration's factor."""
        return self.device.interference * (self.calibration.interference if self.calibration else 1.0)

    def with_nodes(self, num_nodes: int) -> Cluster:
        """The same cluster with another number of nodes; refuses a mixed cluster, whose nodes are listed."""
        if self.parts and num_nodes != self.num_nodes:
            raise RequestError(
                f"{self.name} lists its {self.num_nodes} nodes one by one, so their number cannot be changed to "
                f"{num_nodes}"
            )
        return replace(self, num_nodes=num_nodes)

    def with_power_limit(self, watts: float) -> Cluster:
        """The same cluster, each of whose devices may draw at most ``watts``; ``hosts`` stay as they are.

        Refuses less than a device draws before it computes anything.
        """
        idle_w = load_architecture(self.device.architecture).power.static * self.device.tdp_w
        if watts <= idle_w:
            raise RequestError(
                f"a power limit of {watts:g} W: {self.device.name} draws about {idle_w:.0f} W before it computes; give "
                f"more, up to its {self.device.tdp_w:g} W"
            )
        parts = tuple(part.with_power_limit(watts) for part in self.parts)
        return replace(self, device=replace(self.device, power_limit_w=watts), parts=parts)

    def split(self, last: int) -> tuple[Cluster, tuple[Cluster, ...]]:
        """Returns the cluster without its ``last`` nodes, and those nodes by kind; ``hosts`` count as the very last."""
        last -= sum(host.num_nodes for host in self.hosts)
        if not 0 <= last < self.num_nodes:
            raise RequestError(
                f"{last} of the {self.num_nodes} nodes of {self.name} with accelerators are taken away: expected from "
                f"0 to {self.num_nodes - 1}"
            )
        if not last:
            return replace(self, hosts=()) if self.hosts else self, self.hosts
        stay: list[Cluster] = []
        leave: list[Cluster] = []
        for part in self.parts or (self,):
            first = sum(p.num_nodes for p in (*stay, *leave))
            staying = min(part.num_nodes, max(0, self.num_nodes - last - first))
            stay += [part.with_nodes(staying)] if staying else []
            leave += [part.with_nodes(part.num_nodes - staying)] if staying < part.num_nodes else []
        return joined(stay), (*leave, *self.hosts)

    def kinds(self) -> tuple[Cluster, ...]:
        """One cluster for each distinct kind of node, as large as this cluster and on its network."""
        return tuple(dict.fromkeys(self._kinds_of_parts())) or (self,)

    def _kinds_of_parts(self) -> list[Cluster]:
        return [
            replace(
                part,
                num_nodes=self.num_nodes,
                inter_node=self.inter_node,
                nics_per_node=self.nics_per_node,
                inter_topology=self.inter_topology,
                oversubscription=self.oversubscription,
                group_nodes=self.group_nodes,
                domain_nodes=self.domain_nodes,
            )
            for part in self.parts
        ]

    def kind_of_device(self) -> list[int]:
        """For every device, in the order of ranks, the index of its kind in :meth:`kinds`."""
        if not self.parts:
            return [0] * self.num_devices
        number = {kind: n for n, kind in enumerate(self.kinds())}
        kinds = zip(self.parts, self._kinds_of_parts(), strict=True)
        return [number[kind] for part, kind in kinds for _ in range(part.num_devices)]

    @property
    def nic_bandwidth_per_device(self) -> float:
        """A device's fair share of its node's NICs, in bytes/s per direction."""
        return self.inter_node.bandwidth * self.nics_per_node / self.devices_per_node


def joined(parts: Sequence[Cluster], *, hosts: bool = False) -> Cluster:
    """Returns one cluster with the nodes of all ``parts``, in this order.

    Neighbouring parts with equal nodes become one part; if only one part remains, it is the result. With ``hosts``,
    nodes without accelerators become the ``hosts`` of the others.
    """
    aside = [part for part in parts if part.device.architecture == PROCESSOR] if hosts else []
    if 0 < len(aside) < len(parts):
        return replace(joined([part for part in parts if part not in aside]), hosts=tuple(aside))
    parts = _merged(parts)
    if len(parts) == 1:
        return parts[0]
    slowest = min(parts, key=lambda part: max(map(part.device.peak, ("bf16", "fp16"))))
    device = replace(slowest.device, memory_bytes=min(part.device.memory_bytes for part in parts))
    return replace(
        slowest,
        name="+".join(dict.fromkeys(part.name for part in parts)),
        device=device,
        num_nodes=sum(part.num_nodes for part in parts),
        devices_per_node=min(part.devices_per_node for part in parts),
        intra_node=min((part.intra_node for part in parts), key=lambda link: link.bandwidth),
        inter_node=min((part.inter_node for part in parts), key=lambda link: link.bandwidth),
        nics_per_node=min(part.nics_per_node for part in parts),
        oversubscription=max(part.oversubscription for part in parts),
        launch_s=max(part.launch_s for part in parts),
        host_memory_bytes=min(part.host_memory_bytes for part in parts),
        price_per_node_hour=sum(p.price_per_node_hour * p.num_nodes for p in parts) / sum(p.num_nodes for p in parts),
        node_power_w=sum(p.node_power_w * p.num_nodes for p in parts) / sum(p.num_nodes for p in parts),
        domain_nodes=1,
        calibration=None,
        subset_bandwidth=min((part.subset_bandwidth for part in parts), key=sum),
        parts=tuple(parts),
    )


def _merged(parts: Sequence[Cluster]) -> list[Cluster]:
    """``parts`` with neighbours of equal nodes as one part; the parts of mixed clusters are listed one by one."""
    found: list[Cluster] = []
    for part in (inner for given in parts for inner in given.parts or (given,)):
        if found and replace(found[-1], num_nodes=part.num_nodes) == part:
            found[-1] = part.with_nodes(found[-1].num_nodes + part.num_nodes)
        else:
            found.append(part)
    return found
