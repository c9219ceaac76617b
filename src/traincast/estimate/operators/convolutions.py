"""Laws of convolutions: the matrix products that they amount to, and how their kernels differ from products.

A convolution is an implicit product of matrices (Chetlur et al., "cuDNN", 2014). Kernels for special windows need fewer
products, kernels for matrix units read another layout, and depthwise convolutions have no product to tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from traincast.cluster import Device
from traincast.estimate.operators.features import INTERCHANGEABLE
from traincast.estimate.operators.roofline import SHARPNESS
from traincast.graph import Operator, Phase

DEPTHWISE_BYTES: Final = {False: 0.0116, True: 0.0060}
"""Bytes of its tensors that a depthwise convolution, or its gradients, move per operation of the fp32 peak.

It has no product to tile: each thread computes addresses and loads a window, so that issuing instructions takes longer
than memory. Fitted to published steps of EfficientNet on V100 and A100, whose bandwidths differ by 2.2 times.
"""
UNROLLED_SIDE: Final = 5
WINDOW_FLOP_SHARE: Final = 0.046
"""The widest window that depthwise kernels are written out for, and what a kernel for any window reaches of the fp32
peak: it computes an address, checks a border and loads twice for every product, 22 instructions in all. The share is
the same on V100 and A100, in 16 bits and in TF32 (published steps of QuartzNet, windows of 33 to 87)."""
WINOGRAD_GAIN: Final = 1.4
"""Speed of 3 × 3 convolutions of stride 1 in fp32 over their multiply-adds (Lavin and Gray, 2016)."""
MIN_CHANNELS: Final = 16
"""Input channels that a tensor-core convolution computes at least."""
DATA_GRADIENT_SHARE: Final = 0.85
WEIGHT_GRADIENT_SHARE: Final = 0.7
"""What the gradients of a convolution reach of its forward."""
FOURIER_GAIN: Final = 1.65
FOURIER_WINDOWS: Final = (5, 32)
"""Speed of convolutions over time in fp32 over their multiply-adds, and the windows that it holds for: libraries have
kernels that multiply Fourier transforms of one dimension. Steps of Jasper on V100 take 0.7 of the time that their
multiply-adds would take at the peak rate."""
CONV3D_SHARE: Final = 0.8
"""What convolutions of volumes in fp32 reach of those of images."""
PLAIN_GRADIENT_GAIN: Final = 1.2
"""Speed of the gradients of 1 × 1 convolutions over those of larger windows: they are plain products."""
CONVERTED: Final = frozenset({"tf32"})
CONVERSION_TRAFFIC: Final = 1.0
"""Dtypes whose tensors frameworks keep channels first although matrix units read them channels last, and the bytes
moved to convert them, in units of a convolution's own: some layers find a kernel that needs no conversion. Sequences
(one dimension) are converted in 16 bits as well: frameworks have no layout with channels last for them."""
HALF_CONVERSION_TRAFFIC: Final = 2.0
"""The same for images in 16 bits that a framework keeps channels first: each tensor is read and written once more.
Steps of ResNet-50 and SSD on twelve GPUs agree with it. Those of a U-Net for volumes show no conversion."""
_IMAGE_DIMS: Final = 4
CONV_TRAFFIC_SHARE: Final = 0.7
"""Share of the achievable bandwidth that convolutions see: windows overlap, layouts change."""
CONV_SHARPNESS: Final = 2.0
"""As :data:`traincast.estimate.operators.roofline.SHARPNESS`, for convolutions: less overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionLaw:
    """What a convolution, or its gradients, amounts to.

    Each of ``products`` has its share of the forward's rate, and b, m, n, k; each moves ``nbytes``. Their rate is
    ``gain`` times that of ``family``. ``converted_bytes`` are moved beside them, to change layouts.
    """

    products: list[tuple[float, ...]]
    family: str
    gain: float
    nbytes: float
    sharpness: float
    converted_bytes: float


