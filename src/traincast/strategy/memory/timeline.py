"""Memory of a stage over its schedule, and the tensors that are alive at its peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from traincast.strategy.memory.peak import Memory, Step, walk
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.schedules.slots import Pass, Slot
from traincast.strategy.strategy import Strategy

_NAMES: Final = {
    Pass.FORWARD: "forward",
    Pass.BACKWARD: "backward",
    Pass.INPUT: "backward of inputs",
    Pass.WEIGHT: "backward of weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The largest number of bytes that a rank holds while one slot runs, by component."""

    index: int
    label: str
    components: Mapping[str, float] = field(hash=False)

    @property
    def total(self) -> float:
        """All components."""
        return sum(self.components.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Tensors of one operator that are alive at the peak: their total bytes, and the number of their microbatches."""

    label: str
    nbytes: float
    in_flight: int


def memory_timeline(
    chunks: Sequence[Sequence[BlockProgram]], slots: Sequence[Slot], *, memory: Memory, strategy: Strategy
) -> list[Moment]:
    """The memory in each slot of a stage; ``memory`` is the stage's peak, which has the states' constant bytes."""
    steps = list(walk(chunks, slots, strategy=strategy))
    peak = max((step.peak for step in steps), default=0.0)
    beside = memory.activations - peak
    return [
        Moment(
            index=step.index,
            label=_label(step.slot, len(chunks)),
            components={**memory.to_dict(), "activations": step.peak + beside},
        )
        for step in steps
    ]


def _label(slot: Slot, chunks: int) -> str:
    return f"{_NAMES[slot.what]} of microbatch {slot.microbatch}" + (f", chunk {slot.chunk}" if chunks > 1 else "")


def holders(
    chunks: Sequence[Sequence[BlockProgram]], slots: Sequence[Slot], *, strategy: Strategy, most: int = 10
) -> list[Holder]:
    """The largest activations at the peak of a stage, at most ``most``, by operator; repeated layers are added up."""
    fullest = max(walk(chunks, slots, strategy=strategy), key=lambda step: step.peak, default=None)
    if fullest is None:
        return []
    work = Holder(label=f"working in {_label(fullest.slot, len(chunks))}", nbytes=fullest.working, in_flight=1)
    found = [work, *_alive(chunks, fullest, strategy)]
    return sorted((h for h in found if h.nbytes > 0), key=lambda h: (-h.nbytes, h.label))[:most]


def _alive(chunks: Sequence[Sequence[BlockProgram]], step: Step, strategy: Strategy) -> Iterator[Holder]:
    """The tensors kept at ``step``: of the running microbatch up to its block, and of all others in flight."""
    offloaded = "activations" in strategy.offload
    for number, chunk in enumerate(chunks):
        runs = number == step.slot.chunk and step.slot.what is not Pass.WEIGHT
        others = step.in_flight[number] - runs
        kept: dict[str, float] = defaultdict(float)
        later = 0.0
        for position, program in enumerate(chunk):
            if offloaded and not program.footprint.stays:
                continue
            reached = runs and position <= step.block
            for tensor in program.footprint.kept:
                kept[tensor.label] += tensor.nbytes * (others + reached)
            done = step.slot.what is Pass.INPUT and runs and not reached
            later += program.footprint.deferred * (step.waiting[number] + done)
        for label, nbytes in kept.items():
            yield Holder(label=label, nbytes=nbytes, in_flight=step.in_flight[number])
        yield Holder(label="kept for gradients of weights", nbytes=later, in_flight=step.waiting[number])
