"""Fractions of datasheet rates that kernels reach, per architecture, and how sure we are of them.

Fitted on published operator measurements; ``benchmarks/operators.py`` shows what is left. A device's own
``achievable`` mapping wins, by these names:

- ``gemm``: what a large GEMM reaches of its dtype's peak; ``gemm_fp32``, ``gemm_fp8``, …: of that dtype's
- ``conv``, ``conv_fp32``, …: the same for convolutions
- ``attention``, ``attention_backward``: fused attention with head dim 128 and long sequences
- ``attention_extra_dims``: cost of a score's exponential, in head dims (not a fraction)
- ``memory``: device memory, large tensors
- ``intra_link``, ``inter_link``: see :mod:`traincast.estimate.collectives.laws`
- ``kernel_floor_s``: seconds of the shortest kernel (not a fraction)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from traincast.cluster import Device
from traincast.graph import OpKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Achievable:
    """What an architecture reaches of its peaks; ``gemm`` and ``conv`` by dtype, with "" for all others.

    ``extra_dims`` is the cost of a score's exponential, in head dims. ``measured`` says whether the
    fractions come from measurements of the architecture itself. ``graphics`` is false for an architecture that is not
    a GPU: operators measured on GPUs say nothing about it.
    """

    gemm: Mapping[str, float] = field(hash=False)
    conv: Mapping[str, float] = field(hash=False)
    attention: float
    attention_backward: float
    extra_dims: float
    memory: float
    floor_s: float
    measured: bool = True
    graphics: bool = True

    def gemm_fraction(self, dtype: str) -> float:
        """Fraction of the peak in ``dtype`` that a large GEMM reaches."""
        return self.gemm.get(dtype, self.gemm[""])

    def conv_fraction(self, dtype: str) -> float:
        """Fraction of the peak in ``dtype`` that a large convolution reaches."""
        return self.conv.get(dtype, self.conv[""])


def _of(
    gemm: Mapping[str, float],
    conv: Mapping[str, float],
    *,
    attention: tuple[float, float, float],
    memory: float,
    floor_us: float,
    measured: bool = True,
    graphics: bool = True,
) -> Achievable:
    forward, backward, extra_dims = attention
    return Achievable(
        gemm=gemm,
        conv=conv,
        attention=forward,
        attention_backward=backward,
        extra_dims=extra_dims,
        memory=memory,
        floor_s=floor_us * 1e-6,
        measured=measured,
        graphics=graphics,
    )


DEFAULT: Final = _of(
    {"": 0.7, "fp32": 0.85},
    {"": 0.5, "fp32": 0.8},
    attention=(0.5, 0.4, 40.0),
    memory=0.82,
    floor_us=4.0,
    measured=False,
)
"""For an architecture that nobody has measured."""

_CDNA: Final = _of(
    {"": 0.6, "fp32": 0.70}, {"": 0.4}, attention=(0.4, 0.3, 40.0), memory=0.85, floor_us=4.0, measured=False
)

OLDER_ATTENTION: Final = {
    "flash-1": {"ampere": 0.55, "ada": 0.55, "hopper": 0.5, "blackwell": 0.5, "blackwell-ultra": 0.5},
    "flash-2": {"hopper": 0.5, "blackwell": 0.5, "blackwell-ultra": 0.5},
    "cudnn-8": {"hopper": 0.7, "blackwell": 0.7, "blackwell-ultra": 0.7},
}
"""What older kernels reach of the attention kernels made for a later architecture, by their name.

