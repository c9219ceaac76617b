"""The analytical cost model: a roofline for operators, latency and bandwidth for collectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.cluster import Cluster, Device
from traincast.cluster.architecture import architecture_names, load_architecture
from traincast.estimate.collectives.laws import collective_seconds, crosses_nics, transfer_seconds
from traincast.estimate.operators import grouped
from traincast.estimate.operators.convolutions import convolution_law, depthwise_s
from traincast.estimate.operators.efficiency import (
    INTERVALS,
    MEMORY_SHARE,
    UNMEASURED_WIDENING,
    achievable,
)
from traincast.estimate.operators.roofline import (
    SHARPNESS,
    Column,
    Machine,
    attention_compute_seconds,
    gemm_compute_seconds,
    join,
    memory_seconds,
)
from traincast.estimate.protocol import SOURCES, Estimates
from traincast.graph import Operator, OpKind, Phase
from traincast.graph.scan_amount import WITHOUT_PRODUCTS
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.graph.work_amount import attention_dims, attention_fraction, gemm_dims, grouped_gemm_dims
from traincast.work import Collective, HostCopy, HostUpdate, Launch, Transfer, Work

UNALIGNED_SHARE: Final = 0.7
"""What products of 16 bits reach of the fp32 peak if matrix units cannot read their operands, which are not aligned.

On A100, unfused attention with heads of 108 and 150 dims ran at 7 to 9 TFLOP/s in published steps.
"""
GROUPED_SHARE: Final = 0.42
"""What a grouped GEMM by kernels of inference reaches of a batched one of the same size with many rows per expert.

Kernels of training are in :mod:`traincast.estimate.operators.grouped`.
"""
STATIC_SHARE: Final = 0.8
"""The same where a compiler lays out the rows of experts: TPUs and the like."""
RNN_STEP_S: Final = 12e-6
"""Seconds between the time steps of a recurrent layer: one cannot begin before the last has ended."""
SCAN_SHARE: Final = 0.25
"""What the products of a chunked scan reach of a matrix product: small tiles, with decays applied to every one."""
SCAN_SM_RATE: Final = 2.3e12
"""FLOP/s per SM above which those products do not become faster: A100's. Their kernels, written in Triton, feed matrix
units from registers, and the larger units of Hopper and Blackwell wait for them."""
SELECTIVE_SHARE: Final = 0.25
"""What a selective scan reaches of the fp32 peak: an exponential per state, no product."""
SORTED_ID_BYTES: Final = 4e3
"""Traffic per id to sort the ids of an embedding's gradient and to add up rows of equal ids: 5 ns on V100, 3.6 ns on
A100, by which published steps of NCF in TensorFlow are longer than those in PyTorch."""
CAST_BYTES: Final = {"fp8": 7.0, "nvfp4": 3.0}
"""Traffic per element of ``a`` to scale and cast it to a narrow dtype, in passes of their own."""
CAST_S: Final = 4.5e-6
"""Seconds that those passes take at least."""
ATTENTION_S: Final = 10e-6
"""What the shortest fused attention takes beyond the shortest kernel."""
ATTENTION_SHARPNESS: Final = 1.0
"""As :data:`traincast.estimate.operators.roofline.SHARPNESS`, for attention: less overlap."""
FUSED_FLOOR: Final = 0.1
"""Share of a kernel's floor that one tensor of a fused optimizer pays."""

_FAMILIES: Final = tuple(INTERVALS)
_FAMILY_OF_KIND: Final = {kind: kind.formula.value for kind in MATRIX_KINDS}
_ANALYTICAL: Final = SOURCES.index("analytical")


