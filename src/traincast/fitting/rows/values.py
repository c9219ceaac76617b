"""Parses the dtype, sizes and parameters of a row; raises :class:`RowError` with the reason where it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from traincast.graph import DType, Phase, Scalar, TensorSpec
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
"""Phases of operators that run in the forward only (:data:`FORWARD`), or in forward and backward."""


@lru_cache(maxsize=256)
def dtype_of(text: str) -> DType:
    """Return the dtype that a table spells as ``text``."""
    try:
        return DType(dtype_in(str(text)))
    except ValueError:
        raise RowError(f"unknown dtype {text!r}") from None


class ParsedRow(NamedTuple):
    """A row with its dtype and parameters parsed."""

    op: str
    dtype: DType
    b: int | None
    m: int | None
    n: int | None
    k: int | None
    params: Params


Built: TypeAlias = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], dict[str, Scalar] | None]
"""An operator to be made: its inputs, outputs and attributes."""


class Operation(NamedTuple):
    """How the rows of one ``op`` become operators: the operator's name, its builder, and the phases it runs in.

    The vocabulary has the kind of the name; a product of stacks of matrices is batched, whatever its name.
    """

    name: str
    build: Callable[[ParsedRow], Built]
    phases: frozenset[str]


def parsed(params: str | None) -> Params:
    """Return the JSON object in the column ``params``; an empty one if the cell is empty."""
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
    """Return a tensor; equal dtypes and shapes give the same object."""
    return TensorSpec(shape, dtype)


def size_of(value: Any, name: str) -> int:
    """Return ``value`` as a positive whole number, or raise a :class:`RowError` that calls it ``name``."""
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
    """Return the size under the first of ``names`` that ``params`` has."""
    for name in names:
        if name in params:
            return size_of(params[name], name)
    raise RowError(f"{names[0]} is not stated")


def share_of(whole: int, ranks: int, what: str) -> int:
    """Return ``whole`` divided by ``ranks``, or raise a :class:`RowError` if there is a remainder."""
    if whole % ranks:
        raise RowError(f"{what} is not a multiple of the number of ranks in its tensor group")
    return whole // ranks


def head_sizes(p: Params) -> tuple[int, int, int, int]:
    """Return ``(batch, heads of this rank, sequence, head dim)`` from Megatron's parameters."""
    heads, ranks = stated(p, "h"), stated(p, "mp")
    if ranks > heads:
        raise RowError("mp is larger than h: some ranks would have no head")
    return stated(p, "b"), share_of(heads, ranks, "h"), stated(p, "l"), share_of(stated(p, "dim"), heads, "dim")