FlashAttention 2 is made for Ampere, cuDNN 8 for early Hopper. Before it, FlashAttention 1 and its kernels in Triton
ran; Dao ("FlashAttention-2", 2023) reports that its successor is 1.3 to 3 times as fast on A100. On Hopper, releases
that had them ran FlashAttention 2 already. On H100, Shah et al. ("FlashAttention-3", 2024) report 350 to 400 TFLOP/s of
FlashAttention 2 and about 500 of cuDNN, where FlashAttention 3 reaches 640 to 740.
"""

ARCHITECTURES: Final[dict[str, Achievable]] = {
    "kepler": _of({"": 0.65}, {"": 0.30}, attention=(0.3, 0.25, 40.0), memory=0.72, floor_us=8.0),
    "maxwell": _of({"": 0.75}, {"": 0.65}, attention=(0.3, 0.25, 40.0), memory=0.75, floor_us=6.0),
    "pascal": _of(
        {"": 0.90, "fp16": 0.5}, {"": 0.95, "fp16": 0.55}, attention=(0.3, 0.25, 40.0), memory=0.78, floor_us=5.0
    ),
    "volta": _of(
        {"": 0.84, "fp32": 0.93}, {"": 0.9, "fp32": 1.0}, attention=(0.45, 0.35, 40.0), memory=0.87, floor_us=4.5
    ),
    "turing": _of(
        {"": 0.72, "fp32": 0.75}, {"": 0.6, "fp32": 0.8}, attention=(0.4, 0.3, 40.0), memory=0.84, floor_us=4.5
    ),
    "ampere": _of(
        {"": 0.80, "fp32": 0.90},
        {"": 0.72, "tf32": 0.66, "fp32": 0.9},
        attention=(0.62, 0.50, 40.0),
        memory=0.85,
        floor_us=3.6,
    ),
    "ada": _of(
        {"": 0.67, "fp8": 0.62, "fp32": 0.6},
        {"": 0.5, "fp32": 0.6},
        attention=(0.57, 0.45, 40.0),
        memory=0.86,
        floor_us=1.5,
    ),
    "hopper": _of(
        {"": 0.83, "fp8": 0.69, "fp32": 0.75},
        {"": 0.5, "fp32": 0.75},
        attention=(0.58, 0.48, 80.0),
        memory=0.92,
        floor_us=2.5,
    ),
    "blackwell": _of(
        {"": 0.71, "fp8": 0.53, "nvfp4": 0.46, "fp32": 0.75},
        {"": 0.45, "fp32": 0.75},
        attention=(0.48, 0.37, 150.0),
        memory=0.88,
        floor_us=2.1,
    ),
    "blackwell-ultra": _of(
        {"": 0.80, "fp8": 0.63, "nvfp4": 0.35, "fp32": 0.75},
        {"": 0.45, "fp32": 0.75},
        attention=(0.60, 0.46, 150.0),
        memory=0.88,
        floor_us=2.1,
    ),
    "cdna1": _of({"": 0.6, "fp32": 0.67}, {"": 0.4}, attention=(0.4, 0.3, 40.0), memory=0.85, floor_us=4.0),
    "cdna2": _of({"": 0.6, "fp32": 0.66}, {"": 0.4}, attention=(0.4, 0.3, 40.0), memory=0.85, floor_us=4.0),
    "cdna3": _CDNA,
    "cdna4": _CDNA,
    "gcn5": _of({"": 0.70}, {"": 0.85}, attention=(0.3, 0.2, 40.0), memory=0.7, floor_us=12.0),
    "xe2": _of({"": 0.97}, {"": 0.6}, attention=(0.54, 0.4, 0.0), memory=1.0, floor_us=28.0),
    # Set to published steps, not to operators: MaxText on TPU v4 to v6e, Neuron on Trainium, Habana on Gaudi 1 and 2.
    "tpu": _of({"": 0.80}, {"": 0.55}, attention=(0.5, 0.45, 40.0), memory=0.85, floor_us=1.0, graphics=False),
    "neuron": _of({"": 0.70}, {"": 0.3}, attention=(0.35, 0.3, 40.0), memory=0.7, floor_us=15.0, graphics=False),
    "gaudi": _of({"": 0.85}, {"": 0.4}, attention=(0.3, 0.25, 40.0), memory=0.95, floor_us=3.0, graphics=False),
}

DEVICES: Final[dict[str, Mapping[str, float]]] = {
    "t4": {"gemm": 0.64, "gemm_fp32": 0.52, "conv_fp32": 0.6},
    "l4": {"gemm": 0.45, "gemm_fp32": 0.32, "memory": 0.79},
    "p4": {"gemm": 0.50, "conv": 0.75},
    "rtx-pro-6000": {
        "gemm": 0.85,
        "gemm_fp8": 0.80,
        "gemm_nvfp4": 0.80,
        "attention": 0.55,
        "attention_backward": 0.44,
        "attention_extra_dims": 5.0,
        "memory": 0.98,
    },
}
"""Measured devices that differ from their architecture: cards short of power, and Blackwell without HBM."""


def achievable(device: Device) -> Achievable:
    """What ``device`` reaches: its own measured fractions, else ours of it, else its architecture's."""
    base = ARCHITECTURES.get(device.architecture, DEFAULT)
    own = {**DEVICES.get(device.name, {}), **device.achievable}
    if not own:
        return base
    return Achievable(
        gemm=_by_dtype(base.gemm, own, "gemm"),
        conv=_by_dtype(base.conv, own, "conv"),
        attention=own.get("attention", base.attention),
        attention_backward=own.get("attention_backward", base.attention_backward),
        extra_dims=own.get("attention_extra_dims", base.extra_dims),
        memory=own.get("memory", base.memory),
        floor_s=own.get("kernel_floor_s", base.floor_s),
        measured=base.measured or "gemm" in own,
        graphics=base.graphics,
    )