@dataclass(frozen=True, slots=True)
class AnalyticalCostModel:
    """Estimates every work from datasheet rates and a few fractions of them that are achievable.

    Operators of narrow dtypes (fp8, nvfp4) include the cast of their activations. Intervals hold 90 % of
    the measurements that the fractions were fitted on, and are wider for hardware without measurements.
    """

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        """Seconds, interval and source of every work, in order; never NaN, never negative."""
        seconds = np.zeros(len(works))
        family = np.zeros(len(works), dtype=np.intp)
        operators = _Operators(cluster)
        collectives: list[int] = []
        transfers: list[int] = []
        for i, work in enumerate(works):
            if isinstance(work, Operator):
                family[i] = operators.add(i, work)
            elif isinstance(work, Collective):
                collectives.append(i)
                family[i] = _FAMILIES.index("inter" if crosses_nics(work.num_nodes, cluster) else "intra")
            elif isinstance(work, Transfer):
                transfers.append(i)
                family[i] = _FAMILIES.index("inter" if work.crosses_nodes else "intra")
            elif isinstance(work, Launch):
                seconds[i] = max(0.0, work.launches) * cluster.launch_s
                family[i] = _FAMILIES.index("prepared" if work.prepared else "launch")
            elif isinstance(work, HostCopy):
                seconds[i] = work.nbytes / cluster.host_bandwidth
                family[i] = _FAMILIES.index("intra")
            elif isinstance(work, HostUpdate):
                seconds[i] = work.nbytes * cluster.devices_per_node / cluster.host_memory_bandwidth
                family[i] = _FAMILIES.index("memory")
            else:
                raise TypeError(f"a work is a {type(work).__name__}: known are {Work}")
        seconds += operators.seconds(len(works))
        seconds[collectives] = collective_seconds([works[i] for i in collectives], cluster)  # type: ignore[misc]
        seconds[transfers] = transfer_seconds([works[i] for i in transfers], cluster)  # type: ignore[misc]
        low, high = _bounds(family, measured=operators.reach.measured)
        return Estimates(
            seconds=seconds,
            low=seconds * low,
            high=seconds * high,
            source=np.full(len(works), _ANALYTICAL, dtype=np.int8),
            warnings=tuple(operators.warnings),
            unmeasured=np.array([isinstance(work, Operator) and not operators.reach.measured for work in works], bool),
        )


def _bounds(family: np.ndarray[tuple[int], np.dtype[np.intp]], *, measured: bool) -> tuple[Column, Column]:
    factors = np.array(list(INTERVALS.values())) ** (1.0 if measured else UNMEASURED_WIDENING)
    return factors[family, 0], factors[family, 1]


