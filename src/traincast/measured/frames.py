"""Speech that is made frame by frame: rates that count frames, and the lengths that batches are padded to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from traincast.graph.work_amount import model_flops
from traincast.strategy import Request
from traincast.tables import RowError

_MOST_OF_PEAK: Final = 3.0
"""Multiple of the peak rate that no step reaches, not even with Winograd's or Fourier's convolutions."""


class Speech(NamedTuple):
    """The dataset that public scripts train a family on.

    ``mean_frames`` is the mean length of its samples. ``symbols`` and ``frames`` are the lengths of the longest text
    and of the longest sound in a batch of some dozens, to which the whole batch is padded.
    """

    dataset: str
    mean_frames: float
    symbols: int
    frames: int


SPEECH: Final[Mapping[str, Speech]] = {
    "tacotron2": Speech(dataset="LJSpeech", mean_frames=566.0, symbols=170, frames=860),
}
"""Families whose scripts report mel frames per second, without those of padding.

LJSpeech has 13,100 sounds of 6.57 s on average and of 10.1 s at most, with 100 symbols of text on average and 187 at
most (Ito and Johnson 2017); a frame is 256 samples of sound at 22,050 Hz.
"""


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
    speech = SPEECH.get(request.graph.name.partition(":")[0])
    if speech is not None and rate <= _MOST_OF_PEAK * peak * speech.mean_frames:
        assumed.append(f"the rate counts mel frames: {speech.mean_frames:g} per sample, as {speech.dataset} has")
        return seconds * speech.mean_frames
    raise RowError(
        f"a step of {seconds:.3g} s would need {rate / peak:.0f} times the peak rate of {device.name}: "
        "samples may be counted in another unit, such as frames"
    )
