"""The model as a strategy shares it among ranks: all that the programs of its blocks depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from traincast.graph import Block, OperatorGraph
from traincast.strategy.mesh import Axis, Span
from traincast.strategy.program.embedding_tables import TableSharing
from traincast.strategy.program.experts import BatchOverlap, Region
from traincast.strategy.program.precision import Precision
from traincast.strategy.program.sharding import Sharding
from traincast.strategy.runtime import Runtime
from traincast.strategy.strategy import Strategy

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedModel:
    """A plain value that works, traffic and footprint of a block are made from.

    ``graph`` has the kernels that the runtime fuses or splits. ``spans`` has the groups whose traffic compute waits
    for. ``experts`` maps each operator of experts that are divided among ranks to its region. ``tables`` says how
    replicas share embedding tables. Hosts are ``crowded`` if the messages of a pipeline cross nodes. ``interference``
    is the share by which traffic slows the compute that it overlaps. ``made`` is a cache shared by values that differ
    only in recomputation, offloading, pipelining or the number of microbatches.
    """

    graph: OperatorGraph
    sharding: Sharding
    strategy: Strategy
    runtime: Runtime
    precision: Precision
    spans: Mapping[Axis, Span]
    micro_batch: int
    experts: Mapping[int, Region] = field(default_factory=dict)
    tables: TableSharing = field(default_factory=TableSharing)
    crowded: bool = False
    interference: float = 0.0
    between_batches: BatchOverlap | None = None
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """The result of ``make``, computed once per ``key`` for all values that share the cache."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def regions(self, block: Block) -> list[Region]:
        """The expert regions of ``block`` that are divided among ranks."""
        inside = set(block.forward)
        found = {r.scope: r for i, r in self.experts.items() if i in inside}
        return list(found.values())
