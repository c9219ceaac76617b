"""Lengths of the batches of a fine-tuning run: what a row states, and a log-normal distribution for the rest.

Lengths of texts are about log-normally distributed. If a row states their mean and standard deviation, these set the
distribution. Otherwise the spread is that of common sets for fine-tuning, and the mean follows from the tokens of a
step, or from the cap. Texts above the cap are left out, as trainers do by default or on request.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from traincast.measured.dialect import Said, vocabulary
from traincast.measured.run import unstated
from traincast.measured.tuning.graph import extra_tokens
from traincast.measured.tuning.words import Tuning
from traincast.tables import Row, figure, whole

_BATCHES: Final = 32
_ORDERS: Final = 4
"""Batches of a simulated run, and how many runs with other orders of lengths are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of texts, as rows say them and as is usual; comments in ``tunings.toml`` explain each entry."""

    usual: int
    spread: float
    high_share: float
    stated: Said
    capped: Said
    packed: Said
    counts_packed: Said
    pads: Said
    padded: float
    short_run: int
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLengths:
    """Log-normally distributed lengths with a mean, in tokens, and a spread; those above ``cap`` are left out."""

    mean: float
    spread: float
    cap: int

    def at(self, share: float) -> float:
        """Return the length that ``share`` of the texts do not exceed."""
        below = self._normal.cdf(math.log(self.cap))
        return math.exp(self._normal.inv_cdf(max(1e-9, share * below)))

    def batches(self, order: int, *, micro_batch: int) -> tuple[float, ...]:
        """Return lengths of consecutive batches, relative to the cap; a batch is as long as its longest text."""
        draw = random.Random(order)  # noqa: S311  (not for secrets)
        return tuple(max(self.at(1.0 - draw.random()) for _ in range(micro_batch)) / self.cap for _ in range(_BATCHES))

    @property
    def _normal(self) -> NormalDist:
        return NormalDist(math.log(self.mean) - self.spread**2 / 2, self.spread)


def varied(row: Row) -> bool:
    """Return whether batches have different lengths: the sequence length is a cap, and sequences are not packed."""
    words = vocabulary(Lengths)
    return not words.packed(row) and (bool(figure(row, "avg_tokens_per_step")) or words.capped(row))


def lengths_of(row: Row) -> TextLengths:
    """Return the distribution of the lengths of texts of a row whose batches vary."""
    cap, usual = whole(row, "seq"), vocabulary(Lengths)
    found = usual.stated.find(row)
    if found is not None:
        mean, deviation = float(found[1]), float(found[2])
        return TextLengths(mean=mean, spread=math.sqrt(math.log1p((deviation / mean) ** 2)), cap=cap)
    tokens = figure(row, "avg_tokens_per_step")
    widest = NormalDist().inv_cdf(usual.high_share) * usual.spread - usual.spread**2 / 2
    each = tokens / _samples(row) if tokens else cap / math.exp(widest)
    return TextLengths(mean=min(each, cap), spread=usual.spread, cap=cap)


def batches_of(row: Row, *, high: bool, assumed: list[str]) -> tuple[tuple[float, ...], ...]:
    """Return the batches of simulated runs, as lengths relative to the one whose memory is forecast.

    One batch if the cache was emptied between steps (``high``), two if all are equally long.
    """
    if high:
        return ((1.0,),)
    if not varied(row):
        return ((1.0, 1.0),)
    found = lengths_of(row)
    assumed.append(f"lengths of texts: log-normal, mean {found.mean:.0f}, spread {found.spread:.2f}, up to {found.cap}")
    return tuple(found.batches(order, micro_batch=whole(row, "micro_batch")) for order in range(_ORDERS))


def batch_lengths(row: Row, tuning: Tuning, *, padded: float, timed: bool, assumed: list[str]) -> tuple[int, int]:
    """Return the length of a sequence that sets the time of a step, and that of a high percentile of batches.

    ``padded`` is the number of tokens computed per token counted, if a row does not count padding.
    """
    cap, more, words = whole(row, "seq"), extra_tokens(row, tuning), vocabulary(Lengths)
    tokens = figure(row, "avg_tokens_per_step")
    if not tokens:
        if varied(row) and timed:
            assumed.append(unstated("tokens of a step", f"{cap} per sequence"))
        return cap + more, cap + more
    each = tokens / _samples(row)
    if words.counts_packed(row):
        return round(each) + more, cap + more
    high = round(lengths_of(row).at(words.high_share))
    if words.pads(row):
        each *= padded
        assumed.append(f"padded tokens not stated: {padded:g} times the counted ones")
    return max(1, min(cap, round(each))) + more, min(cap, high) + more


def _samples(row: Row) -> float:
    return figure(row, "global_batch") or whole(row, "micro_batch") * (figure(row, "grad_accum") or 1.0)
