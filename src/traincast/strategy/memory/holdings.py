"""A rank's share of a block's parameters and buffers: trained parameters, frozen parameters, and buffers.

A frozen parameter is stored in the dtype of frozen weights, without a master copy; one that the model stores in a byte
or less keeps its dtype, and a quantised one the bytes of its format. Buffers have the dtype that the module gives them.
Tensor parallelism cuts frozen parameters in the same way as trained ones; every rank holds whole buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from traincast.graph import Block, DType, OperatorGraph, Phase, TensorSpec
from traincast.graph.optimizers import matrices_of, optimizer_called
from traincast.graph.vocabulary import LINEAR
from traincast.strategy.program.embedding_tables import find_tables
from traincast.strategy.program.sharded_model import ShardedModel
from traincast.strategy.program.sharding import Role

_CUT: Final = frozenset({Role.COLUMN, Role.ROW, Role.VOCAB})


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Frozen parameters: their number, the bytes that store them, and their bytes when ZeRO-3 has gathered them.

    ``packed`` of the parameters are quantised. They are gathered as they are stored.
    """

    parameters: float = 0.0
    stored: float = 0.0
    gathered: float = 0.0
    packed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Bytes of a buffer, or of a frozen parameter that several blocks use.

    If it has a ``name``, a rank holds it once, however many of the rank's blocks use it.
    """

    nbytes: float
    buffer: bool
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """Trained parameters of a rank that one optimizer updates, by the optimizer's name.

    ``parameters`` of them are updated, ``experts`` of these belong to experts, and ``states`` are the elements of the
    optimizer's states. ``matrices`` has the number, rows and columns of weights that it multiplies as matrices.
    """

    optimizer: str
    parameters: float
    experts: float
    states: float
    matrices: tuple[tuple[float, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What one rank holds of one block.

    ``dense`` and ``experts`` are numbers of trained parameters, outside and inside expert regions; ``frozen`` and
    ``frozen_experts`` are the frozen ones in the same way. ``fixed`` are buffers and shared frozen parameters. The
    largest trained parameter has ``largest`` elements. ``tied`` of the trained parameters are a copy of those of
    another block. ``updated`` divides the trained parameters that the block owns by their optimizer.
    """

    dense: float
    experts: float
    frozen: Frozen
    frozen_experts: Frozen
    fixed: tuple[Fixed, ...]
    largest: float = 0.0
    tied: float = 0.0
    updated: tuple[Updated, ...] = ()

    @property
    def frozen_parameters(self) -> float:
        """The number of frozen parameters, experts included."""
        return self.frozen.parameters + self.frozen_experts.parameters

    @property
    def packed_parameters(self) -> float:
        """The number of quantised parameters, experts included."""
        return self.frozen.packed + self.frozen_experts.packed


def holdings_of(model: ShardedModel, block: Block) -> Holdings:
    """What one rank holds of ``block``."""
    strategy, graph = model.strategy, model.graph
    share = share_of(model, block)
    trained, frozen, fixed, largest, tied = [0.0, 0.0], [Frozen(), Frozen()], [], 0.0, 0.0
    updated: dict[str, list[tuple[TensorSpec, float, bool]]] = {}
    for i in block.optimizer:
        op = graph.operators[i]
        numel, of_experts = share(op.parameters[0], op.scope)
        trained[of_experts] += numel
        largest = max(largest, numel)
        updated.setdefault(op.name, []).append((op.parameters[0], numel, of_experts))
    tables = find_tables(graph, block)
    for tensor in block.fixed:
        ways = model.tables.ways if tables.owns(tensor) else 1
        if tensor.buffer:
            fixed.append(Fixed(nbytes=tensor.spec.nbytes / ways, buffer=True, name=tensor.shared))
            continue
        numel, of_experts = share(tensor.spec, tensor.scope)
        numel /= ways
        if tensor.shared:
            fixed.append(Fixed(nbytes=numel * _stored(model, tensor.spec), buffer=False, name=tensor.shared))
        else:
            frozen[of_experts] = _more(model, frozen[of_experts], tensor.spec, numel, stored=tensor.stored)
    if strategy.pp > 1:
        ranks = strategy.tp if model.runtime.defaults.split_vocabulary else 1
        for spec, is_frozen in _borrowed(model, block):
            if is_frozen:
                frozen[0] = _more(model, frozen[0], spec, spec.numel / ranks)
            else:
                trained[0] += spec.numel / ranks
                tied += spec.numel / ranks
                largest = max(largest, spec.numel / ranks)
    return Holdings(
        dense=trained[0],
        experts=trained[1],
        frozen=frozen[0],
        frozen_experts=frozen[1],
        fixed=tuple(fixed),
        largest=largest,
        tied=tied,
        updated=tuple(_updated(name, weights) for name, weights in updated.items()),
    )


