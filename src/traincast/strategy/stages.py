"""Pipeline stages: where the model is cut.

Models of equal layers are cut as frameworks do: layers are divided evenly, blocks before them go to the first stage
and blocks after them to the last. Some frameworks divide all blocks by their weights instead. Any other graph is cut
so that the most loaded stage, with the time of its sends, is as short as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from traincast.cluster import Device
from traincast.errors import StrategyError
from traincast.graph import Operator, OperatorGraph, OpKind
from traincast.strategy.program.block import BlockProgram

_PRODUCT_KINDS: Final = frozenset(
    {OpKind.GEMM, OpKind.BATCHED_GEMM, OpKind.GROUPED_GEMM, OpKind.CONV, OpKind.ATTENTION}
)

_FURTHER: Final = "further"
"""The scope of layers that predict tokens after the next one."""
_FURTHER_LAYERS: Final = 3
"""Layers that the last stage has fewer for each of them: for its own layer, and for its logits and loss.

So DeepSeek V3's 61 layers are cut into 16 stages of 4, the last of which has one, as recipes of Megatron-Core do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The blocks of one chunk of layers: indices into the graph's blocks, one entry per repetition."""

    blocks: tuple[int, ...]


def cut_stages(
    graph: OperatorGraph,
    num_chunks: int,
    *,
    costs: Sequence[float],
    sends: Sequence[float],
    layers: Sequence[int] = (),
    by_weights: bool = False,
) -> list[Stage]:
    """Cuts ``graph`` into ``num_chunks`` stages; raises :class:`StrategyError` if it has too few blocks.

    ``costs`` and ``sends`` are, per block, the relative time of its computation and of its message to the next block.
    ``layers``, if given, is the number of repeated blocks of each stage. ``by_weights`` divides all blocks by the
    weights of their linear layers instead of counting layers.
    """
    units = tuple(i for i, block in enumerate(graph.blocks) for _ in range(block.count))
    if layers:
        return _given(graph, units, num_chunks, layers)
    if num_chunks == 1:
        return [Stage(blocks=units)]
    if by_weights:
        return _by_weights(graph, units, num_chunks)
    repeated = [i for i, block in enumerate(graph.blocks) if block.repeated]
    there = sum(graph.blocks[i].count for i in repeated)
    if repeated and there >= num_chunks and _dominates(graph, repeated, costs):
        return _even(units, frozenset(repeated), there, num_chunks, tail=_FURTHER_LAYERS * _further(graph))
    if repeated and num_chunks == there + 2 and _dominates(graph, repeated, costs):
        return _with_ends_apart(units, frozenset(repeated))
    if len(units) < num_chunks or (repeated and there < num_chunks and _dominates(graph, repeated, costs)):
        available = there if repeated else len(units)
        raise StrategyError(
            f"pp·virtual_stages = {num_chunks} stages, but {graph.name} has only {available} blocks to divide; "
            f"use at most {available} stages"
        )
    return _balanced(units, num_chunks, costs, sends)


def _dominates(graph: OperatorGraph, repeated: list[int], costs: Sequence[float]) -> bool:
    """Whether the repeated blocks have most of the work."""
    total = sum(cost * block.count for cost, block in zip(costs, graph.blocks, strict=True))
    return sum(costs[i] * graph.blocks[i].count for i in repeated) > 0.5 * total


def _given(graph: OperatorGraph, units: tuple[int, ...], num_chunks: int, layers: Sequence[int]) -> list[Stage]:
    repeated = frozenset(i for i, block in enumerate(graph.blocks) if block.repeated)
    there = sum(graph.blocks[i].count for i in repeated)
    if len(layers) != num_chunks or sum(layers) != there:
        raise StrategyError(
            f"layers={'/'.join(map(str, layers))} gives {sum(layers)} layers to {len(layers)} stages, but {graph.name} "
            f"has {there} and the pipeline {num_chunks}; give {num_chunks} numbers that add up to {there}"
        )
    stages = _sized(units, repeated, tuple(layers))
    if any(not stage.blocks for stage in stages):
        raise StrategyError(
            f"layers={'/'.join(map(str, layers))} leaves a stage with nothing to run; give it at least one layer"
        )
    return stages


def _by_weights(graph: OperatorGraph, units: tuple[int, ...], num_chunks: int) -> list[Stage]:
    """Divides blocks in order; a stage ends with the block that completes its share of the weights.

    An embedding counts as nothing, a projection to the vocabulary counts by its weights, so the last stages may get no
    block. A stage that has only the loss gets the projection as well: measured steps show that logits are not sent.
    """
    weights = [_product_weights(graph, i) for i in range(len(graph.blocks))]
    total = sum(weights[unit] for unit in units)
    chunks: list[list[int]] = [[] for _ in range(num_chunks)]
    at = passed = 0
    for unit in units:
        chunks[at].append(unit)
        passed += weights[unit]
        at += at < num_chunks - 1 and passed * num_chunks >= total * (at + 1)
    *_, before, last = chunks
    if last and not any(weights[unit] for unit in last) and len(before) > 1:
        last.insert(0, before.pop())
    if not all(chunks):
        used = sum(map(bool, chunks))
        raise StrategyError(
            f"{num_chunks} stages cut by weights leave stage {chunks.index([])} of {graph.name} without a block; "
            f"use at most {used} stages, or a runtime with [defaults] stage_cut = 'layers'"
        )
    return [Stage(blocks=tuple(c)) for c in chunks]


def _product_weights(graph: OperatorGraph, block: int) -> int:
    """The number of weights of the linear layers of a block, without biases."""
    operators = (graph.operators[i] for i in graph.blocks[block].forward)
    linear = (op for op in operators if op.kind in (OpKind.GEMM, OpKind.GROUPED_GEMM) and op.parameters)
    return sum(max(t.numel for t in op.parameters) for op in linear)


def _further(graph: OperatorGraph) -> int:
    """The number of tokens after the next one that a model predicts as well."""
    scopes = (graph.operators[i].scope.split(".") for block in graph.blocks for i in block.forward)
    return len({scope[1] for scope in scopes if len(scope) > 1 and scope[0] == _FURTHER})


def _even(
    units: tuple[int, ...], repeated: frozenset[int], layers: int, num_chunks: int, *, tail: int = 0
) -> list[Stage]:
    """Stages of equally many layers; the last has ``tail`` layers fewer, because the blocks after them take as long."""
    base, extra = divmod(layers + tail, num_chunks)
    # If the layers do not divide evenly, middle stages get one more: the first and last have embedding and head.
    sizes = [base] * num_chunks
    for n in range(extra):
        sizes[(1 + n) % num_chunks] += 1
    for at in reversed(range(num_chunks)):  # further tokens may outweigh a whole stage
        less = min(tail, sizes[at])
        sizes[at], tail = sizes[at] - less, tail - less
    return _sized(units, repeated, tuple(sizes))


def _sized(units: tuple[int, ...], repeated: frozenset[int], sizes: tuple[int, ...]) -> list[Stage]:
    """Stages with ``sizes`` repeated blocks each; the blocks after the last repeated one are on the last stage."""
    return list(_stages(units, repeated, sizes))


@lru_cache(maxsize=4096)
def _stages(units: tuple[int, ...], repeated: frozenset[int], sizes: tuple[int, ...]) -> tuple[Stage, ...]:
    chunks: list[list[int]] = [[] for _ in sizes]
    left = sum(1 for unit in units if unit in repeated)
    chunk = taken = 0
    for unit in units:
        if unit in repeated:
            while taken == sizes[chunk]:
                chunk, taken = chunk + 1, 0
            taken, left = taken + 1, left - 1
        chunks[chunk if left or unit in repeated else -1].append(unit)
    return tuple(Stage(blocks=tuple(c)) for c in chunks)


def _with_ends_apart(units: tuple[int, ...], repeated: frozenset[int]) -> list[Stage]:
    """One layer per stage; the blocks before and after the layers are stages of their own."""
    first = next(i for i, unit in enumerate(units) if unit in repeated)
    last = next(i for i, unit in reversed(list(enumerate(units))) if unit in repeated)
    layers = [Stage(blocks=(unit,)) for unit in units[first : last + 1]]
    return [Stage(blocks=tuple(units[:first])), *layers, Stage(blocks=tuple(units[last + 1 :]))]


def _balanced(units: tuple[int, ...], num_chunks: int, costs: Sequence[float], sends: Sequence[float]) -> list[Stage]:
    """Minimises the largest stage by dynamic programming over cut points; among equals, the total time of sends."""
    n = len(units)
    prefix = np.concatenate([[0.0], np.cumsum([costs[u] for u in units])])
    send = np.array([sends[u] for u in units])
    best = np.full((num_chunks + 1, n + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((num_chunks + 1, n + 1), dtype=np.int64)
    for k in range(1, num_chunks + 1):
        for end in range(k, n - (num_chunks - k) + 1):
            starts = np.arange(k - 1, end)
            load = prefix[end] - prefix[starts] + (send[end - 1] if end < n else 0.0)
            value = np.maximum(best[k - 1, starts], load)
            at = int(np.argmin(value))
            best[k, end], choice[k, end] = value[at], starts[at]
    cuts = [n]
    for k in range(num_chunks, 0, -1):
        cuts.append(int(choice[k, cuts[-1]]))
    cuts.reverse()
    return [Stage(blocks=tuple(units[a:b])) for a, b in pairwise(cuts)]


def rough_seconds(device: Device, programs: Sequence[BlockProgram]) -> list[float]:
    """Approximate seconds of blocks, for cutting stages: a simple roofline is enough to compare blocks."""

    def seconds(op: Operator) -> float:
        dtype = op.dtype.value if op.kind in _PRODUCT_KINDS else "fp32"
        return max(op.flops / device.peak(dtype), op.nbytes / device.memory_bandwidth)

    return [
        sum(seconds(item.work) for item in (*program.forward, *program.backward) if isinstance(item.work, Operator))
        for program in programs
    ]
