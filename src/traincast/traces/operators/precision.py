"""In which precision a trace was recorded: the dtypes in which its matrix products and its weights are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from traincast.graph.tensor import DType
from traincast.graph.vocabulary import PRODUCTS
from traincast.traces.changes.scaling import PRODUCT, operators_of
from traincast.traces.files.trace import ProfilerTrace
from traincast.traces.operators.known import dtype_of, known_operator
from traincast.traces.operators.launches import launchers
from traincast.traces.recording.calls import NARROW
from traincast.traces.recording.device import DeviceWork, device_work
from traincast.traces.recording.processor import PASSED_ON, on_processor, own_times
from traincast.traces.recording.steps import steps_of

_BY_NAME: Final = (
    (re.compile(r"bf16|BFloat16|Cijk_.*_BB?S_"), DType.BF16),
    (re.compile(r"fp16|[Hh]alf|h884|h1688|h16816|hgemm|Cijk_.*_HB?S_"), DType.FP16),
    (NARROW, DType.TF32),
    (re.compile(r"sgemm|scudnn|f32f32_f32f32|Cijk_.*_SB_"), DType.FP32),
)
"""What the names of product kernels say about their dtype; the first that matches counts."""
_MIXED: Final = {DType.FP16: ("amp", "fp16"), DType.BF16: ("amp-bf16", "bf16")}
"""The precision of products in half precision, with weights in fp32 and with weights in half precision."""
_MOST: Final = 0.5
"""Share of the products' time that must be in one dtype to call it that of the trace."""


def precision_of(trace: ProfilerTrace) -> str | None:
    """Return the precision of a trace by its name in :data:`traincast.strategy.program.precision.PRECISIONS`.

    ``None`` if no product is recorded, or none tells its dtype by shapes or by the name of its kernel.
    """
    work = device_work(trace)
    took = _on_processor(trace) if on_processor(trace) else _by_shapes(trace, work) or _by_names(trace, work)
    total = sum(took.values())
    dtype = max(took, key=lambda one: took[one], default=None)
    if dtype is None or took[dtype] <= _MOST * total:
        return None
    if dtype in _MIXED:
        return _MIXED[dtype][_weights(trace) is dtype]
    return str(dtype.value) if dtype in (DType.FP32, DType.TF32, DType.FP8) else None


def _by_shapes(trace: ProfilerTrace, work: DeviceWork) -> Mapping[DType, float]:
    """Return the device time of products by the dtype of their inputs."""
    took: Counter[DType] = Counter()
    for op, (_, operator) in operators_of(trace, work, launchers(trace, work)).items():
        if operator.kind in PRODUCTS:
            narrow = operator.dtype is DType.FP32 and NARROW.search(trace.name_of(int(work.event[op])))
            took[DType.TF32 if narrow else operator.dtype] += int(work.end[op] - work.start[op])
    return took


def _by_names(trace: ProfilerTrace, work: DeviceWork) -> Mapping[DType | None, float]:
    """Return the device time of product kernels by the dtype that their names say; ``None``: they say none."""
    took: Counter[DType | None] = Counter()
    for op in range(len(work)):
        name = trace.name_of(int(work.event[op]))
        if PRODUCT.search(name) and not work.communicates[op]:
            said = next((dtype for pattern, dtype in _BY_NAME if pattern.search(name)), None)
            took[said] += int(work.end[op] - work.start[op])
    return took


def _on_processor(trace: ProfilerTrace) -> Mapping[DType, float]:
    """Return the time of products on a processor by the dtype of their inputs."""
    took: Counter[DType] = Counter()
    for one in own_times(trace, steps_of(trace)):
        operator = known_operator(trace.name_of(one.outer), trace.shape_of(one.outer))
        if operator is not None and operator.kind in PRODUCTS:
            took[operator.dtype] += one.ns
    return took


def _weights(trace: ProfilerTrace) -> DType | None:
    """Return the dtype of the weights: that of the gradients that autograd passes on, if it is recorded."""
    number = next((i for i, name in enumerate(trace.names) if name == PASSED_ON), None)
    if number is None:
        return None
    events = (trace.name == number).nonzero()[0].tolist()
    dtypes = Counter(dtype for event in events if (dtype := dtype_of(trace.shape_of(event))) is not None)
    return dtypes.most_common(1)[0][0] if dtypes else None
