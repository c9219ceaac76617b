"""The highest rates of a device: from its datasheet, or the best of its own measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Device
from traincast.cluster.match import own_name
from traincast.fitting.rows.parts import parts_of
from traincast.graph import DType, Operator
from traincast.graph.vocabulary import CONVOLUTIONS, MATRIX_KINDS

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

WINOGRAD_FACTOR: Final = 4.0
"""Multiply-adds that a convolution may save over the direct method (Lavin and Gray, 2016: F(4 × 4, 3 × 3))."""

DERIVED: Final = "measured"
"""The architecture of a device that is in no catalog: its rates are the best of its own measurements."""

DTYPE_CODE: Final = {dtype: code for code, dtype in enumerate(DType)}
"""The column of each dtype in the rates of :func:`limits_of`."""


class MeasuredRates(NamedTuple):
    """FLOPs, bytes, seconds, dtype and device of every row."""

    device_code: Ints
    dtype: Ints
    flops: Floats
    nbytes: Floats
    seconds: Floats

    def device(self, code: int, text: str) -> Device | None:
        """A device whose rates are the best that its rows reached (their 99 % quantile)."""
        own = (self.device_code == code) & (self.seconds > 0) & np.isfinite(self.seconds)
        if not own.any():
            return None
        bandwidth = float(np.quantile(self.nbytes[own] / self.seconds[own], 0.99))
        peaks = {}
        for dtype, number in DTYPE_CODE.items():
            rows = own & (self.dtype == number)
            if dtype.is_floating and rows.any():
                peaks[dtype.value] = max(1.0, float(np.quantile(self.flops[rows] / self.seconds[rows], 0.99)))
        peaks.setdefault(DType.FP32.value, max(peaks.values(), default=1.0))
        return Device(
            name=own_name(text),
            vendor="unknown",
            architecture=DERIVED,
            peak_flops=peaks,
            memory_bytes=1e12,
            memory_bandwidth=max(1.0, bandwidth),
            l2_bytes=32e6,
            num_sms=1,
            clock_hz=1e9,
            tdp_w=1.0,
            price_per_hour=0.0,
            source="the best of its own measurements",
        )


def amounts_of(operators: Sequence[Operator]) -> tuple[Floats, Floats]:
    """FLOPs of the products of each operator, and the bytes of everything else in it."""
    flops, nbytes = np.zeros(len(operators)), np.zeros(len(operators))
    for i, op in enumerate(operators):
        for part in parts_of(op):
            if part.kind not in MATRIX_KINDS:
                nbytes[i] += part.nbytes
            elif part.kind in CONVOLUTIONS:
                flops[i] += part.flops / WINOGRAD_FACTOR
            else:
                flops[i] += part.flops
    return flops, nbytes


def limits_of(devices: Sequence[Device | None]) -> tuple[Floats, Floats, Floats]:
    """FLOP/s by device and dtype, bytes/s and bytes of cache by device; without limit where it is unknown."""
    rates = np.full((len(devices), len(DTYPE_CODE)), np.inf)
    bandwidth, cache = np.full(len(devices), np.inf), np.zeros(len(devices))
    for i, device in enumerate(devices):
        if device is not None:
            bandwidth[i], cache[i] = device.memory_bandwidth, device.l2_bytes
            rates[i] = [_peak(device, dtype) for dtype in DTYPE_CODE]
    return rates, bandwidth, cache


def _peak(device: Device, dtype: DType) -> float:
    """The highest rate at which frameworks may compute ``dtype``: fp32 products also in tf32."""
    rate = device.peak(dtype.value)
    if dtype is DType.FP32 and device.supports(DType.TF32.value):
        rate = max(rate, device.peak(DType.TF32.value))
    return rate