def convolution_law(op: Operator, *, graphics: bool, dtype: str = "", loss_share: float = 1.0) -> ConvolutionLaw:
    """Return the law of ``op``, a convolution or its gradients, computed in ``dtype`` (by default its own).

    ``graphics`` is false on what is not a GPU. ``loss_share`` scales what gradients reach less than forward.
    """
    backward, dtype = op.is_gradient, dtype or op.inputs[0].dtype.value
    weight = op.inputs[2 if backward else 1].shape
    products = _conv_products(op, narrow=dtype not in ("fp32", "fp64"), loss_share=loss_share)
    plain = math.prod(weight[2:]) == 1  # a product of matrices, with nothing to gather
    gain = 1.0
    if dtype == "fp32" and tuple(weight[2:]) == (3, 3) and op.attributes.get("stride", 1) == 1:
        gain *= WINOGRAD_GAIN
    if dtype == "fp32" and graphics and _over_time(op, weight):
        gain *= FOURIER_GAIN
    if len(weight) > 4 and dtype == "fp32":
        gain *= CONV3D_SHARE
    if plain and backward and graphics:
        gain *= PLAIN_GRADIENT_GAIN
    sequence = graphics and len(weight) == 3 and not plain and dtype in INTERCHANGEABLE
    return ConvolutionLaw(
        products=products,
        family="gemm" if plain else "conv",
        gain=gain,
        nbytes=op.nbytes / (len(products) * (1.0 if plain else CONV_TRAFFIC_SHARE)),
        sharpness=SHARPNESS if plain else CONV_SHARPNESS,
        converted_bytes=_converted(op, dtype, sequence=sequence) * op.nbytes,
    )


def _converted(op: Operator, dtype: str, *, sequence: bool) -> float:
    """Return the traffic of changes of layout, in units of the bytes of ``op``."""
    if dtype in CONVERTED or sequence:
        return CONVERSION_TRAFFIC
    image = len(op.inputs[0].shape) == _IMAGE_DIMS
    return HALF_CONVERSION_TRAFFIC if image and dtype in INTERCHANGEABLE and "layout" in op.attributes else 0.0


def depthwise_s(op: Operator, device: Device, *, graphics: bool) -> float:
    """Return the seconds in which the instructions of a depthwise convolution, or of its gradients, are issued."""
    peak = device.peak("fp32")
    moving = op.nbytes / (DEPTHWISE_BYTES[op.phase is Phase.BACKWARD] * peak)
    window = op.inputs[2 if op.is_gradient else 1].shape[2:]
    if max(window, default=1) <= UNROLLED_SIDE or not graphics:
        return moving
    return max(moving, op.flops / (WINDOW_FLOP_SHARE * peak))


def _over_time(op: Operator, weight: tuple[int, ...]) -> bool:
    """Whether ``op`` is a convolution of one dimension that Fourier transforms can compute: dense, of stride 1."""
    return (
        len(weight) == 3
        and FOURIER_WINDOWS[0] <= weight[2] <= FOURIER_WINDOWS[1]
        and op.attributes.get("groups", 1) == 1
        and op.attributes.get("stride", 1) == 1
    )


def _conv_products(op: Operator, *, narrow: bool, loss_share: float) -> list[tuple[float, ...]]:
    """The GEMMs that a convolution amounts to: share of the forward's rate, b, m, n, k.

    Implicit GEMM (Chetlur et al., "cuDNN", 2014): forward multiplies [batch · positions, channels · window]
    by the weight, once per group of channels; both gradients are products of the same three sizes.
    """
    backward = op.is_gradient
    data, weight = (op.inputs[1 if backward else 0].shape, op.inputs[2 if backward else 1].shape)
    result = op.inputs[0].shape if backward else op.outputs[0].shape
    transposed = bool(op.attributes.get("transposed", False))
    groups = max(1, int(op.attributes.get("groups", 1)))
    positions = float(data[0]) * math.prod((data if transposed else result)[2:])
    out_channels, in_channels, window = weight[0] / groups, float(weight[1]), float(math.prod(weight[2:]))
    if narrow:
        in_channels = max(in_channels, MIN_CHANNELS)
    forward = (1.0, groups, positions, out_channels, in_channels * window)
    of_data = (1.0 - (1.0 - DATA_GRADIENT_SHARE) * loss_share, groups, positions, in_channels * window, out_channels)
    of_weight = (
        1.0 - (1.0 - WEIGHT_GRADIENT_SHARE) * loss_share,
        groups,
        out_channels,
        in_channels * window,
        positions,
    )
    if not backward:
        return [of_data if transposed else forward]
    if op.attributes.get("products", 2) == 2:
        return [forward if transposed else of_data, of_weight]
    return [of_weight]
