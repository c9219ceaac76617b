"""What the cells of a row say: its dtype, its sizes and its parameters, understood or refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from traincast.graph import DType, OpKind, Phase, Scalar, TensorSpec
from traincast.tables import RowError, dtype_in

Params: TypeAlias = Mapping[str, Any]
_MAX_SIZE: Final = 10**15
PHASES: Final = {
    "fwd": Phase.FORWARD,
    "bwd": Phase.BACKWARD,
    "bwd_data": Phase.BACKWARD,
    "bwd_weight": Phase.BACKWARD,
    "bwd_grad_act": Phase.BACKWARD,
    "bwd_grad_w": Phase.BACKWARD,
    "update": Phase.OPTIMIZER,
    "fwd+bwd+update": Phase.FORWARD,
}
FORWARD: Final = frozenset({"fwd"})
BOTH: Final = frozenset({"fwd", "bwd"})
"""Phases of a pass forward, and of both passes."""


@lru_cache(maxsize=256)
def dtype_of(text: str) -> DType:
    """The dtype that a table's spelling means."""
    try:
        return DType(dtype_in(str(text)))
    except ValueError:
        raise RowError(f"unknown dtype {text!r}") from None


class ParsedRow(NamedTuple):
    """A row with its dtype and parameters understood."""

    op: str
    dtype: DType
    b: int | None
    m: int | None
    n: int | None
    k: int | None
    params: Params


Built: TypeAlias = tuple[OpKind, tuple[TensorSpec, ...], tuple[TensorSpec, ...], dict[str, Scalar] | None]


class Operation(NamedTuple):
    """How the rows of one ``op`` become operators."""

    name: str
    build: Callable[[ParsedRow], Built]
    phases: frozenset[str]


def parsed(params: str | None) -> Params:
    """The JSON object in the column ``params``; nothing where it is empty."""
    if not params:
        return {}
    try:
        found = json.loads(params)
    except (ValueError, TypeError, RecursionError):
        raise RowError("params is not valid JSON") from None
    if not isinstance(found, dict):
        raise RowError("params is not a JSON object")
    return found


@lru_cache(maxsize=1 << 17)
def tensor(dtype: DType, *shape: int) -> TensorSpec:
    """A tensor; those of the same dtype and shape are one object."""
    return TensorSpec(shape, dtype)


def size_of(value: Any, name: str) -> int:
    """A positive whole number, or an error that names it."""
    if type(value) is int and 0 < value <= _MAX_SIZE:
        return value
    if value is None:
        raise RowError(f"{name} is not stated")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RowError(f"{name} is not a number") from None
    if not 0 < number <= _MAX_SIZE or number != int(number):
        raise RowError(f"{name} is not a positive whole number")
    return int(number)


def stated(params: Params, *names: str) -> int:
    """The size that goes by one of ``names``."""
    for name in names:
        if name in params:
            return size_of(params[name], name)
    raise RowError(f"{names[0]} is not stated")


def share_of(whole: int, ranks: int, what: str) -> int:
    """What each of ``ranks`` ranks has of ``whole``."""
    if whole % ranks:
        raise RowError(f"{what} does not divide among the ranks of its tensor group")
    return whole // ranks


def head_sizes(p: Params) -> tuple[int, int, int, int]:
    """``(batch, heads of this rank, sequence, head dim)`` of Megatron's parameters."""
    heads, ranks = stated(p, "h"), stated(p, "mp")
    if ranks > heads:
        raise RowError("mp is larger than h: a rank without a head")
    return stated(p, "b"), share_of(heads, ranks, "h"), stated(p, "l"), share_of(stated(p, "dim"), heads, "dim")
