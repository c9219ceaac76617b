"""DualPipe: two copies of the model, fed from both ends of the pipeline."""

from __future__ import annotations

import math

from traincast.errors import StrategyError
from traincast.strategy.schedules.phases import Move, Phase, check_counts, play
from traincast.strategy.schedules.slots import Order, Pass, Slot


def dualpipe(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """Even microbatches enter at the first stage, odd ones at the last (DeepSeek-V3 report, 2024, section 3.2.1).

    In the steady state, a forward in one direction comes right before a whole backward in the other, so that the
    communication of each overlaps with the other's computation. With times F of a forward, B of a whole backward, W of
    its weight half and F&B of this pair, the bubble is (p/2−1)(F&B+B−3W) for W ≤ F ≤ B−W, and less if a forward's
    output is sent before its pair ends. Every stage holds the parameters of two chunks, and activations of at most
    p+1 microbatches of one chunk.
    """
    check_counts("dualpipe", stages, microbatches, virtual, chunks=2)
    if stages % 2:
        raise StrategyError(
            f"dualpipe with pp={stages}: its halves mirror each other, so pp must be even; use pp={stages + 1} or "
            "schedule=zb-v"
        )
    if microbatches % 2 or microbatches < 2 * stages:
        raise StrategyError(
            f"dualpipe with num_microbatches={microbatches} over pp={stages}: each end feeds half of them, at least "
            f"pp; use {max(2 * stages, microbatches + microbatches % 2)} microbatches or schedule=zb-v"
        )
    tape = {(what, way): [Slot(what, m, way) for m in range(way, microbatches, 2)] for what in Pass for way in (0, 1)}
    return [play(_phases(stage, stages, microbatches), tape) for stage in range(stages)]


def paired(stages: int, microbatches: int) -> float:
    """The share of forwards that come right before the backward of another microbatch, averaged over stages.

    A stage at distance d from the nearer end has m − 3p/2 + d + 1 such pairs (phases 4 and 5 below), on average
    m − 5p/4 + 1/2. The share is rounded down to sixteenths, so that strategies with nearly equal shares have equal
    programs.
    """
    share = 1.0 - (1.25 * stages - 0.5) / microbatches
    return max(0, math.floor(16.0 * share)) / 16.0


def _phases(stage: int, stages: int, microbatches: int) -> list[Phase]:
    """The eight phases of a stage; they depend on its distance from the nearer end, which feeds it first."""
    distance = min(stage, stages - 1 - stage)
    inner = stages // 2 - 1 - distance  # stages between this one and the middle
    near, far = (0, 1) if stage == distance else (1, 0)
    f_near, f_far = (Pass.FORWARD, near), (Pass.FORWARD, far)
    b_near, b_far = (Pass.BACKWARD, near), (Pass.BACKWARD, far)
    i_near, i_far, w_far = (Pass.INPUT, near), (Pass.INPUT, far), (Pass.WEIGHT, far)
    # The last backwards alternate; half of them are split, and their weights follow in the same order.
    turns = [far, near] * (distance + 1)
    whole: list[Move] = [(Pass.BACKWARD, way) for way in turns[: distance + 1]]
    split: list[Move] = [(Pass.INPUT, way) for way in turns[distance + 1 :]]
    weights: list[Move] = [(Pass.WEIGHT, way) for _, way in [*split, *[i_near] * inner]]
    filled = [move for weight in weights[:inner] for move in (weight, i_near)]
    return [
        ([f_near], 2 * inner),
        ([f_near, f_far], distance + 1),
        ([i_far, w_far, f_far], inner),
        ([f_near, b_far, f_far, b_near], microbatches // 2 - stages + distance + 1),
        ([b_far, f_far, b_near], inner),
        ([*whole, *split], 1),
        (filled, 1),
        (weights[inner:], 1),
    ]
