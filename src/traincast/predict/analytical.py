"""The analytical cost model: a roofline for operators, latency and bandwidth for collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincast.cluster import Cluster
from traincast.graph import Operator, OpKind
from traincast.predict.collectives import collective_seconds, transfer_seconds
from traincast.predict.estimate import SOURCES, Estimates
from traincast.work import Collective, Launch, Transfer, Work

_MATRIX = {OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.GROUPED_GEMM, OpKind.ATTENTION, OpKind.CONV, OpKind.RNN}


@dataclass(frozen=True, slots=True)
class AnalyticalCostModel:
    """Estimates every work from datasheet rates and a few achievable fractions."""

    def estimate(self, works: Sequence[Work], cluster: Cluster) -> Estimates:
        """Seconds, interval and source of every work, in order."""
        seconds = np.array([self._seconds(work, cluster) for work in works], dtype=np.float64)
        source = np.full(len(works), SOURCES.index("analytical"), dtype=np.int8)
        return Estimates(seconds=seconds, low=0.7 * seconds, high=1.4 * seconds, source=source)

    def _seconds(self, work: Work, cluster: Cluster) -> float:
        if isinstance(work, Operator):
            device = cluster.device
            fraction = 0.75 if work.kind in _MATRIX else 1.0
            dtype = work.inputs[0].dtype.value if work.kind in _MATRIX and work.inputs else "fp32"
            compute = work.flops / (fraction * device.peak(dtype))
            return max(compute, work.nbytes / (0.8 * device.memory_bandwidth)) + 3e-6
        if isinstance(work, Collective):
            return collective_seconds(work, cluster)
        if isinstance(work, Transfer):
            return transfer_seconds(work, cluster)
        assert isinstance(work, Launch)
        return work.kernels * cluster.launch_s
