"""Kernel times of a recording on another device.

An operator whose shapes are known takes the recorded time, multiplied by the ratio of its estimates on the two
devices: what is special about its kernels stays, and only the device changes. For others, and where nothing was
measured on one of the two architectures, kernels of products scale by the ratio of compute rates and the rest by the
ratio of bandwidths, in whole waves of blocks where the trace states them (Yu et al., "Habitat", 2021); the shortest
possible kernel of each device is left out of the scaling.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster.hardware import Device
from traincast.cluster.interconnect import find_node
from traincast.estimate import CostModel, Estimates
from traincast.estimate.operators.efficiency import achievable
from traincast.estimate.power import estimated
from traincast.graph.operator import Operator
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.vocabulary import OpKind
from traincast.traces.files.kineto import Kind
from traincast.traces.files.trace import ProfilerTrace, RecordedShape
from traincast.traces.operators.known import convolution, dtype_of, known_operator, tensors_of
from traincast.traces.operators.launches import Launchers, launchers
from traincast.traces.recording.calls import NARROW
from traincast.traces.recording.device import DeviceWork, device_work
from traincast.traces.recording.recording import Recording, TaskRole

Floats = npt.NDArray[np.float64]

PRODUCT: Final = re.compile(
    r"gemm|gemv|conv|scudnn|winograd|fprop|dgrad|wgrad|xmma|cutlass|Cijk_|flash|fmha|attn", re.IGNORECASE
)
_HALF: Final = re.compile(r"bf16|fp16|[Hh]alf|h884|h1688|h16816|hgemm|BFloat16|Cijk_.*_[HB]B?S_")
_BETWEEN_HOST: Final = re.compile(r"HtoD|DtoH|Host")
_CONVOLUTIONS: Final = ("aten::cudnn_convolution", "aten::miopen_convolution", "aten::convolution")
_AHEAD: Final = 64
"""Events after a convolution among which its output is looked for."""
_UNSURE: Final = 1.5
"""Factor between the expected time and the ends of the interval, where nothing but rates is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceScaling:
    """New over recorded seconds of each operation of a trace: the expected ratio, and the ends of its interval.

    ``by_operator`` is the share of the device's time that was scaled by estimates of known operators.
    """

    factor: Floats
    low: Floats
    high: Floats
    by_operator: float


def device_scaling(
    trace: ProfilerTrace, work: DeviceWork, *, source: Device, target: Device, cost_model: CostModel
) -> DeviceScaling:
    """Return the factors by which the operations of a trace change on another device."""
    took = (work.end - work.start).astype(np.float64) / 1e9
    factor, low, high = (np.ones(len(work)) for _ in range(3))
    known = np.zeros(len(work), dtype=bool)
    around = launchers(trace, work)
    groups = _known(trace, work, around)
    if groups:
        operators = list(groups)
        narrow = [any(NARROW.search(trace.name_of(int(work.event[op]))) for op in groups[o]) for o in operators]
        on = [
            estimated(cost_model, [_on(o, device, narrow=n) for o, n in zip(operators, narrow, strict=True)], node)
            for device, node in ((source, find_node(source, 1)), (target, find_node(target, 1)))
        ]
        for number, operator in enumerate(operators):
            if any(_unmeasured(estimates, number) for estimates in on):
                continue
            ops = groups[operator]
            ratio = on[1].seconds[number] / on[0].seconds[number]
            factor[ops] = ratio
            low[ops] = ratio * on[1].low[number] / on[1].seconds[number]
            high[ops] = ratio * on[1].high[number] / on[1].seconds[number]
            known[ops] = True
    for op in np.flatnonzero(~known).tolist():
        inner = int(around.inner[op])
        dtype = dtype_of(trace.shape_of(inner)) if inner >= 0 else None
        factor[op] = _by_rates(trace, int(work.event[op]), float(took[op]), source=source, target=target, stated=dtype)
        low[op], high[op] = factor[op] / _UNSURE, factor[op] * _UNSURE
    talks = work.communicates
    factor[talks] = low[talks] = high[talks] = 1.0
    return DeviceScaling(
        factor=factor,
        low=low,
        high=high,
        by_operator=float(took[known & ~talks].sum() / max(took[~talks].sum(), 1e-30)),
    )


def is_half(kernel_name: str) -> bool:
    """Whether a kernel's name says that it computes in half precision."""
    return _HALF.search(kernel_name) is not None


def task_factors(recording: Recording, scalings: list[DeviceScaling], *, level: int = 0) -> Floats:
    """Return the factor of every task of a recording; ``level`` −1 for the low end, 1 for the high end."""
    factors = np.ones(len(recording))
    for number, (trace, scaling) in enumerate(zip(recording.traces, scalings, strict=True)):
        by_event = np.ones(len(trace))
        chosen = scaling.factor if level == 0 else scaling.low if level < 0 else scaling.high
        by_event[device_work(trace).event] = chosen
        mine = np.flatnonzero((recording.role == TaskRole.DEVICE) & (recording.trace == number))
        factors[mine] = by_event[recording.event[mine]]
    return factors


def _unmeasured(estimates: Estimates, number: int) -> bool:
    """Whether nothing was measured on the architecture of an estimate's device."""
    return estimates.unmeasured is not None and bool(estimates.unmeasured[number])