def _updated(name: str, weights: list[tuple[TensorSpec, float, bool]]) -> Updated:
    """What ``name`` updates on a rank: ``weights``, each with the elements that the rank has, and if experts own it.

    The rank's part of a matrix that tensor parallelism cuts is updated as a matrix of its own, its longer side cut.
    """
    optimizer = optimizer_called(name)
    states = optimizer.states * sum(numel for _, numel, _ in weights)
    matrices: list[tuple[float, int, int]] = []
    for spec, numel, of_experts in weights:
        if optimizer.matrix is None:
            break
        count, rows, columns = matrices_of(spec.shape)
        share = numel / spec.numel
        if of_experts:
            matrices.append((count * share, rows, columns))
        else:
            matrices.append((count, min(rows, columns), max(1, round(max(rows, columns) * share))))
        states += matrices[-1][0] * optimizer.matrix(*matrices[-1][1:]).states
    return Updated(
        optimizer=name,
        parameters=sum(numel for _, numel, _ in weights),
        experts=sum(numel for _, numel, of_experts in weights if of_experts),
        states=states,
        matrices=tuple(matrices),
    )


def share_of(model: ShardedModel, block: Block) -> Callable[[TensorSpec, str], tuple[float, bool]]:
    """A function of a parameter and its scope that returns the elements a rank holds, and whether experts own it."""
    strategy, regions = model.strategy, model.regions(block)
    cut = {model.graph.operators[i].scope for i in block.forward if model.sharding.roles[i] in _CUT}

    def share(spec: TensorSpec, scope: str) -> tuple[float, bool]:
        if any(region.owns(spec, scope) for region in regions):
            return spec.numel / (strategy.ep * strategy.expert_tp), True
        return spec.numel / (strategy.tp if scope in cut and len(spec.shape) > 1 else 1), False

    return share


def _more(model: ShardedModel, frozen: Frozen, spec: TensorSpec, numel: float, *, stored: float = 0.0) -> Frozen:
    """``frozen`` with ``numel`` elements of parameter ``spec`` added; quantised, all of it takes ``stored`` bytes."""
    if stored:
        nbytes = stored * numel / spec.numel
        return Frozen(
            parameters=frozen.parameters + numel,
            stored=frozen.stored + nbytes,
            gathered=frozen.gathered + nbytes,
            packed=frozen.packed + numel,
        )
    return replace(
        frozen,
        parameters=frozen.parameters + numel,
        stored=frozen.stored + numel * _stored(model, spec),
        gathered=frozen.gathered + numel * _in(spec, model.precision.activations),
    )


def _stored(model: ShardedModel, spec: TensorSpec) -> float:
    return _in(spec, model.precision.frozen_weights)


def _in(spec: TensorSpec, dtype: DType) -> float:
    """Bytes of an element that the precision stores in ``dtype``; integers and quantized ones keep their own dtype."""
    return dtype.nbytes if spec.dtype.is_floating and spec.dtype.nbytes > 1 else spec.dtype.nbytes


def _borrowed(model: ShardedModel, block: Block) -> Iterator[tuple[TensorSpec, bool]]:
    """Parameters of ``block`` that another block owns, and whether they are frozen.

    These are the weights of tied logits: the last stage of a pipeline keeps a copy of them.
    """
    graph = model.graph
    own = Counter(graph.operators[i].parameters[0].numel for i in block.optimizer)
    own.update(tensor.spec.numel for tensor in block.fixed if not tensor.buffer)
    for i in block.forward:
        op = graph.operators[i]
        for spec in op.parameters:
            if own[spec.numel] > 0:
                own[spec.numel] -= 1
            elif op.kind in LINEAR and i in model.sharding.vocabulary:
                yield spec, not _trained(graph, spec)


def _trained(graph: OperatorGraph, spec: TensorSpec) -> bool:
    """Whether the optimizer updates a parameter of the size of ``spec``."""
    return any(op.parameters[0].numel == spec.numel for op in graph.operators if op.phase is Phase.OPTIMIZER)
