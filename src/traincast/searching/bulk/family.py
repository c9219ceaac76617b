"""A family of strategies and what a search found of its members: cuts, schedules, memory, seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.searching.bulk.rounds import slots_of_way
from traincast.searching.space import Family, Way
from traincast.strategy import Request, Strategy
from traincast.strategy.mesh import Mesh
from traincast.strategy.prepare import Prepared
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.precision import Precision
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.stages import Stage
from traincast.strategy.strategy import Offload

Floats = npt.NDArray[np.float64]
Blocks = tuple[tuple[int, ...], ...]
"""Blocks of several pieces."""

Fitting: TypeAlias = dict[tuple[Way, int], bool]
"""Whether members fit, by way and ZeRO stage."""

NOT_RUN: Final = float("inf")


@dataclass(slots=True)
class Batch:
    """Members of a family that run one cut in one way: an array entry for each way to shard and offload states.

    ``memory`` is the forecast of the fullest rank in bytes. ``load`` is the need over the capacity of the memory that
    is shortest (see :class:`traincast.strategy.memory.fits.MemoryNeed`): members fit up to 1. ``seconds`` is the step
    time.
    """

    way: Way
    cut: int
    memory: Floats
    load: Floats
    seconds: Floats


class Sharing(NamedTuple):
    """The ZeRO stage, and what is offloaded."""

    zero: int
    offload: tuple[Offload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The model cut into pieces, and the ways to run them that take the same route."""

    layers: tuple[int, ...]
    ways: list[Way]
    pieces: Blocks


@dataclass(slots=True)
class EvaluatedFamily:
    """A family while it is evaluated: its legal members are in ``batches``, one entry per sharing in each.

    ``rough`` are the weights by which the model is cut, ``busy`` says which passes of which blocks run anything,
    ``held`` has the bytes that the passes of pieces hold. ``hiding`` has the programs of ways that hide more of the
    experts' traffic than ``programs`` do. ``behind`` counts members that were left out because they cannot be fast
    enough.
    """

    family: Family
    request: Request
    mesh: Mesh
    model: ShardedModel
    programs: tuple[BlockProgram, ...]
    hiding: dict[Way, tuple[BlockProgram, ...]]
    rough: Sequence[float]
    busy: tuple[bool, ...]
    footprints: Floats
    sharings: list[Sharing]
    batches: list[Batch] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    held: dict[tuple[int, ...], Floats] = field(default_factory=dict)
    behind: int = 0

    def forget(self) -> None:
        """Free what only the evaluation needs."""
        self.programs, self.hiding, self.held, self.rough = (), {}, {}, ()

    def programs_of(self, way: Way) -> tuple[BlockProgram, ...]:
        """The programs of the blocks of members that run in this way."""
        return self.hiding.get(way, self.programs)

    @property
    def count(self) -> int:
        """Number of members."""
        return len(self.batches) * len(self.sharings)

    def strategy(self, batch: Batch, sharing: Sharing) -> Strategy:
        """The strategy of a member."""
        return replace(
            self.request.strategy,
            schedule=batch.way.schedule,
            virtual_stages=batch.way.virtual_stages,
            layers=self.cuts[batch.cut].layers,
            zero=sharing.zero,  # type: ignore[arg-type]
            offload=sharing.offload,
        )

    def prepared(self, programs: tuple[BlockProgram, ...], pieces: Blocks, way: Way, precision: Precision) -> Prepared:
        """A cut into ``pieces`` that runs in one ``way``, as a single forecast prepares it."""
        slots, _ = slots_of_way(way, self.family.degrees.pp, self.family.num_microbatches)[0]
        return Prepared(
            mesh=self.mesh,
            precision=precision,
            programs=programs,
            pieces=[Stage(blocks=blocks) for blocks in pieces],
            slots=slots,
            micro_batch=self.family.micro_batch,
        )
