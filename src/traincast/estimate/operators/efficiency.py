"""Fractions of datasheet rates that kernels reach, and how sure we are of them.

Files of architectures have them (``reaches``), fitted on published operator measurements; ``benchmarks/operators.py``
shows what is left. A device that differs from its architecture has ``reaches`` of its own, and what was measured on the
device at hand (``achievable``) takes precedence over both. The names of fractions are:

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
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from traincast.cluster import Device
from traincast.cluster.architecture import load_architecture
from traincast.graph import OpKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Achievable:
    """What a device reaches of its peaks; ``gemm`` and ``conv`` by dtype, with "" for all others.

    ``extra_dims`` is the cost of a score's exponential, in head dims. ``measured`` says whether the
    fractions come from measurements of the architecture or of the device itself. ``graphics`` is false for an
    architecture that is not a GPU: operators measured on GPUs say nothing about it. ``loss_share`` is the part of a
    peak that products do not reach, over that part on the devices that were measured (:func:`_fed`).
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
    loss_share: float = 1.0

    def gemm_fraction(self, dtype: str) -> float:
        """Fraction of the peak in ``dtype`` that a large GEMM reaches."""
        return self.gemm.get(dtype, self.gemm[""])

    def conv_fraction(self, dtype: str) -> float:
        """Fraction of the peak in ``dtype`` that a large convolution reaches."""
        return self.conv.get(dtype, self.conv[""])


LEAST_MATRIX_FLOPS: Final = 1024.0
"""FLOP of 16 bits per SM and cycle of the slowest matrix units on which operators were measured: those of V100, T4 and
L4."""
_ALIKE: Final = 0.9
"""Share of a rate from which two devices count as alike: datasheets round, and clocks differ."""
_PLAIN: Final = frozenset({"fp32", "fp64"})
"""Dtypes that matrix units do not compute."""


@cache
def _of_architecture(name: str) -> Achievable:
    found = load_architecture(name)
    reaches = found.reaches
    return Achievable(
        gemm=_by_dtype({"": reaches["gemm"]}, reaches, "gemm"),
        conv=_by_dtype({"": reaches["conv"]}, reaches, "conv"),
        attention=reaches["attention"],
        attention_backward=reaches["attention_backward"],
        extra_dims=reaches["attention_extra_dims"],
        memory=reaches["memory"],
        floor_s=reaches["kernel_floor_s"],
        measured=found.measured,
        graphics=found.graphics,
    )


def achievable(device: Device) -> Achievable:
    """What ``device`` reaches: what was measured on it, else what its kind of device reaches, else its architecture."""
    base = _fed(_of_architecture(device.architecture), device)
    own = {**device.reaches, **device.achievable}
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
        loss_share=base.loss_share,
    )


def _matrix_flops(device: Device) -> float:
    """FLOP of 16 bits per SM and cycle."""
    return device.peak("fp16") / (device.num_sms * device.clock_hz)


def resembles_measured(device: Device, dtype: str) -> bool:
    """Whether devices with matrix units as fast as those of ``device`` were measured in ``dtype``.

    Consumer cards compute half as much per SM and cycle as any card of a server, and reach nearly all of it.
    """
    if dtype in _PLAIN or not load_architecture(device.architecture).matrix_flops or not device.supports("fp16"):
        return True
    return _matrix_flops(device) >= _ALIKE * LEAST_MATRIX_FLOPS


def _fed(base: Achievable, device: Device) -> Achievable:
    """``base`` for a device whose matrix units compute less per SM and cycle than those that were measured.

    Registers and shared memory feed all devices of an architecture alike, so what a product does not reach shrinks with
    the rate that they have to feed: f = 1 - (1 - f₀) · r / r₀. Consumer cards have half or a quarter of the rate.
    """
    measured = load_architecture(device.architecture).matrix_flops
    if not measured or not device.supports("fp16"):
        return base
    share = _matrix_flops(device) / measured
    if share >= _ALIKE:
        return base

    def fed(fractions: Mapping[str, float]) -> dict[str, float]:
        return {dtype: f if dtype in _PLAIN else 1.0 - (1.0 - f) * share for dtype, f in fractions.items()}

    return replace(base, gemm=fed(base.gemm), conv=fed(base.conv), loss_share=share)


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
    "prepared": (0.60, 2.50),
    "intra": (0.75, 1.40),
    "inter": (0.70, 2.50),
}
"""Measured over predicted time, 5th and 95th percentile over the rows of the fits, per family."""

UNMEASURED_WIDENING: Final = 2.0
"""Power of those factors on an architecture without measurements."""
