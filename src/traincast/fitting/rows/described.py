"""Operators from rows that describe them in full, as Traincast's own profiler does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from traincast.fitting.rows.values import PHASES, Params, dtype_of, size_of, tensor
from traincast.graph import Operator, OpKind, TensorSpec
from traincast.graph.operator import NO_ATTRIBUTES
from traincast.tables import RowError


def described_operator(op: str, phase: str, p: Params) -> Operator:
    """Return the operator whose kind, tensors and attributes are in the params ``p``, or raise :class:`RowError`."""
    try:
        kind = OpKind(p.get("kind", op))
    except ValueError:
        raise RowError(f"unknown operator kind {p.get('kind', op)!r}") from None
    attributes = p.get("attributes") or {}
    if not isinstance(attributes, dict) or not all(isinstance(v, int | float | str) for v in attributes.values()):
        raise RowError("attributes is not a JSON object of numbers and texts")
    inputs, outputs = _described_tensors(p["inputs"], "inputs"), _described_tensors(p.get("outputs", ()), "outputs")
    if kind is OpKind.RNN and inputs and len(inputs[0].shape) == 3:
        inputs = (replace(inputs[0], batch_dim=1), *inputs[1:])  # [steps, batch, width], as a capture has it
    operator = Operator(
        name=str(p.get("name") or kind.value),
        kind=kind,
        phase=PHASES[phase],
        inputs=inputs,
        outputs=outputs,
        parameters=_described_tensors(p.get("parameters", ()), "parameters"),
        attributes=attributes or NO_ATTRIBUTES,
    )
    try:
        cost = operator.flops + operator.nbytes + operator.dtype.nbytes
    except (IndexError, ValueError, TypeError):
        cost = math.inf
    if not math.isfinite(cost):
        raise RowError(f"an operator of kind {kind.value} cannot have these tensors")
    return operator


def _described_tensors(found: Any, name: str) -> tuple[TensorSpec, ...]:
    """Parse tensors written as ``{"shape": [...], "dtype": "bf16"}`` or ``[[...], "bf16"]``."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise RowError(f"{name} is not a list of tensors")
    tensors = []
    for item in found:
        shape, dtype = (item.get("shape"), item.get("dtype")) if isinstance(item, dict) else _pair(item, name)
        if not isinstance(shape, Sequence) or isinstance(shape, str):
            raise RowError(f"{name} has a tensor without a shape")
        tensors.append(tensor(dtype_of(str(dtype)), *(size_of(x, f"a dim of {name}") for x in shape)))
    return tuple(tensors)


def _pair(item: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise RowError(f"{name} has an entry that is not a shape and a dtype")
    return item[0], item[1]
