"""Zero-bubble pipelines: gradients of weights, which no other stage waits for, fill the bubbles.

Qi et al. 2024: "Zero Bubble Pipeline Parallelism" (ZB-H1, ZB-H2, ZB-V) and "Pipeline Parallelism with Controllable
Memory" (V-ZB). Below, F, I and W are the times of the forward, input and weight passes of a stage.
"""

from __future__ import annotations

from traincast.strategy.schedules.phases import Phase, check_counts, play, tapes
from traincast.strategy.schedules.slots import Order, Pass, Slot


def zb_h1(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """1F1B with split backwards; later stages delay their weight passes (Qi et al. 2024).

    With at least p microbatches, and if W is the shortest pass, the bubble is (p−1)(F+I−W): a third of 1F1B's if all
    passes are equal. No stage holds more than p microbatches, the number that the first stage of 1F1B holds.
    """
    check_counts("zb-h1", stages, microbatches, virtual, chunks=1)
    return _handcrafted(stages, microbatches, ahead=1)


def zb_h2(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """ZB-H1 with twice the forwards ahead, so that no stage waits if all passes are equal (Qi et al. 2024).

    With at least 2p−1 microbatches, a stage idles at most (p−1)(F+I−2W) between its first and its last slot. The first
    and the last stage start and end (p−1)·F apart, which is lost if a step ends for all stages together. Up to 2p−1
    microbatches are in flight.
    """
    check_counts("zb-h2", stages, microbatches, virtual, chunks=1)
    return _handcrafted(stages, microbatches, ahead=2)


def _handcrafted(stages: int, microbatches: int, *, ahead: int) -> Order:
    """ZB-H1 (``ahead`` = 1) or ZB-H2 (2).

    A stage begins with ``ahead`` forwards for each stage after it. Its weight passes lag by ``ahead`` microbatches for
    each stage before it.
    """
    whole = max(microbatches, ahead * (stages - 1))
    tape = tapes(whole)
    forward, inputs, weights = (Pass.FORWARD, 0), (Pass.INPUT, 0), (Pass.WEIGHT, 0)
    order = []
    for stage in range(stages):
        warm, late = ahead * (stages - 1 - stage), ahead * stage
        phases: list[Phase] = [
            ([forward], warm),
            ([forward, inputs], late),
            ([forward, inputs, weights], whole - warm - late),
            ([inputs, weights], warm),
            ([weights], late),
        ]
        order.append(_only(microbatches, play(phases, tape)))
    return order


def zb_v(stages: int, microbatches: int, virtual: int = 1) -> Order:
    """Two chunks per stage, down the stages and up again; no more memory than 1F1B (Qi et al. 2024).

    If all passes take equal times and there are at least 2p−1 microbatches, no stage waits between its first and its
    last slot; the first and the last stage start and end p−1 forwards of a chunk apart. No stage holds more than 2p
    chunks, which is p whole microbatches.
    """
    check_counts("zb-v", stages, microbatches, virtual, chunks=2)
    whole = max(microbatches, 2 * stages - 1)
    tape = tapes(whole, chunks=2)
    f0, f1 = (Pass.FORWARD, 0), (Pass.FORWARD, 1)
    i0, i1 = (Pass.INPUT, 0), (Pass.INPUT, 1)
    w0, w1 = (Pass.WEIGHT, 0), (Pass.WEIGHT, 1)
    order = []
    for stage in range(stages):
        after = stages - 1 - stage
        phases: list[Phase] = [
            ([f0], 2 * after + 1),
            ([f1, f0], stage),
            ([f1, i1, w1], after + 1),
            ([f0, i0, w0, f1, i1, w1], whole - stages - after),
            ([i0, w0, f1, i1, w1], after),
            ([i0, i1], stage),
            ([i0, w0], after + 1),
            ([w1], stage),
            ([w0], stage),
        ]
        order.append(_only(microbatches, play(phases, tape)))
    return order


def _only(microbatches: int, slots: list[Slot]) -> list[Slot]:
    """``slots`` of existing microbatches only: an order for a full pipeline also serves fewer microbatches."""
    return [slot for slot in slots if slot.microbatch < microbatches]
