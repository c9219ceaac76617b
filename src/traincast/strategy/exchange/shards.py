"""Sharded parameters whose traffic compute waits for, as PyTorch's ``fully_shard`` runs it on the CPU.

Every repeated layer is one group of parameters. With a root group, all other blocks together are another one. In
forward, the root group is gathered first, and each layer just before it runs. In backward, each layer is gathered
before the previous one runs: prefetching changes the order but hides nothing. Gradients of a layer are reduced after
it, those of the root group at the end. The root group stays gathered from forward to backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traincast.strategy.exchange.replicas import Exchange
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Item
from traincast.strategy.schedules.slots import Pass
from traincast.strategy.template import Issue, WorkRun
from traincast.work import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingShards:
    """Lays out one pass in line.

    ``programs`` are the blocks in the order of the pass, ``root`` says which of them belong to the root group.
    ``gathers`` and ``reduces`` say whether the pass gathers parameters and reduces gradients. ``squeeze`` returns the
    works that compress the gradients of a number of parameters before their reduction.
    """

    exchange: Exchange
    programs: Sequence[BlockProgram]
    root: Sequence[bool]
    prefetch: int
    squeeze: Callable[[float], list[Item]]

    def run(self, what: Pass, *, gathers: bool, reduces: bool) -> WorkRun:
        """The works and collectives of a pass in order."""
        parts = self._forward(gathers) if what is Pass.FORWARD else self._backward(what, gathers, reduces)
        return WorkRun(parts=[part for part in parts if part])

    def _forward(self, gathers: bool) -> list[tuple[Item, ...]]:
        parts = [self._gathered(self._rooted)] if gathers and self._rooted else []
        known: dict[int, tuple[Item, ...]] = {}
        for program, rooted in zip(self.programs, self.root, strict=True):
            if gathers and not rooted:
                if id(program) not in known:
                    known[id(program)] = self._gathered([program])
                parts.append(known[id(program)])
            parts.append(program.forward)
        return parts

    def _backward(self, what: Pass, gathers: bool, reduces: bool) -> list[tuple[Item, ...]]:
        layers = [p for p, rooted in zip(self.programs, self.root, strict=True) if not rooted and p.backward]
        gathered = {id(p): self._gathered([p]) for p in layers} if gathers else {}
        reduced = {id(p): self._reduced([p]) for p in self.programs} if reduces else {}
        waiting = [gathered[id(p)] for p in layers] if gathers else []
        parts: list[tuple[Item, ...]] = waiting[: self.prefetch]
        begun, layer = len(parts), 0
        for program, rooted in zip(self.programs, self.root, strict=True):
            if not rooted and program.backward:
                layer += 1
                parts += waiting[begun : layer + self.prefetch]
                begun = max(begun, layer + self.prefetch)
            parts.append(program.items(what))
            if reduces and not rooted:
                parts.append(reduced[id(program)])
        if reduces and self._rooted:
            parts.append(self._reduced(self._rooted))
        return parts

    @property
    def _rooted(self) -> list[BlockProgram]:
        return [program for program, rooted in zip(self.programs, self.root, strict=True) if rooted]

    def _gathered(self, programs: Sequence[BlockProgram]) -> tuple[Item, ...]:
        return self._in_line(self.exchange.gather(*programs))

    def _reduced(self, programs: Sequence[BlockProgram]) -> tuple[Item, ...]:
        dense, experts = (sum(getattr(p, f"{kind}_parameters") for p in programs) for kind in ("dense", "expert"))
        if not dense + experts:
            return ()
        return (*self.squeeze(dense + experts), *self._in_line(self.exchange.gradients(dense, experts)))

    def _in_line(self, issues: Sequence[Issue]) -> tuple[Item, ...]:
        launches = Launch(collectives=self.exchange.runtime.launches.collective)
        return tuple(Item(work=i.work, launches=launches, label=i.label, group=i.group) for i in issues)
