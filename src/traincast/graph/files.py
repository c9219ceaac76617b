"""Graph files: an operator graph as JSON, read with suspicion."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from traincast.errors import FileFormatError
from traincast.files import write_json
from traincast.graph.operator import Block, FixedTensor, Operator, OperatorGraph, OpKind, Phase, Scalar
from traincast.graph.tensor import DType, TensorSpec

FORMAT: Final = "traincast-graph"
VERSION: Final = 2
"""Version 1 had no frozen parameters, no buffers, and no first blocks."""
_MAX_BYTES: Final = 512 * 1024**2
_MAX_DIM: Final = 10**15


def save_graph(graph: OperatorGraph, path: Path) -> None:
    """Write ``graph`` to ``path``, whole or not at all."""
    write_json(path, graph_to_dict(graph))


def load_graph(path: Path) -> OperatorGraph:
    """Read a graph file."""
    return graph_from_dict(read_json(path), where=str(path))


def read_json(path: Path) -> Any:
    """Parse a JSON file, or say in one line why it cannot be."""
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
    """``graph`` as plain values; tensors are kept once and referred to by number."""
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
    return {
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


def graph_from_dict(data: Any, *, where: str) -> OperatorGraph:
    """The graph that ``data`` describes; anything amiss is refused with the place it was found."""
    try:
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise FileFormatError(f'{where} is not a Traincast graph: it lacks "format": "{FORMAT}"')
        if data.get("version") != VERSION:
            raise FileFormatError(
                f"{where} has graph version {data.get('version')!r}; this Traincast reads {VERSION}: capture the model "
                f"again"
            )
        tensors = [_tensor(t) for t in data["tensors"]]
        operators = tuple(_operator(o, tensors) for o in data["operators"])
        blocks = tuple(_block(b, tensors, len(operators)) for b in data["blocks"])
        edges = tuple((_index(a, len(operators)), _index(b, len(operators))) for a, b in data["edges"])
        forward_of = tuple(i if i == -1 else _index(i, len(operators)) for i in data["forward_of"])
        if len(forward_of) != len(operators):
            raise ValueError(f"forward_of has {len(forward_of)} entries for {len(operators)} operators")
        if not operators or not blocks or not any(b.forward for b in blocks):
            raise ValueError("it has no forward operators")
        return OperatorGraph(
            name=str(data["name"])[:200],
            operators=operators,
            edges=edges,
            forward_of=forward_of,
            blocks=blocks,
            tokens_per_sample=_size(data["tokens_per_sample"], least=0),
            attributes=_attributes(data["attributes"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise FileFormatError(f"{where} is a damaged graph file: {reason}; capture the model again") from error


def _size(value: Any, *, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_DIM:
        raise ValueError(f"{value!r} is not a size from {least} to {_MAX_DIM:.0e}")
    return value


def _index(value: Any, size: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise ValueError(f"{value!r} is not an index below {size}")
    return value


def _tensor(data: Any) -> TensorSpec:
    shape, dtype, batch_dim = data
    dims = tuple(_size(d, least=0) for d in shape)
    if batch_dim is not None:
        batch_dim = _index(batch_dim, len(dims))
    return TensorSpec(dims, DType(dtype), batch_dim)


def _attributes(data: Any) -> Mapping[str, Scalar]:
    for key, value in data.items():
        if not isinstance(key, str) or not isinstance(value, int | float | str | bool):
            raise ValueError(f"attribute {key!r} is {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"attribute {key!r} is {value!r}")
    return dict(data)


def _operator(data: Any, tensors: list[TensorSpec]) -> Operator:
    name, kind, phase, scope, inputs, outputs, parameters, saved, attributes = data

    def specs(numbers: Any) -> tuple[TensorSpec, ...]:
        return tuple(tensors[_index(n, len(tensors))] for n in numbers)

    operator = Operator(
        name=str(name),
        kind=OpKind(kind),
        phase=Phase(phase),
        scope=str(scope),
        inputs=specs(inputs),
        outputs=specs(outputs),
        parameters=specs(parameters),
        saved=specs(saved),
        attributes=_attributes(attributes),
    )
    if not math.isfinite(operator.flops + operator.nbytes):
        raise ValueError(f"operator {name!r} has no finite cost")
    return operator


def _block(data: Any, tensors: list[TensorSpec], size: int) -> Block:
    scope, count, forward, backward, optimizer, boundary, fixed, first = data
    if not isinstance(first, bool):
        raise ValueError(f"{first!r} does not say whether a block is the first of its kind")
    return Block(
        scope=str(scope),
        count=_size(count),
        forward=tuple(_index(i, size) for i in forward),
        backward=tuple(_index(i, size) for i in backward),
        optimizer=tuple(_index(i, size) for i in optimizer),
        boundary=tuple(tensors[_index(n, len(tensors))] for n in boundary),
        fixed=tuple(_fixed(t, tensors) for t in fixed),
        first=first,
    )


def _fixed(data: Any, tensors: list[TensorSpec]) -> FixedTensor:
    scope, number, buffer, shared = data
    if not isinstance(buffer, bool):
        raise ValueError(f"{buffer!r} does not say whether a fixed tensor is a buffer")
    return FixedTensor(scope=str(scope), spec=tensors[_index(number, len(tensors))], buffer=buffer, shared=str(shared))
