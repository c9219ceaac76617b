"""Reads and writes operator graphs as JSON. A file is checked completely before it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from traincast.errors import FileFormatError
from traincast.files import write_json
from traincast.graph.operator import Block, FixedTensor, Operator, OperatorGraph
from traincast.graph.tensor import DType, TensorSpec
from traincast.graph.vocabulary import OpKind, Phase
from traincast.schema import convert

FORMAT: Final = "traincast-graph"
VERSION: Final = 2
"""Version 1 had no frozen parameters, no buffers, and no first blocks."""
_MAX_BYTES: Final = 512 * 1024**2

_Size: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
_Index: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
_Indices: TypeAlias = tuple[_Index, ...]
_Attributes: TypeAlias = Mapping[str, int | Annotated[float, Meta(ge=-1e300, le=1e300)] | str | bool]
_Specs: TypeAlias = Callable[[Sequence[int], str], tuple[TensorSpec, ...]]

_TensorEntry: TypeAlias = tuple[tuple[_Size, ...], DType, _Index | None]
"""Shape, dtype, batch dim."""
_OperatorEntry: TypeAlias = tuple[str, OpKind, Phase, str, _Indices, _Indices, _Indices, _Indices, _Attributes]
"""Name, kind, phase, scope; the numbers of its inputs, outputs, parameters and saved tensors; attributes."""
_FixedEntry: TypeAlias = tuple[str, _Index, bool, str]
"""Scope, the number of its tensor, whether it is a buffer, the name that it is shared by."""
_QuantizedEntry: TypeAlias = tuple[
    _Index, _Index, Annotated[int, Meta(ge=1, le=64)], Annotated[float, Meta(gt=0.0, le=1e15)]
]
"""A block and the number of one of its fixed tensors; the tensor's bits per element, and the bytes that store it."""
_BlockEntry: TypeAlias = tuple[
    str, Annotated[int, Meta(ge=1, le=10**15)], _Indices, _Indices, _Indices, _Indices, tuple[_FixedEntry, ...], bool
]
"""Scope, count; operators of forward, backward and optimizer; tensors of its boundary; fixed tensors; whether first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GraphFile:
    """A graph file as it is written; numbers of operators and tensors point into its lists."""

    name: str
    tokens_per_sample: _Size
    attributes: _Attributes
    tensors: tuple[_TensorEntry, ...]
    operators: tuple[_OperatorEntry, ...]
    edges: tuple[tuple[_Index, _Index], ...]
    forward_of: tuple[Annotated[int, Meta(ge=-1, le=10**9)], ...]
    blocks: tuple[_BlockEntry, ...]
    quantized: tuple[_QuantizedEntry, ...] = ()


def save_graph(graph: OperatorGraph, path: Path) -> None:
    """Write ``graph`` to ``path``, completely or not at all."""
    write_json(path, graph_to_dict(graph))


def load_graph(path: Path) -> OperatorGraph:
    """Returns the graph in the file at ``path``; raises ``FileFormatError`` if it is damaged."""
    return graph_from_dict(read_json(path), where=str(path))


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file; raises ``FileFormatError`` with the reason in one line."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FileFormatError(f"{path} is larger than {_MAX_BYTES // 1024**2} MiB: not a graph or a configuration")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise FileFormatError(f"{path} is not valid JSON: {reason}") from error


def graph_to_dict(graph: OperatorGraph) -> dict[str, Any]:
    """Returns ``graph`` as plain values. Each distinct tensor is stored once and referred to by number."""
    tensors: dict[TensorSpec, int] = {}

    def numbers(specs: tuple[TensorSpec, ...]) -> list[int]:
        return [tensors.setdefault(s, len(tensors)) for s in specs]

    operators = [
        [
            op.name,
            op.kind.value,
            op.phase.value,
            op.scope,
            numbers(op.inputs),
            numbers(op.outputs),
            numbers(op.parameters),
            numbers(op.saved),
            dict(op.attributes),
        ]
        for op in graph.operators
    ]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "tokens_per_sample": graph.tokens_per_sample,
        "attributes": dict(graph.attributes),
        "operators": operators,
        "edges": [list(edge) for edge in graph.edges],
        "forward_of": list(graph.forward_of),
        "blocks": [
            [
                b.scope,
                b.count,
                list(b.forward),
                list(b.backward),
                list(b.optimizer),
                numbers(b.boundary),
                [[t.scope, *numbers((t.spec,)), t.buffer, t.shared] for t in b.fixed],
                b.first,
            ]
            for b in graph.blocks
        ],
        "tensors": [[list(t.shape), t.dtype.value, t.batch_dim] for t in tensors],
    }
    packed = [
        [n, m, t.bits, t.stored] for n, block in enumerate(graph.blocks) for m, t in enumerate(block.fixed) if t.bits
    ]
    return {**data, "quantized": packed} if packed else data


def graph_from_dict(data: Any, *, where: str) -> OperatorGraph:
    """Returns the graph that ``data`` describes; raises ``FileFormatError`` that names the first damaged place."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileFormatError(f'{where} is not a Traincast graph: it lacks "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise FileFormatError(
            f"{where} has graph version {data.get('version')!r}; this Traincast reads {VERSION}: capture the model "
            f"again"
        )
    try:
        return _graph(convert(data, _GraphFile, ""))
    except (FileFormatError, ValueError, IndexError) as error:
        raise FileFormatError(f"{where} is a damaged graph file: {error}; capture the model again") from error


