"""The time of a step from a stated rate: tokens per second, or FLOP/s by the convention of publishers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from traincast.graph import OperatorGraph, OpKind
from traincast.graph.work_amount import attention_fraction, model_flops
from traincast.strategy import Request
from traincast.tables import Row, figure, text

_MASKED: Final = re.compile(r"(?<!before )\bcausal\b", re.IGNORECASE)
_TERA: Final = 1e12


def seconds_of_rate(row: Row, request: Request, assumed: list[str]) -> float | None:
    """Return the seconds of one step from ``tokens_per_s_per_gpu`` or ``tflops_per_gpu``; ``None`` without either.

    Publishers count model FLOPs: forward and backward of all products, without recomputation. Most of them count the
    whole score matrix of attention even if half of it is masked. A row whose notes say ``causal`` counts only the rest.
    """
    rate, tokens = figure(row, "tokens_per_s_per_gpu"), request.global_batch * request.graph.tokens_per_sample
    if rate and rate > 0 and tokens:
        return tokens / (rate * request.cluster.num_devices)
    speed = figure(row, "tflops_per_gpu")
    if not speed or speed <= 0:
        return None
    masked = _MASKED.search(text(row, "notes")) is not None
    how = "scores that the mask leaves" if masked else "the whole score matrix"
    assumed.append(f"step time not stated: from tflops_per_gpu, which counts {how}")
    flops = flops_per_sample(request.graph, masked=masked) * request.global_batch
    return flops / (speed * _TERA * request.cluster.num_devices)


@lru_cache(maxsize=256)
def flops_per_sample(graph: OperatorGraph, *, masked: bool) -> float:
    """Return the model FLOPs of one sample; with ``masked``, attention counts only scores that its mask leaves."""
    return sum(
        model_flops(op) * count / (attention_fraction(op) if op.kind is OpKind.ATTENTION and not masked else 1.0)
        for op, count in graph
    )