def _known(trace: ProfilerTrace, work: DeviceWork, around: Launchers) -> dict[Operator, list[int]]:
    """Return the operations of each distinct operator whose shapes are known."""
    groups: dict[Operator, list[int]] = defaultdict(list)
    for op, (_, operator) in operators_of(trace, work, around).items():
        groups[operator].append(op)
    return groups


def operators_of(trace: ProfilerTrace, work: DeviceWork, around: Launchers) -> dict[int, tuple[int, Operator]]:
    """Return the event and operator of each operation: the innermost around its launch whose shapes are known."""
    found: dict[int, tuple[int, Operator] | None] = {}
    known: dict[int, tuple[int, Operator]] = {}
    for op, event in enumerate(around.inner.tolist()):
        if event < 0 or work.communicates[op] or trace.kind[work.event[op]] == Kind.COPY:
            continue
        if event not in found:
            found[event] = _around(trace, around, event)
        if (one := found[event]) is not None:
            known[op] = one
    return known


def _around(trace: ProfilerTrace, around: Launchers, event: int) -> tuple[int, Operator] | None:
    while event >= 0:
        name, shape = trace.name_of(event), trace.shape_of(event)
        operator = known_operator(name, shape)
        if operator is None and name in _CONVOLUTIONS:
            operator = _by_output(trace, event)
        if operator is not None:
            return event, operator
        event = int(around.parent[event])
    return None


def _by_output(trace: ProfilerTrace, event: int) -> Operator | None:
    """Return a convolution whose stride is not recorded: what runs next on the thread reads its output."""
    tensors = tensors_of(trace.shape_of(event))
    if len(tensors) < 2 or len(tensors[0].shape) != len(tensors[1].shape):
        return None
    begin = (tensors[0].shape[0], tensors[1].shape[0])
    end = int(trace.start[event] + trace.duration[event])
    at = int(np.searchsorted(trace.start, end))
    for later in range(at, min(at + _AHEAD, len(trace))):
        if trace.kind[later] != Kind.OPERATOR or trace.lane[later] != trace.lane[event]:
            continue
        read = tensors_of(trace.shape_of(later))
        if read and read[0].shape[:2] == begin and len(read[0].shape) == len(tensors[0].shape):
            return convolution(tensors, read[0].shape)
    return None


def _on(operator: Operator, device: Device, *, narrow: bool) -> Operator:
    """Return the operator as the framework runs it on a device: products of fp32 on tensor cores where it does so.

    PyTorch does so by default for convolutions on NVIDIA's devices, and for other products if asked (``narrow``).
    """
    chosen = operator.kind is OpKind.CONV and device.vendor == "nvidia"
    if operator.dtype is not DType.FP32 or not (chosen or narrow) or not device.supports("tf32"):
        return operator

    def changed(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(t, dtype=DType.TF32) if t.dtype is DType.FP32 else t for t in tensors)

    return replace(operator, inputs=changed(operator.inputs), outputs=changed(operator.outputs))


def _by_rates(
    trace: ProfilerTrace, event: int, took: float, *, source: Device, target: Device, stated: DType | None
) -> float:
    """Return the factor of an operation whose operator is not known, or not measured."""
    name = trace.name_of(event)
    if took <= 0:
        return 1.0
    if trace.kind[event] == Kind.COPY and _BETWEEN_HOST.search(name):
        return 1.0
    have, want = achievable(source), achievable(target)
    if trace.kind[event] == Kind.KERNEL and PRODUCT.search(name):
        dtype = _dtype(name, stated)
        rates = [
            device.peak(dtype) * reach.gemm_fraction(device.computes_in(dtype))
            for device, reach in ((source, have), (target, want))
        ]
        spare = min(have.floor_s, took / 2)
        return (want.floor_s * spare / have.floor_s + (took - spare) * rates[0] / rates[1]) / took
    spare = min(have.floor_s, took)
    ratio = source.memory_bandwidth * have.memory / (target.memory_bandwidth * want.memory)
    ratio *= _waves(trace.shape_of(event), source, target)
    return (want.floor_s * spare / have.floor_s + (took - spare) * ratio) / took


def _dtype(name: str, stated: DType | None) -> str:
    """Return what a kernel of a product computes in: as its operator's inputs say, else its name."""
    if stated is not None and stated is not DType.FP32:
        return str(stated.value)
    if NARROW.search(name):
        return "tf32"
    return "bf16" if stated is None and _HALF.search(name) else "fp32"


def _waves(shape: RecordedShape, source: Device, target: Device) -> float:
    """Return how much longer the last, partly filled wave makes a kernel on the target than on the source."""
    blocks, threads = _count(shape.grid), _count(shape.block)
    if not blocks or not threads or not source.num_sms or not target.num_sms:
        return 1.0
    beside = max(1, min(32, 2048 // threads))
    loss = []
    for device in (source, target):
        waves = blocks / (device.num_sms * beside)
        loss.append(math.ceil(waves) / waves if waves > 1 else 1.0)
    return loss[1] / loss[0]


def _count(text: str) -> int:
    try:
        return math.prod(json.loads(text)) if text else 0
    except (ValueError, TypeError):
        return 0
