"""Applies a calibration to estimates: assigns each work to a part of the step, and scales the time of each part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.cluster import FACTORS, Calibration, Cluster
from traincast.estimate.collectives.laws import crosses_nics
from traincast.estimate.protocol import Estimates
from traincast.graph import Operator, OpKind
from traincast.work import Collective, Launch, Transfer, Work

Floats = npt.NDArray[np.float64]

_NARROW: Final = frozenset({"fp8", "nvfp4"})
_PART_OF_KIND: Final = {
    OpKind.GEMM: "gemm",
    OpKind.BATCHED_GEMM: "attention",  # the scores of attention that is not fused
    OpKind.RNN: "gemm",
    OpKind.GROUPED_GEMM: "grouped",
    OpKind.ATTENTION: "attention",
    OpKind.CONV: "conv",
    OpKind.DEPTHWISE_CONV: "conv",
}
_HOST: Final = ("kernels", "blocks", "collectives", "handshakes", "waits")
_NINETY: Final = 2.0 * 1.645
"""The width of a 90 % interval, in standard deviations."""
_NONE: Final = len(FACTORS)
"""The number of the part that no factor scales."""


class Parts:
    """The parts that works on a cluster belong to; built once, used with many calibrations."""

    def __init__(self, works: Sequence[Work], cluster: Cluster) -> None:
        self._part = np.array([_part(work, cluster) for work in works], dtype=np.intp)
        hops = [_hops(work, cluster) for work in works]
        self._hops = np.array(hops, dtype=np.float64).reshape(-1, 2)
        launches = [(i, work) for i, work in enumerate(works) if isinstance(work, Launch)]
        self._launch = np.array([i for i, _ in launches], dtype=np.intp)
        counts = [(w.kernels + w.prepared, w.blocks, w.collectives, w.sends, w.waits) for _, w in launches]
        self._counts = np.array(counts, dtype=np.float64).reshape(-1, len(_HOST))
        self._crowded = np.array([work.crowded for _, work in launches], dtype=bool)
        self._all = np.maximum(self._usual_counts().sum(axis=1), 1e-12)

    def scaled(self, seconds: Floats, calibration: Calibration, *, stalled: bool = False) -> Floats:
        """Returns the calibrated ``seconds`` of the works, in their order; with ``stalled``, those in the slow mode."""
        factors = np.array([*(getattr(calibration, name) for name in FACTORS), 1.0])
        latency = np.array([calibration.intra_latency_s, calibration.inter_latency_s])
        result: Floats = seconds * factors[self._part] + self._hops @ latency
        if len(self._launch):
            counts = self._counts if stalled else self._usual_counts()
            scaled = counts @ np.array([getattr(calibration, name) for name in _HOST])
            result[self._launch] = seconds[self._launch] * scaled / self._all
        return result

    def _usual_counts(self) -> Floats:
        """Launches by kind. Waits count only where several hosts wait for one another."""
        counts = self._counts.copy()
        counts[~self._crowded, -1] = 0.0
        return counts

    def seconds_by_part(self, seconds: Floats, counts: npt.NDArray[np.int64]) -> dict[str, float]:
        """Total seconds of each part, if work ``i`` runs ``counts[i]`` times."""
        spent = seconds * counts
        spent[self._launch] = 0.0  # those of the host are told apart below
        totals = np.bincount(self._part, weights=spent, minlength=_NONE + 1)
        result = {name: float(total) for name, total in zip((*FACTORS, "other"), totals, strict=True)}
        if len(self._launch):
            shares = self._usual_counts() / self._all[:, None]
            for name, total in zip(_HOST, (seconds * counts)[self._launch] @ shares, strict=True):
                result[name] = float(total)
        return result

    def unmeasured_spreads(self, estimates: Estimates, counts: npt.NDArray[np.int64]) -> dict[str, float]:
        """The standard deviation of the logarithm of each part's time, due to works not measured on this device.

        Work ``i`` runs ``counts[i]`` times. Errors of these works add up in one direction, each as large as its 90 %
        interval says, weighted by its seconds.
        """
        spent = estimates.seconds * counts
        ends = np.stack([estimates.low, estimates.high], axis=1)
        known = estimates.unmeasured if estimates.unmeasured is not None else np.zeros(len(spent), dtype=bool)
        known = known & (ends > 0.0).all(axis=1)
        width = np.where(known, np.log(np.where(known[:, None], ends, 1.0)) @ np.array([-1.0, 1.0]), 0.0) / _NINETY
        total = np.bincount(self._part, weights=spent, minlength=_NONE + 1)
        wide = np.bincount(self._part, weights=spent * width, minlength=_NONE + 1)
        return {name: float(wide[n] / total[n]) for n, name in enumerate(FACTORS) if total[n] > 0.0}


def calibrated(estimates: Estimates, works: Sequence[Work], cluster: Cluster) -> Estimates:
    """Returns ``estimates`` of ``works`` with the calibration of ``cluster`` applied, if it has one."""
    calibration = cluster.calibration
    if calibration is None:
        return estimates
    parts = Parts(works, cluster)
    seconds = parts.scaled(estimates.seconds, calibration)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(estimates.seconds > 0.0, seconds / estimates.seconds, 1.0)
    stalled = parts.scaled(estimates.seconds, calibration, stalled=True) if calibration.stall else None
    return replace(
        estimates,
        seconds=seconds,
        low=estimates.low * ratio,
        high=estimates.high * ratio,
        uncalibrated=estimates.seconds,
        stalled=stalled,
    )


def _part(work: Work, cluster: Cluster) -> int:
    name = ""
    if isinstance(work, Operator):
        name = _PART_OF_KIND.get(work.kind, "memory")
        if name == "gemm" and work.inputs[0].dtype.value in _NARROW:
            name = "narrow_gemm"
        if name == "conv" and work.inputs[0].dtype.nbytes == 2:
            name = "half_conv"
    elif isinstance(work, Collective):
        name = "inter" if crosses_nics(work.num_nodes, cluster) else "intra"
    elif isinstance(work, Transfer):
        name = "send"
    return FACTORS.index(name) if name else _NONE


def _hops(work: Work, cluster: Cluster) -> tuple[float, float]:
    """Hops of a collective's messages within and between nodes: once around a ring, or up and down a tree."""
    if not isinstance(work, Collective):
        return 0.0, 0.0
    tree = work.kind in ("all_reduce", "broadcast")
    hops = 2.0 * math.log2(work.num_ranks) if tree else work.num_ranks - 1.0
    return (0.0, hops) if crosses_nics(work.num_nodes, cluster) else (hops, 0.0)
