"""Measured curves of one collective, and the laws that extend them to other numbers of ranks and bytes.

Between two measured numbers of ranks, log time is linear in log ranks. Beyond the largest one, across nodes, two laws
apply. In a *ring* of n ranks, every rank takes n − 1 steps of S/n bytes, so t(S, n) / (n − 1) depends on S/n alone. A
*tree* takes the same time longer for every doubling of the ranks. All-reduce is a tree below a number of bytes per rank
and a ring above it (NCCL weighs the ring's n − 1 latencies against the tree's traffic); all other collectives are rings
or pairwise exchanges. Beyond the measured sizes, time grows as the analytical baseline does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.cluster import Cluster
from traincast.estimate.collectives.features import Message, baseline_seconds
from traincast.work import Transfer

Floats: TypeAlias = npt.NDArray[np.float64]

RING_BYTES_PER_RANK: Final = float(2**20)
"""Bytes per rank from which an all-reduce is a ring, if the measured curves do not show it."""
RING_KINDS: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_PER_OCTAVE_OF_BYTES: Final = 0.03
_PER_DOUBLING_OF_RANKS: Final = 0.15
"""Each is added to both ends of an interval, as a logarithm, per octave or doubling beyond what was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Log seconds at knots over log₂ bytes, for a number of ranks on a number of islands."""

    ranks: int
    islands: int
    log2_bytes: Floats
    log_seconds: Floats

    def at(self, log2_bytes: Floats) -> Floats:
        """Log seconds, linear between the knots, constant outside them."""
        return np.interp(log2_bytes, self.log2_bytes, self.log_seconds)


class CurveEstimate(NamedTuple):
    """Seconds, how much wider their intervals become (as a logarithm), and a warning or an empty text."""

    seconds: Floats
    away: Floats
    warning: str


@dataclass(frozen=True, kw_only=True)
class CurveFamily:
    """The curves of one route, collective and software, sorted by number of ranks.

    ``groups`` is the number of groups that ran the collective at once while it was measured.
    """

    kind: str
    curves: tuple[Curve, ...]
    sound: bool
    groups: int = 1

    def has(self, ranks: int) -> bool:
        """Whether this number of ranks was measured."""
        return any(curve.ranks == ranks for curve in self.curves)

    def estimate(
        self, works: Sequence[Message], cluster: Cluster, *, measured_on: Cluster, ranks: int, islands: int
    ) -> CurveEstimate:
        """Seconds of works that differ only in bytes and sharing; ``measured_on`` has the links that were measured."""
        size = np.log2([work.nbytes for work in works])
        near = self._nearest(ranks)
        first = max(curve.log2_bytes[0] for curve in near)
        last = min(curve.log2_bytes[-1] for curve in near)
        inside = np.clip(size, first, max(first, last))
        asked = baseline_seconds(works, cluster)
        alone = [
            replace(work, nbytes=float(2.0**x), sharing=self.groups) for work, x in zip(works, inside, strict=True)
        ]
        known = baseline_seconds(alone, measured_on)
        log_seconds = self._at(alone, measured_on, inside, ranks=ranks, islands=islands, baseline=known)
        seconds = np.exp(log_seconds) * asked / known
        beyond = max(0.0, math.log2(ranks / self.curves[-1].ranks))
        away = _PER_OCTAVE_OF_BYTES * np.abs(size - inside) + _PER_DOUBLING_OF_RANKS * beyond
        warning = ""
        if beyond:
            warning = f"at most {self.curves[-1].ranks} ranks were measured; the time with {ranks} is extrapolated"
        elif (np.abs(size - inside) > 1).any():
            warning = f"2^{first:.0f} to 2^{last:.0f} bytes were measured; the times of other sizes are extrapolated"
        return CurveEstimate(seconds, away, warning)

    def _nearest(self, ranks: int) -> tuple[Curve, ...]:
        """The curve of this number of ranks, or those next to it."""
        same = tuple(curve for curve in self.curves if curve.ranks == ranks)
        if same:
            return same[-1:]
        below = [curve for curve in self.curves if curve.ranks < ranks]
        above = [curve for curve in self.curves if curve.ranks > ranks]
        return (*below[-1:], *above[:1])

    def _at(
        self, works: Sequence[Message], cluster: Cluster, size: Floats, *, ranks: int, islands: int, baseline: Floats
    ) -> Floats:
        """Log seconds at sizes that were measured."""
        near = self._nearest(ranks)
        if len(near) == 2:
            share = math.log(ranks / near[0].ranks) / math.log(near[1].ranks / near[0].ranks)
            return (1.0 - share) * near[0].at(size) + share * near[1].at(size)
        (curve,) = near
        if curve.ranks == ranks:
            return curve.at(size)
        if islands > 1 and ranks > curve.ranks and curve.islands > 1:
            if self.kind in RING_KINDS:
                return _ring(curve, size, ranks)
            across = [c for c in self.curves if c.islands > 1]
            if self.kind == "all_reduce" and len(across) > 1 and curve.islands > 2:
                return _tree_then_ring(across, size, ranks)
        there = [_with_ranks(work, curve.ranks, curve.islands) for work in works]
        return curve.at(size) + np.log(baseline / baseline_seconds(there, cluster))


def _with_ranks(work: Message, ranks: int, islands: int) -> Message:
    return work if isinstance(work, Transfer) else replace(work, num_ranks=ranks, num_nodes=islands)


def _ring(curve: Curve, size: Floats, ranks: int) -> Floats:
    """Log seconds of a ring of more ranks: (n − 1)/(n₀ − 1) · t(S n₀/n, n₀)."""
    steps = (ranks - 1) / (curve.ranks - 1)
    return curve.at(size - math.log2(ranks / curve.ranks)) + math.log(steps)


def _tree_then_ring(curves: Sequence[Curve], size: Floats, ranks: int) -> Floats:
    """Log seconds of an all-reduce among more ranks than measured: a tree for small messages, a ring for large ones.

    The tree's seconds per doubling are those between the two largest measured numbers of ranks. Where the time fell
    between these, the smaller number ran a slow protocol, and neighbouring sizes are used instead. Slow protocols
    disappear as ranks grow and are not extrapolated: within the tree, no message takes longer than a larger one.
    """
    before, last = curves[-2], curves[-1]
    ring_from = ring_threshold(curves)
    knots = last.log2_bytes
    now, then = np.exp(last.at(knots)), np.exp(before.at(knots))
    gain = (now - then) / math.log2(last.ranks / before.ranks)
    is_tree = 2.0**knots < ring_from * last.ranks
    usable = (gain > 0) & is_tree
    if not usable.any():
        return _ring(last, size, ranks)
    gain = isotonic(np.interp(knots, knots[usable], gain[usable]), 1.0 / now**2)
    tree = now + gain * math.log2(ranks / last.ranks)
    tree_knots = 2.0**knots < ring_from * ranks
    tree[tree_knots] = np.minimum.accumulate(tree[tree_knots][::-1])[::-1]
    log_tree = np.interp(size, knots, np.log(tree))
    return np.where(2.0**size < ring_from * ranks, log_tree, _ring(last, size, ranks))


def ring_threshold(curves: Sequence[Curve]) -> float:
    """Bytes per rank from which the curve of most ranks follows from the one before it as a ring.

    This needs three numbers of ranks, the two largest on four islands or more: two islands exchange each byte once,
    which is not a ring. The first two give the tree. With fewer, returns :data:`RING_BYTES_PER_RANK`.
    """
    if len(curves) < 3 or curves[-2].islands < 4:
        return RING_BYTES_PER_RANK
    first, before, last = curves[-3:]
    knots = last.log2_bytes
    ring = np.abs(_ring(before, knots, last.ranks) - last.log_seconds)
    start, then = np.exp(first.at(knots)), np.exp(before.at(knots))
    gain = np.maximum(0.0, then - start) / math.log2(before.ranks / first.ranks)
    tree = np.abs(np.log(then + gain * math.log2(last.ranks / before.ranks)) - last.log_seconds)
    wrong = [tree[:k].sum() + ring[k:].sum() for k in range(len(knots) + 1)]
    k = int(np.argmin(wrong))
    return float(2.0 ** knots[k] / last.ranks) if k < len(knots) else np.inf


def isotonic(values: Floats, weight: Floats) -> Floats:
    """The non-decreasing column nearest to ``values`` (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value, w in zip(values.tolist(), weight.tolist(), strict=True):
        blocks.append([value, w, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            b, a = blocks.pop(), blocks.pop()
            total = a[1] + b[1]
            blocks.append([(a[0] * a[1] + b[0] * b[1]) / total, total, a[2] + b[2]])
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])
