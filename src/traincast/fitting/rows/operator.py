"""Turns a row of an operator table into an :class:`Operator`, with one name for each operation.

The name of a measured operator is ``<operation>.<phase>``. Its shapes are those of the forward, even if the row
measured a backward or a whole training step of the layer. :func:`traincast.fitting.rows.parts.parts_of` returns the
leaf operators that such a row consists of.

Rows of Traincast's own profiler describe their operator in full (``params`` has ``inputs``) and keep its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from traincast.fitting.rows.described import described_operator
from traincast.fitting.rows.nodes import NODE, node_operation
from traincast.fitting.rows.parts import parts_of
from traincast.fitting.rows.products import PRODUCT_OPERATIONS
from traincast.fitting.rows.tokens import TOKEN_OPERATIONS
from traincast.fitting.rows.values import PHASES, Operation, ParsedRow, dtype_of, parsed
from traincast.graph import Operator, OpKind
from traincast.graph.operator import NO_ATTRIBUTES
from traincast.graph.vocabulary import POINTWISE, kind_of
from traincast.tables import RowError

_NO_COST: Final = frozenset({"module", "unknown"})
"""Attributes that say where in its model an operator was, and have no effect on its cost."""
_PHASE_WORDS: Final = {"forward": "fwd", "backward": "bwd", "optimizer": "update"}


class RowConfig(NamedTuple):
    """The columns of a row that say what ran, unparsed; device and time are left out."""

    op: str
    phase: str
    dtype: str
    b: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    params: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperator:
    """The operator that a row measured, and the leaf operators it consists of."""

    operator: Operator
    parts: tuple[Operator, ...]


def measured_operator(row: Mapping[str, Any]) -> MeasuredOperator:
    """Return the operator and its parts for one row of a table, given by column name."""
    operator = operator_of(RowConfig(**{name: row[name] for name in RowConfig._fields if name in row}))
    return MeasuredOperator(operator=operator, parts=parts_of(operator))


def operator_of(config: RowConfig) -> Operator:
    """Return the operator that a row describes, or raise :class:`RowError`."""
    params = parsed(config.params)
    phase = _PHASE_WORDS.get(config.phase, config.phase)
    if phase not in PHASES:
        raise RowError(f"unknown phase {config.phase!r}")
    if "inputs" in params:
        return described_operator(config.op, phase, params)
    operation = _operation(config.op)
    if operation is None:
        what = "the node of the traced graph is not a known operator" if config.op.startswith(NODE) else ""
        raise RowError(what or f"unknown operator {config.op!r}")
    if phase not in operation.phases:
        raise RowError(f"{config.op} runs nothing in phase {config.phase!r}")
    row = ParsedRow(config.op, dtype_of(config.dtype), config.b, config.m, config.n, config.k, params)
    inputs, outputs, attributes = operation.build(row)
    kind = kind_of(operation.name, source="table")
    assert kind is not None, "every operation is in the vocabulary"
    if kind is OpKind.GEMM and len(inputs[0].shape) > 2:
        kind = OpKind.BATCHED_GEMM
    return Operator(
        name=f"{operation.name}.{phase}",
        kind=kind,
        phase=PHASES[phase],
        inputs=inputs,
        outputs=outputs,
        attributes=attributes or NO_ATTRIBUTES,
    )


def canonical_name(op: str) -> str | None:
    """Return the operation that a table's ``op`` means (``flash_atten`` → ``attention``), or ``None`` if unknown."""
    operation = _operation(op)
    return operation.name if operation else None


def key_of(op: Operator) -> str:
    """Return the configuration of ``op``: name, dtypes, sizes and attributes, without device and time.

    Sizes are as a kernel sees them: the number of elements for point-wise operators, rows and columns for row-wise
    ones. So the same work written with different shapes is one configuration.
    """
    sizes = _KEY_SIZES.get(op.kind, _as_they_are)
    inputs = ",".join([f"{t.dtype.value}{sizes(t.shape)}" for t in op.inputs])
    outputs = ",".join([f"{t.dtype.value}{sizes(t.shape)}" for t in op.outputs])
    attributes = ",".join([f"{name}={op.attributes[name]!r}" for name in sorted(op.attributes) if name not in _NO_COST])
    return f"{op.name}|{op.kind.value}|{op.phase.value}|{inputs}|{outputs}|{attributes}"


def _as_they_are(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _elements(shape: tuple[int, ...]) -> str:
    return str(math.prod(shape))


def _rows_and_columns(shape: tuple[int, ...]) -> str:
    return f"{math.prod(shape[:-1])}x{shape[-1]}" if shape else "1"


_KEY_SIZES: Final[dict[OpKind, Callable[[tuple[int, ...]], str]]] = {
    **dict.fromkeys(POINTWISE, _elements),
    **dict.fromkeys((OpKind.LAYER_NORM, OpKind.SOFTMAX, OpKind.LOSS, OpKind.EMBEDDING), _rows_and_columns),
}

_OPERATIONS: Final = PRODUCT_OPERATIONS | TOKEN_OPERATIONS


@lru_cache(maxsize=8192)
def _operation(op: str) -> Operation | None:
    return node_operation(op) if op.startswith(NODE) else _OPERATIONS.get(op)
