"""Embedding tables whose gradients are sparse: a step reads and updates only the rows that its samples look up.

**Replicated** tables are whole on every replica. A replica has gradients of the rows of its own samples; an all-gather
of row numbers and gradients gives every replica those of all samples, and each updates all of them.

**Sharded** tables are divided among replicas table by table. A replica holds 1/n of all tables and looks up its part
for the samples of all n replicas: as many vectors per microbatch as it would look up for its own samples in all tables.
An all-to-all sends every vector (pooled, if the lookup pools) to the replica of its sample. In backward, another one
returns the gradients. The load is taken to be even: equal bytes and equal lookups on every replica.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Self

from traincast.errors import StrategyError
from traincast.graph import Block, FixedTensor, Operator, OperatorGraph, OpKind, Phase, TensorSpec
from traincast.strategy.mesh import Axis, Group, Mesh, Span
from traincast.strategy.strategy import Strategy

INDEX_BYTES: Final = 8
"""Bytes of a row's number."""
_LOOKUP: Final = "table_lookup"
_UPDATES: Final = ("table_lookup_backward", "sparse_")
"""Backward operators that update rows have names that begin with these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of one block: operators that look up rows, that make gradients of rows, and that update rows.

    ``held`` are (scope, shape) of the tables. One operator may both make gradients and update.
    """

    lookups: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    updates: tuple[int, ...] = ()
    held: frozenset[tuple[str, TensorSpec]] = frozenset()

    @property
    def last_lookup(self) -> int:
        """The last operator that looks up rows; −1 if there is none."""
        return self.lookups[-1] if self.lookups else -1

    @property
    def first_gradient(self) -> int:
        """The first operator that makes gradients of rows; −1 if there is none."""
        return self.gradients[0] if self.gradients else -1

    @property
    def first_update(self) -> int:
        """The first operator that updates rows; −1 if there is none."""
        return self.updates[0] if self.updates else -1

    def owns(self, tensor: FixedTensor) -> bool:
        """Whether ``tensor`` is one of the tables, or the optimizer's states of one."""
        if not tensor.buffer:
            return (tensor.scope, tensor.spec) in self.held
        of_scope = (spec.numel for scope, spec in self.held if scope == tensor.scope)
        return len(tensor.spec.shape) == 1 and any(tensor.spec.numel % numel == 0 for numel in of_scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSharing:
    """How ``replicas`` data-parallel replicas share embedding tables: ``sharded``, or whole on each."""

    replicas: int = 1
    sharded: bool = False

    @classmethod
    def of(cls, strategy: Strategy, span: Span | None) -> Self:
        """The sharing among the replicas of ``span``; None: nothing is exchanged."""
        return cls(replicas=span.num_ranks if span else 1, sharded=strategy.tables == "sharded")

    @property
    def ways(self) -> int:
        """The number of replicas that divide the tables among them."""
        return self.replicas if self.sharded else 1

    @property
    def gathers(self) -> bool:
        """Whether replicas gather the gradients of rows, because each holds whole tables."""
        return self.replicas > 1 and not self.sharded

    def cut(self, graph: OperatorGraph, index: int, micro_batch: int) -> Operator:
        """Operator ``index`` of ``graph`` as a replica with ``micro_batch`` samples runs it.

        The update of whole tables gets the rows of the samples of all replicas. A lookup reads a share of each table.
        """
        op = graph.operators[index]
        if self.gathers and updates_rows(op):
            return op.with_batch(micro_batch * self.replicas)
        op = op.with_batch(micro_batch)
        if self.ways == 1 or op.kind is not OpKind.EMBEDDING or index not in _lookups(graph):
            return op
        shared = (spec.scaled(0, 1.0 / self.ways) if spec in op.parameters else spec for spec in op.inputs)
        return replace(op, inputs=tuple(shared))

    def elements(self, tables: Tables) -> float:
        """The elements of ``tables`` that one replica holds."""
        return sum(spec.numel for _, spec in tables.held) / self.ways


def updates_rows(op: Operator) -> bool:
    """Whether an operator updates rows of a table, as part of backward."""
    return op.kind is OpKind.EMBEDDING and op.phase is Phase.BACKWARD and op.name.startswith(_UPDATES)


def find_tables(graph: OperatorGraph, block: Block) -> Tables:
    """The tables of ``block`` whose gradients are sparse."""
    if not has_tables(graph):
        return _NO_TABLES
    updates = tuple(i for i in block.backward if updates_rows(graph.operators[i]))
    sparse = {graph.operators[i].scope for i in updates}
    lookups = tuple(
        i
        for i in block.forward
        if (op := graph.operators[i]).kind is OpKind.EMBEDDING
        and op.parameters
        and (op.name == _LOOKUP or op.scope in sparse)
    )
    gradients = tuple(
        i
        for i in block.backward
        if graph.operators[i].kind is OpKind.EMBEDDING and (graph.forward_of[i] in lookups or i in updates)
    )
    held = frozenset((graph.operators[i].scope, spec) for i in lookups for spec in graph.operators[i].parameters)
    return Tables(lookups=lookups, gradients=gradients, updates=updates, held=held)


@lru_cache(maxsize=64)
def has_tables(graph: OperatorGraph) -> bool:
    """Whether any operator looks up rows of a table whose gradients are sparse."""
    return any(op.name == _LOOKUP or updates_rows(op) for op in graph.operators)


@lru_cache(maxsize=64)
def _lookups(graph: OperatorGraph) -> frozenset[int]:
    """All operators that look up rows of tables."""
    return frozenset(i for block in graph.blocks for i in find_tables(graph, block).lookups)


_NO_TABLES: Final = Tables()


def table_spans(graph: OperatorGraph, strategy: Strategy, mesh: Mesh) -> tuple[tuple[Axis, Span], ...]:
    """The placement of the replicas, if they exchange vectors or rows of tables; else empty."""
    if strategy.servers or mesh.dp * mesh.cp == 1 or not has_tables(graph):
        return ()
    return (("dp", mesh.span(*Group.TABLE.axes)),)


def check_tables(graph: OperatorGraph, strategy: Strategy) -> None:
    """Raise :class:`StrategyError` if tables are to be sharded and there are none."""
    if strategy.tables == "sharded" and not has_tables(graph):
        raise StrategyError(
            f"tables=sharded, but {graph.name} has no embedding tables with sparse gradients; leave out tables"
        )
