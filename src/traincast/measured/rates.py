"""The time of a step from a stated rate: tokens per second, or FLOP/s by the convention of publishers."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from traincast.graph import OperatorGraph, OpKind
from traincast.graph.work_amount import attention_fraction, model_flops
from traincast.measured.dialect import vocabulary
from traincast.measured.recipes import speech_of
from traincast.measured.spellings import Spellings
from traincast.strategy import Request
from traincast.tables import Row, RowError, figure

_MOST_OF_PEAK: Final = 3.0
"""Multiple of the peak rate that no step reaches, not even with Winograd's or Fourier's convolutions."""


def as_samples(request: Request, seconds: float, assumed: list[str]) -> float:
    """Return the seconds of a step whose rate may count frames instead of samples; ``assumed`` says if it does.

    A rate counts something else than samples if its products would need far more than the peak rate. If the model's
    samples are not made of frames, the row is refused.
    """
    per_sample = sum(model_flops(op) * count for op, count in request.graph)
    rate = per_sample * request.global_batch / request.cluster.num_devices / seconds
    device = request.cluster.device
    peak = max(device.peak_flops.values())
    if rate <= _MOST_OF_PEAK * peak:
        return seconds
    speech = speech_of(request.graph.name.partition(":")[0])
    if speech is not None and rate <= _MOST_OF_PEAK * peak * speech.mean_frames:
        assumed.append(f"the rate counts mel frames: {speech.mean_frames:g} per sample, as {speech.dataset} has")
        return seconds * speech.mean_frames
    raise RowError(
        f"a step of {seconds:.3g} s would need {rate / peak:.0f} times the peak rate of {device.name}: "
        "samples may be counted in another unit, such as frames"
    )


_TERA: Final = 1e12
_PERCENT: Final = 100.0


def seconds_of_rate(row: Row, request: Request, assumed: list[str]) -> float | None:
    """Return the seconds of one step from a rate in the row; ``None`` if it has none.

    Rates are ``tokens_per_s_per_gpu``, ``tflops_per_gpu`` and ``mfu_pct``.

    Publishers count model FLOPs: forward and backward of all products, without recomputation. Most of them count the
    whole score matrix of attention even if half of it is masked. A row whose notes say ``causal`` counts only the rest.
    """
    rate, tokens = figure(row, "tokens_per_s_per_gpu"), request.global_batch * request.graph.tokens_per_sample
    if rate and rate > 0 and tokens:
        return tokens / (rate * request.cluster.num_devices)
    speed = figure(row, "tflops_per_gpu") or _speed_of_share(row, request, assumed)
    if not speed or speed <= 0:
        return None
    masked = masked_rates(row)
    how = "scores that the mask leaves" if masked else "the whole score matrix"
    column = "tflops_per_gpu" if figure(row, "tflops_per_gpu") else "mfu_pct"
    assumed.append(f"step time not stated: from {column}, which counts {how}")
    flops = flops_per_sample(request.graph, masked=masked) * request.global_batch
    return flops / (speed * _TERA * request.cluster.num_devices)


def masked_rates(row: Row) -> bool:
    """Return whether the notes of a row say that its rates leave out masked scores of attention."""
    return vocabulary(Spellings).masked_rates(row)


def _speed_of_share(row: Row, request: Request, assumed: list[str]) -> float | None:
    """Return the TFLOP/s of a device from ``mfu_pct``, by custom a share of its dense peak rate in bf16."""
    share = figure(row, "mfu_pct")
    if not share or not 0 < share <= _PERCENT:
        return None
    device = request.cluster.device
    dtype = next((name for name in ("bf16", "fp16", "fp32") if device.supports(name)), "fp32")
    assumed.append(f"peak rate of mfu_pct not stated: {device.peak(dtype) / _TERA:.0f} TFLOP/s in {dtype}")
    return share / _PERCENT * device.peak(dtype) / _TERA


@lru_cache(maxsize=256)
def flops_per_sample(graph: OperatorGraph, *, masked: bool, scores_only: bool = False) -> float:
    """Return the model FLOPs of one sample; with ``masked``, attention counts only scores that its mask leaves.

    With ``scores_only``, only those of attention are counted.
    """
    return sum(
        model_flops(op) * count / (attention_fraction(op) if op.kind is OpKind.ATTENTION and not masked else 1.0)
        for op, count in graph
        if op.kind is OpKind.ATTENTION or not scores_only
    )