def _by_dtype(base: Mapping[str, float], own: Mapping[str, float], name: str) -> dict[str, float]:
    fractions = dict.fromkeys(base, own[name]) if name in own else dict(base)
    prefix = f"{name}_"
    return fractions | {key.removeprefix(prefix): v for key, v in own.items() if key.startswith(prefix)}


MEMORY_SHARE: Final[dict[tuple[OpKind, bool], float]] = {
    (OpKind.BATCH_NORM, False): 0.60,
    (OpKind.BATCH_NORM, True): 0.60,
    (OpKind.LAYER_NORM, False): 0.65,
    (OpKind.LAYER_NORM, True): 0.42,
    (OpKind.SOFTMAX, False): 0.80,
    (OpKind.SOFTMAX, True): 0.65,
    (OpKind.LOSS, False): 0.50,
    (OpKind.LOSS, True): 0.70,
    (OpKind.ACTIVATION, False): 0.95,
    (OpKind.ACTIVATION, True): 0.95,
    (OpKind.DROPOUT, False): 0.85,
    (OpKind.DROPOUT, True): 0.95,
    (OpKind.POOL, False): 0.60,
    (OpKind.POOL, True): 0.45,
    (OpKind.REDUCTION, False): 0.80,
    (OpKind.EMBEDDING, False): 0.50,
    (OpKind.EMBEDDING, True): 0.25,
    (OpKind.GATHER, False): 0.40,
    (OpKind.GATHER, True): 0.30,
    (OpKind.COPY, False): 0.75,
    (OpKind.COPY, True): 0.75,
    (OpKind.RESIZE, False): 0.50,
    (OpKind.RESIZE, True): 0.35,
}
"""Share of the achievable bandwidth per kind and whether it is a backward; 1 where absent.

Kernels that read their input twice (norms, softmax of long rows), scatter (embedding and gather) or have
little parallelism stay below a plain element-wise one.
"""

INTERVALS: Final[dict[str, tuple[float, float]]] = {
    "gemm": (0.80, 1.35),
    "narrow_gemm": (0.80, 1.50),
    "grouped_gemm": (0.55, 3.50),
    "attention": (0.65, 1.90),
    "conv": (0.60, 2.20),
    "rnn": (0.50, 2.00),
    "scan": (0.50, 2.00),
    "memory": (0.70, 1.50),
    "launch": (0.70, 1.40),
    "intra": (0.75, 1.40),
    "inter": (0.70, 2.50),
}
"""Measured over predicted time, 5th and 95th percentile over the rows of the fits, per family."""

UNMEASURED_WIDENING: Final = 2.0
"""Power of those factors on an architecture without measurements."""
