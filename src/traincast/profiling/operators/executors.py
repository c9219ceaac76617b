"""Executors: run a captured operator alone on real tensors, so that it can be timed.

A capture keeps shapes, dtypes and the attributes that cost depends on, not every argument. Missing arguments are
inferred from the shapes, or are what models usually pass (the mean for a loss, the last dim for a softmax). Tensors are
random. An operator is refused unless a first run gives the captured output shapes.

:func:`executor_of` finds the builder by the operator's name. :data:`BUILDERS` has the operators that need more than
their tensors in order; all others are called by their schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from traincast.graph import Operator, OpKind
from traincast.profiling.operators.computing import COMPUTING
from traincast.profiling.operators.moving import MOVING
from traincast.profiling.operators.products import PRODUCTS
from traincast.profiling.operators.tensors import Builder, Call, CannotRunError, Make, bound
from traincast.profiling.operators.updates import UPDATES

BUILDERS: Final[dict[str, Builder]] = {**PRODUCTS, **COMPUTING, **UPDATES, **MOVING}
"""Builders of operators that need more than their tensors in order, by operator name."""


_OF_INPUT: Final = {"conv2d.bwd_data": 0, "conv2d.bwd_weight": 1}
"""Gradients that are measured apart, and the input of the forward that each belongs to."""


def executor_of(operator: Operator, *, device: str = "cpu") -> Call:
    """Return a function that runs ``operator`` once on ``device``. A first run must give the captured shapes.

    Raises :class:`CannotRunError` with the reason if the operator cannot be run.
    """
    make = Make(device)
    builder = BUILDERS.get(operator.name)
    if builder is None:
        return _by_schema(operator, make)
    with torch.no_grad():
        try:
            call = builder(operator, make)
            _check(operator, call())
        except CannotRunError:
            raise
        except Exception as error:  # an operator may raise anything
            raise CannotRunError(_first_line(error)) from error
    return call


def memory_of(operator: Operator) -> float:
    """Roughly the bytes that running ``operator`` alone takes: tensors, results, and scores of attention."""
    need = 2.0 * operator.nbytes
    if operator.kind is OpKind.EMBEDDING:
        need = sum(t.nbytes for t in (*operator.inputs, *operator.outputs))
    if operator.name in ("attention", "attention_backward"):
        q, k, _ = operator.inputs[-3:]
        need += 4.0 * q.nbytes * k.shape[2] / q.shape[3]
    return need


def _first_line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:160]


def _check(operator: Operator, result: Any) -> None:
    """Refuse results whose shapes are not those captured (scratch memory apart)."""
    found = [result] if isinstance(result, torch.Tensor) else [t for t in result if isinstance(t, torch.Tensor)]
    shapes = [tuple(t.shape) for t in found]
    wanted = [t.shape for t in operator.outputs]
    if operator.name in _OF_INPUT:  # such a gradient has the shapes of its forward
        wanted = [operator.inputs[_OF_INPUT[operator.name]].shape]
    if operator.kind is OpKind.RNN:
        shapes, wanted = shapes[:3], wanted[:3]
    if shapes[: len(wanted)] != wanted:
        raise CannotRunError(f"returns shapes {shapes[:3]}, but {wanted[:3]} were captured")


def _by_schema(operator: Operator, make: Make) -> Call:
    """Call the operator of that name: its tensors in order, and usual values for the other arguments."""
    packet = getattr(torch.ops.aten, operator.name, None) or getattr(torch.ops.traincast, operator.name, None)
    if packet is None:
        raise CannotRunError("PyTorch has no operator of this name")
    reasons = []
    for name in packet.overloads():
        overload = getattr(packet, name)
        if name.endswith("out") or any(a.is_out for a in overload._schema.arguments):
            continue
        try:
            arguments = _arguments(operator, overload._schema.arguments, make)
            call = bound(overload, arguments)
            with torch.no_grad():
                _check(operator, call())
            return call
        except Exception as error:  # an operator may raise anything
            reasons.append(_first_line(error))
    raise CannotRunError(reasons[0] if reasons else "PyTorch has no such overload")


_USUAL: Final[dict[str, Any]] = {
    "negative_slope": 0.01,
    "threshold": 0,
    "min_val": 0,
    "max_val": 6,
    "min": 0,
    "exponent": 2,
    "value": 0,
    "self_is_result": False,
    "p": 0.5,
    "alpha": 1,
    "beta": 1,
    "scale": 1,
    "input_scale": 1,
    "lambd": 0.5,
    "eps": 1e-5,
    "diagonal": 1,
    "reduction": 1,
    "delta": 1.0,
    "weight": 0.5,
}


def _arguments(operator: Operator, schema: Sequence[Any], make: Make) -> list[Any]:
    """Arguments for a schema: the captured tensors in order, usual values for the rest."""
    tensors = list(operator.inputs)
    values: list[Any] = []
    for argument in schema:
        kind = str(argument.type)
        if argument.kwarg_only:
            break
        if kind in ("Tensor", "Optional[Tensor]") and tensors:
            values.append(make(tensors.pop(0)))
        elif kind == "List[Tensor]" and tensors:
            values.append(make.all(tensors))
            tensors = []
        elif argument.name == "other" and kind == "number":
            # An in-place operator runs on its own result again and again: this number must not change the values.
            inplace = operator.name.endswith("_")
            values.append((0 if operator.name.startswith(("add", "sub")) else 1) if inplace else 2)
        elif argument.name in _USUAL and kind != "Tensor":
            values.append(_USUAL[argument.name])
        elif argument.has_default_value():
            break
        else:
            raise CannotRunError(f"the value of its argument {argument.name!r} ({kind}) is not known")
    if tensors:
        raise CannotRunError(
            f"takes {len(operator.inputs) - len(tensors)} tensors, but {len(operator.inputs)} were captured"
        )
    return values