class _Operators:
    """The operators of one call, gathered as rows for each formula and costed together."""

    def __init__(self, cluster: Cluster) -> None:
        device = cluster.device
        self.device = device
        self.architecture = load_architecture(device.architecture)
        self.reach = achievable(device)
        self.machine = Machine(
            num_sms=float(device.num_sms),
            bandwidth=device.memory_bandwidth * self.reach.memory,
            l2_bytes=device.l2_bytes,
            floor_s=self.reach.floor_s,
        )
        self.warnings: dict[str, None] = {}
        if device.architecture not in architecture_names():
            self._warn(
                f"nothing was measured on the architecture {device.architecture!r}: operators on {device.name} are "
                "assumed to reach usual fractions of its peak rates, with wide intervals"
            )
        self._rates: dict[tuple[str, str], float] = {}
        self._products: list[tuple[float, ...]] = []
        self._attentions: list[tuple[float, ...]] = []
        self._traffic: list[tuple[float, ...]] = []

    def add(self, index: int, op: Operator) -> int:
        """Add ``op`` as work ``index``; returns the number of the family that its interval comes from."""
        match op.kind:
            case OpKind.GEMM | OpKind.BATCHED_GEMM:
                self._add_gemm(index, op, gemm_dims(op), 1.0)
            case OpKind.GROUPED_GEMM:
                self._add_grouped(index, op)
            case OpKind.ATTENTION:
                self._add_attention(index, op)
            case OpKind.CONV:
                self._add_conv(index, op)
            case OpKind.RNN:
                self._add_rnn(index, op)
            case _:
                self._add_traffic(index, op)
        name = _FAMILY_OF_KIND.get(op.kind, "memory")
        if name == "gemm" and self.device.computes_in(op.inputs[0].dtype.value) in CAST_BYTES:
            name = "narrow_gemm"
        return _FAMILIES.index(name)

    def _warn(self, text: str) -> None:
        self.warnings[text] = None

    def _rate(self, family: str, dtype: str) -> float:
        """Achievable FLOP/s of ``family`` in ``dtype``."""
        rate = self._rates.get((family, dtype))
        if rate is None:
            if not self.device.supports(dtype):
                self._warn(self.device.lacks(dtype))
            used = self.device.computes_in(dtype)
            fraction = {
                "gemm": self.reach.gemm_fraction(used),
                "conv": self.reach.conv_fraction(used),
                "attention": self.reach.attention,
                "attention_backward": self.reach.attention_backward,
            }[family]
            rate = self._rates[family, dtype] = fraction * self.device.peak(dtype)
        return rate

    def _scan_rate(self, dtype: str) -> float:
        rate = self._rate("gemm", dtype)
        return min(rate, SCAN_SM_RATE * self.device.num_sms) if self.reach.graphics else rate

    def _add_grouped(self, index: int, op: Operator) -> None:
        if grouped.of_training(op) and self.reach.graphics:
            share = 1.0 / grouped.slowdown(op, self.device)
            more = max(0.0, grouped.weight_bytes(op) - op.outputs[0].nbytes) if grouped.makes_weights(op) else 0.0
            dims = (1.0, *grouped.dims_of_product(op))
            self._add_gemm(index, op, dims, share, more_bytes=more, sharpness=grouped.SHARPNESS)
            self._traffic.append((index, 0.0, 1.0, 0.0, grouped.starts_s(op)))
            return
        experts, rows, n, k = grouped_gemm_dims(op)
        per_expert = rows / experts + self.architecture.expert_tile
        dims = (experts, k, n, per_expert) if grouped.makes_weights(op) else (experts, per_expert, n, k)
        self._add_gemm(index, op, dims, GROUPED_SHARE if self.reach.graphics else STATIC_SHARE)

    def _add_gemm(
        self,
        index: int,
        op: Operator,
        dims: tuple[float, float, float, float],
        share: float,
        *,
        more_bytes: float = 0.0,
        sharpness: float = SHARPNESS,
    ) -> None:
        dtype = op.inputs[0].dtype.value
        cast = CAST_BYTES.get(self.device.computes_in(dtype), 0.0) * op.inputs[0].numel
        rate = share * self._rate("gemm", dtype) * attention_share(op, self.device)
        out_bytes = op.outputs[0].dtype.nbytes
        self._products.append((index, *dims, rate, out_bytes, op.nbytes + more_bytes, cast, sharpness, 1.0))

    def _add_conv(self, index: int, op: Operator) -> None:
        used = self.device.computes_in(op.inputs[0].dtype.value)
        plain = used in ("fp32", "fp64")
        lost = 1.0 if plain else self.reach.loss_share
        law = convolution_law(op, dtype=used, graphics=self.reach.graphics, loss_share=lost)
        rate = law.gain * self._rate(law.family, op.inputs[0].dtype.value)
        out_bytes = op.outputs[0].dtype.nbytes
        if law.converted_bytes:
            self._traffic.append((index, law.converted_bytes, MEMORY_SHARE[OpKind.COPY, False], 0.0, 0.0))
        for share, *dims in law.products:
            self._products.append((index, *dims, share * rate, out_bytes, law.nbytes, 0.0, law.sharpness, 1.0))

    def _add_rnn(self, index: int, op: Operator) -> None:
        """Products over all steps at once, and those with the recurrent weights, step after step."""
        data, weight, recurrent = op.inputs[:3]
        batch = data.shape[data.batch_dim or 0]
        steps = max(1.0, data.numel / (data.shape[-1] * batch))
        width, hidden = float(recurrent.shape[0]), recurrent.numel / recurrent.shape[0]
        inner = weight.numel / weight.shape[0]
        at_once, in_turn = (batch * steps, width, inner), (batch, width, hidden)
        products = [(1.0, *at_once), (steps, *in_turn)]
        if op.is_gradient:
            products.append((1.0, width, inner + hidden, batch * steps))
        rate, size = self._rate("gemm", data.dtype.value), data.dtype.nbytes
        for times, m, n, k in products:
            nbytes = (m * k + k * n + m * n) * size
            self._products.append((index, 1.0, m, n, k, rate, size, nbytes, 0.0, SHARPNESS, times))
        self._traffic.append((index, 0.0, 1.0, 0.0, steps * RNN_STEP_S))

    def _add_attention(self, index: int, op: Operator) -> None:
        backward = op.is_gradient
        batch, heads, queries, keys, dims_qk, dims_v = attention_dims(op)
        rate = self._rate("attention_backward" if backward else "attention", op.inputs[0].dtype.value)
        rate *= attention_share(op, self.device)
        # Backward makes five products where forward makes two.
        passes = batch * heads * (2.5 if backward else 1.0)
        seen = keys * attention_fraction(op)
        dims, lanes = dims_qk + dims_v, self.architecture.lanes
        if lanes > 1:
            dims = sum(math.ceil(each / lanes) * lanes for each in (dims_qk, dims_v))
        self._attentions.append((index, passes, queries, seen, dims, rate, op.nbytes))

    def _add_traffic(self, index: int, op: Operator) -> None:
        kind = op.kind
        share = MEMORY_SHARE.get((kind, op.phase is Phase.BACKWARD), 1.0)
        compute, floor = 0.0, self.machine.floor_s
        if kind is OpKind.DEPTHWISE_CONV:
            compute = depthwise_s(op, self.device, graphics=self.reach.graphics)
        elif kind is OpKind.SCAN:
            plain = op.name in WITHOUT_PRODUCTS
            peak = self.device.peak("fp32") if plain else self._scan_rate(op.inputs[0].dtype.value)
            compute = op.flops / ((SELECTIVE_SHARE if plain else SCAN_SHARE) * peak)
        elif kind is OpKind.OPTIMIZER:
            floor *= FUSED_FLOOR
        if op.attributes.get("ids") == "sorted":
            self._traffic.append((index, SORTED_ID_BYTES * op.inputs[-1].numel, 1.0, 0.0, 0.0))
        self._traffic.append((index, op.nbytes, share, compute, floor))

    def seconds(self, count: int) -> Column:
        """Seconds of works 0 to ``count`` - 1; zero for works that are not operators."""
        total = np.zeros(count)
        machine = self.machine
        if self._products:
            index, b, m, n, k, rate, out_bytes, nbytes, cast, sharpness, times = _columns(self._products)
            compute = gemm_compute_seconds(b, m, n, k, rate=rate, out_bytes=out_bytes, machine=machine)
            spent = join(compute, memory_seconds(nbytes, machine), sharpness) + machine.floor_s
            spent += np.where(cast > 0, CAST_S + memory_seconds(cast, machine), 0.0)
            np.add.at(total, index.astype(np.intp), times * spent)
        if self._attentions:
            index, passes, queries, keys, dims, rate, nbytes = _columns(self._attentions)
            compute = attention_compute_seconds(
                passes, queries, keys, dims, rate=rate, extra_dims=self.reach.extra_dims, machine=machine
            )
            spent = join(compute, memory_seconds(nbytes, machine), ATTENTION_SHARPNESS)
            np.add.at(total, index.astype(np.intp), spent + machine.floor_s + ATTENTION_S)
        if self._traffic:
            index, nbytes, share, compute, floor = _columns(self._traffic)
            spent = join(compute, memory_seconds(nbytes, machine, share)) + floor
            np.add.at(total, index.astype(np.intp), spent)
        return total


def attention_share(op: Operator, device: Device) -> float:
    """The fraction of the speed of the device's best kernels that ``op``, a part of attention, reaches."""
    kernel = op.attributes.get("kernel")
    older = load_architecture(device.architecture).older_attention
    if kernel in older:
        return older[str(kernel)]
    if kernel == "unaligned":
        dtype = device.computes_in(op.inputs[0].dtype.value)
        best = achievable(device).gemm_fraction(dtype) * device.peak(dtype)
        return min(1.0, UNALIGNED_SHARE * device.peak("fp32") / best)
    return 1.0


def _columns(rows: list[tuple[float, ...]]) -> Column:
    return np.array(rows, dtype=np.float64).T
