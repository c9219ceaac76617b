"""Power: products that would draw more than a device may are slowed, because its clock falls.

A busy device draws a share s of its TDP whatever its matrix units do, and

    W · u · c^α

watts for products that fill a share u of the peak rate of their dtype at full clock, at a share c of that clock. W is
what a product at the peak rate would draw: the architecture's energy per FLOP in 16 bits times the peak rate of the
device. Products in narrower dtypes are as costly as those in 16 bits that keep the matrix units as busy. A limit of L
watts is kept where W · u · c^α ≤ L − s · TDP, so a product takes

    1 / c = max(1, W · u / (L − s · TDP))^(1/α)

times as long. Choi et al. ("A roofline model of energy", 2013) have the same two parts of power; the exponent of the
clock, between 1 and 3, says how far the voltage falls with it. Products outside matrix units (fp32, fp64) and all other
works stay as they are: they draw less.

Times that were measured on the user's own machine were measured under its limit, and stay as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster, Device
from traincast.cluster.architecture import load_architecture
from traincast.estimate.protocol import SOURCES, CostModel, Estimates
from traincast.graph import Operator
from traincast.graph.vocabulary import PRODUCTS
from traincast.work import Work

Floats = npt.NDArray[np.float64]

_NARROW: Final = ("fp16", "bf16", "fp8", "nvfp4")
"""Dtypes whose products fill the matrix units."""
_UNKNOWN_SHARE: Final = 0.9
"""Share of the peak rate at which products draw the TDP, if nothing is known: what libraries reach at best."""
_LEAST_SHARE: Final = 0.05
"""Share of the TDP that is left to products under the lowest limits: drivers set none that stops a device."""
_OWN: Final = tuple(SOURCES.index(name) for name in ("measured", "carried"))


def estimated(model: CostModel, works: Sequence[Work], cluster: Cluster) -> Estimates:
    """Return the estimates of ``works`` by ``model``, slowed where the devices of ``cluster`` may not draw enough."""
    return under_power(model.estimate(works, cluster), works, cluster.device)


def under_power(estimates: Estimates, works: Sequence[Work], device: Device) -> Estimates:
    """Return ``estimates`` of works at full clock with those that the power limit of ``device`` implies."""
    slower = slowdowns(works, estimates.seconds, device)
    if device.achievable:  # fractions of peak rates that were measured on the device at hand
        slower[:] = 1.0
    slower[np.isin(estimates.source, _OWN)] = 1.0
    if estimates.bundle is not None:
        slower[estimates.bundle >= 0] = 1.0
    if not (slower > 1.0).any():
        return estimates
    columns = {name: getattr(estimates, name) * slower for name in ("seconds", "low", "high")}
    return replace(estimates, **columns, slowed=slower)


def slowdowns(works: Sequence[Work], seconds: Floats, device: Device) -> Floats:
    """Return how many times as long each of ``works`` takes as its ``seconds`` at full clock: 1 or more."""
    found = np.ones(len(works))
    peaks = [device.peak_flops[name] for name in ("bf16", "fp16") if name in device.peak_flops]
    rates = {name: device.peak(name) for name in _NARROW if device.computes_in(name) in _NARROW}
    if not peaks or not rates:
        return found
    power = load_architecture(device.architecture).power
    dynamic_w = (1.0 - power.static) * device.tdp_w
    full_w = power.joules_per_tflop * max(peaks) / 1e12 or dynamic_w / _UNKNOWN_SHARE
    left_w = max(device.limit_w - power.static * device.tdp_w, _LEAST_SHARE * device.tdp_w)
    for i, work in enumerate(works):
        if isinstance(work, Operator) and work.kind in PRODUCTS and seconds[i] > 0.0 and work.dtype.value in rates:
            busy = work.flops / (seconds[i] * rates[work.dtype.value])
            found[i] = max(1.0, full_w * busy / left_w) ** (1.0 / power.exponent)
    return found


def mean_slowdown(estimates: Estimates, works: Sequence[Work], counts: npt.NDArray[np.int64]) -> float:
    """Return how many times as long all products together take because of power; 1 if the limit slows none.

    Work ``i`` runs ``counts[i]`` times.
    """
    if estimates.slowed is None:
        return 1.0
    products = np.array([isinstance(work, Operator) and work.kind in PRODUCTS for work in works], dtype=bool)
    spent = np.where(products, estimates.seconds * counts, 0.0)
    full = float((spent / estimates.slowed).sum())
    return float(spent.sum()) / full if full > 0.0 else 1.0
