"""40 % MFU: the rule of thumb that needs nothing installed."""

from __future__ import annotations

from typing import Final

from traincast.measured.rates import flops_per_sample
from traincast.strategy import Request

SHARE: Final = 0.4


class Naive:
    """Model FLOPs of a step over 40 % of the datasheet's rate of all devices."""

    name = "40 % MFU"
    version = ""

    def seconds(self, request: Request) -> float:
        """Return FLOPs / (0.4 · devices · peak rate of linear layers)."""
        flops = flops_per_sample(request.graph, masked=False) * request.global_batch
        peak = request.cluster.device.peak(request.precision.linear.value)
        return flops / (SHARE * request.strategy.num_ranks * peak)
