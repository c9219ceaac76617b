"""What is known of a family's members: how they are cut and run, what they hold and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traincast.searching.rounds import slots_of_way
from traincast.searching.space import Family, Way
from traincast.strategy import Request, Strategy
from traincast.strategy.mesh import Mesh
from traincast.strategy.precision import Precision
from traincast.strategy.prepare import Prepared
from traincast.strategy.program import BlockProgram
from traincast.strategy.program_builder import ProgramBuilder
from traincast.strategy.stages import Stage
from traincast.strategy.strategy import Offload

Floats = npt.NDArray[np.float64]
Blocks = tuple[tuple[int, ...], ...]
"""Blocks of several pieces."""

Fitting: TypeAlias = dict[tuple[Way, int], bool]
"""Whether members fit, by their way and ZeRO's stage."""

NOT_RUN: Final = float("inf")


@dataclass(slots=True)
class Batch:
    """Members of a family that run one cut in one way: bytes and seconds for each way to share and offload states.

    ``memory`` is what the fullest rank is forecast to hold, ``load`` what is needed of the shortest memory over what
    there is of it (as :class:`traincast.strategy.fits.Need` has it): members fit up to 1.
    """

    way: Way
    cut: int
    memory: Floats
    load: Floats
    seconds: Floats


class Sharing(NamedTuple):
    """What replicas shard between them (ZeRO's stage), and what is offloaded."""

    zero: int
    offload: tuple[Offload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The model cut into pieces, and ways to run them that take the same route."""

    layers: tuple[int, ...]
    ways: list[Way]
    pieces: Blocks


@dataclass(slots=True)
class Look:
    """A family whose memory is known: its legal members in ``batches``, for each of the ``sharings``.

    ``runs`` is what its blocks take, once works are estimated, ``held`` what the passes of pieces hold, ``rough``
    what blocks weigh where the model is cut, and ``busy`` says which passes of which blocks run anything;
    ``behind`` are members that are too slow to be looked at.
    """

    family: Family
    request: Request
    mesh: Mesh
    builder: ProgramBuilder
    programs: tuple[BlockProgram, ...]
    rough: Sequence[float]
    busy: tuple[bool, ...]
    footprints: Floats
    sharings: list[Sharing]
    batches: list[Batch] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    held: dict[tuple[int, ...], Floats] = field(default_factory=dict)
    runs: Floats | None = None
    behind: int = 0

    def forget(self) -> None:
        """Let go of what only the evaluation needed."""
        self.programs, self.held, self.runs, self.rough = (), {}, None, ()

    @property
    def count(self) -> int:
        """Members."""
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