def _graph(file: _GraphFile) -> OperatorGraph:
    """The graph of a file whose values have the right types; raises ``ValueError`` if they contradict one another."""
    tensors = [TensorSpec(shape, dtype, batch_dim) for shape, dtype, batch_dim in file.tensors]
    for number, tensor in enumerate(tensors):
        if tensor.batch_dim is not None and tensor.batch_dim >= len(tensor.shape):
            raise ValueError(f"tensors[{number}] has batch dim {tensor.batch_dim} of {len(tensor.shape)} dims")

    def specs(numbers: Sequence[int], at: str) -> tuple[TensorSpec, ...]:
        _check_below(numbers, len(tensors), at)
        return tuple(tensors[number] for number in numbers)

    operators = tuple(_operator(entry, specs, f"operators[{i}]") for i, entry in enumerate(file.operators))
    blocks = tuple(_block(entry, specs, len(operators), f"blocks[{i}]") for i, entry in enumerate(file.blocks))
    blocks = _with_quantized(blocks, file.quantized)
    _check_below((i for edge in file.edges for i in edge), len(operators), "edges")
    _check_below(file.forward_of, len(operators), "forward_of")
    if len(file.forward_of) != len(operators):
        raise ValueError(f"forward_of has {len(file.forward_of)} entries for {len(operators)} operators")
    if not operators or not any(block.forward for block in blocks):
        raise ValueError("it has no forward operators")
    return OperatorGraph(
        name=file.name[:200],
        operators=operators,
        edges=file.edges,
        forward_of=file.forward_of,
        blocks=blocks,
        tokens_per_sample=file.tokens_per_sample,
        attributes=file.attributes,
    )


def _with_quantized(blocks: tuple[Block, ...], entries: Sequence[_QuantizedEntry]) -> tuple[Block, ...]:
    """``blocks`` with the storage of their quantised tensors; raises ``ValueError`` for tensors that do not exist."""
    found = {(block, tensor): (bits, stored) for block, tensor, bits, stored in entries}
    for block, tensor in found:
        if block >= len(blocks) or tensor >= len(blocks[block].fixed):
            raise ValueError(f"quantized names fixed tensor {tensor} of block {block}, which does not exist")
    if not found:
        return blocks

    def packed(n: int, m: int, tensor: FixedTensor) -> FixedTensor:
        bits, stored = found.get((n, m), (0, 0.0))
        return replace(tensor, bits=bits, stored=stored)

    return tuple(
        replace(block, fixed=tuple(packed(n, m, t) for m, t in enumerate(block.fixed)))
        for n, block in enumerate(blocks)
    )


def _check_below(numbers: Iterable[int], size: int, at: str) -> None:
    most = max(numbers, default=-1)
    if most >= size:
        raise ValueError(f"{at} has the number {most}: expected one below {size}")


def _operator(entry: _OperatorEntry, specs: _Specs, at: str) -> Operator:
    name, kind, phase, scope, inputs, outputs, parameters, saved, attributes = entry
    operator = Operator(
        name=name,
        kind=kind,
        phase=phase,
        scope=scope,
        inputs=specs(inputs, at),
        outputs=specs(outputs, at),
        parameters=specs(parameters, at),
        saved=specs(saved, at),
        attributes=attributes,
    )
    try:
        finite = math.isfinite(operator.flops + operator.nbytes)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"{at}, {name!r}, has no cost: {error!r}") from error
    if not finite:
        raise ValueError(f"{at}, {name!r}, has no finite cost")
    return operator


def _block(entry: _BlockEntry, specs: _Specs, size: int, at: str) -> Block:
    scope, count, forward, backward, optimizer, boundary, fixed, first = entry
    _check_below((*forward, *backward, *optimizer), size, at)
    return Block(
        scope=scope,
        count=count,
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        boundary=specs(boundary, at),
        fixed=tuple(
            FixedTensor(scope=owner, spec=specs((number,), at)[0], buffer=buffer, shared=shared)
            for owner, number, buffer, shared in fixed
        ),
        first=first,
    )
