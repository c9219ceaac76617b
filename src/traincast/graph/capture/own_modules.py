"""A user's own modules: a factory named ``package.module:factory``, or a live module with example inputs.

Inputs are tensors whose first dim is the batch. Their sequence, if they have one, is the second dim of the first input:
tokens [batch, seq], or rows of features [batch, seq, features].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from traincast.errors import CaptureError, RequestError
from traincast.graph.capture.capture import capture, require_torch
from traincast.graph.capture.tracing import Progress
from traincast.graph.operator import OperatorGraph
from traincast.graph.zoo.traceable import Traceable
from traincast.imports import described, import_callable, place_of

if TYPE_CHECKING:
    import torch


def load_factory(spec: str, *, seq: int | None = None) -> Traceable:
    """Call ``package.module:factory`` and return its result as something that can be traced.

    The factory returns the module and example inputs, a :class:`Traceable`, or a module that declares
    ``example_inputs``. It is called with the ``meta`` device as default, so that no weights are made. A sequence length
    is passed as its argument ``seq``. If it has none, the example inputs are made that long, if they have a sequence.
    """
    require_torch()
    import torch

    factory = import_callable(spec, "model", role="factory")
    takes = seq is not None and takes_seq(factory)
    missing = required(factory) - ({"seq"} if takes else set())
    if missing:
        raise RequestError(
            f"model {spec!r} requires the arguments {', '.join(sorted(missing))}, and a factory takes none but seq; "
            f"if it is a train step of JAX, give it an attribute example_inputs"
        )
    try:
        with torch.device("meta"):
            made = factory(seq=seq) if takes else factory()
    except (Exception, SystemExit) as error:  # the user's code may do anything
        raise CaptureError(f"model {spec!r}: its factory failed{place_of(error)}: {described(error)}") from error
    if isinstance(made, Traceable):
        if seq is None or takes:
            return made
        raise RequestError(
            f"model {spec!r}: a sequence length of {seq} is asked for, and its factory takes no argument seq; write "
            f"`def {spec.partition(':')[2]}(seq)` and make inputs of that length, or leave the sequence length out"
        )
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise RequestError(
            f"model {spec!r}: its factory returned {type(made).__name__}; expected (module, example inputs), or a "
            f"module with example_inputs"
        )
    return traceable_module(module, inputs, name=spec, seq=None if takes else seq)


def takes_seq(factory: Callable[..., object]) -> bool:
    """Whether a factory has an argument ``seq``."""
    try:
        return "seq" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # not every built-in function tells its arguments
        return False


def required(factory: Callable[..., object]) -> set[str]:
    """The arguments that ``factory`` cannot be called without."""
    try:
        arguments = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # not every built-in function tells its arguments
        return set()
    named = (a for a in arguments if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD))
    return {a.name for a in named if a.default is a.empty}


def load_module(
    module: torch.nn.Module | Traceable,
    example_inputs: Any = None,
    *,
    seq: int | None = None,
    progress: Progress | None = None,
) -> OperatorGraph:
    """Returns the operator graph of a live ``module``, whose weights are left as they are.

    ``example_inputs`` is a tensor, or a tuple or dict of tensors, whose first dim is the batch; it may be omitted if
    the module has an attribute ``example_inputs``. ``seq`` replaces the length of their sequence.
    """
    require_torch()
    import torch

    if isinstance(module, Traceable):
        if seq is not None or example_inputs is not None:
            raise RequestError("a Traceable makes its own inputs: leave example_inputs and seq out")
        return capture(module, name=type(module.module).__name__, progress=progress)
    if not isinstance(module, torch.nn.Module):
        raise RequestError(
            f"the model is a {type(module).__name__}: give a name, a graph, or a torch.nn.Module with example inputs"
        )
    name = type(module).__name__
    return capture(traceable_module(module, example_inputs, name=name, seq=seq), name=name, progress=progress)


class _Input(NamedTuple):
    """Shape without the batch, and dtype, of one example input."""

    shape: tuple[int, ...]
    dtype: Any


def traceable_module(module: torch.nn.Module, inputs: Any, *, name: str, seq: int | None) -> Traceable:
    """Returns ``module`` with example ``inputs`` as something that can be traced."""
    import torch

    if inputs is None:
        inputs = getattr(module, "example_inputs", None)
        inputs = inputs() if callable(inputs) else inputs
    if isinstance(module, torch.jit.ScriptModule):
        raise RequestError(
            f"model {name!r} is TorchScript, whose operators cannot be traced: give the module that it was made from"
        )
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    call = None
    if isinstance(inputs, dict) or (
        isinstance(inputs, tuple | list) and any(isinstance(part, dict | tuple | list) for part in inputs)
    ):
        inputs, call = _flat(inputs, module)
    if inputs is None or not isinstance(inputs, tuple | list) or not inputs:
        what = "has no example inputs" if inputs is None else f"has example inputs of type {type(inputs).__name__}"
        raise RequestError(
            f"model {name!r}: {type(module).__name__} {what}; give a tensor, a tuple of tensors in the order of its "
            f"forward, or a dict of them by name; the first dim of each is the batch"
        )
    if not all(isinstance(t, torch.Tensor) and t.ndim >= 1 for t in inputs):
        raise RequestError(
            f"model {name!r}: example inputs must be tensors whose first dim is the batch, or tuples and dicts of them"
        )
    first = inputs[0]
    specs = [_Input(tuple(t.shape[1:]), t.dtype) for t in inputs]
    tokens = first.shape[1] if not first.is_floating_point() and first.ndim == 2 else 0
    if seq is not None:
        if first.ndim != (3 if first.is_floating_point() else 2):
            raise RequestError(
                f"model {name!r}: a sequence length of {seq} is asked for, and its first input {tuple(first.shape)} is "
                f"neither tokens [batch, seq] nor features [batch, seq, features]; leave the sequence length out, or "
                f"give its factory an argument seq"
            )
        specs = _lengthened(specs, old=first.shape[1], new=seq)
        tokens = seq
    return Traceable(
        module=module,
        inputs=lambda batch: tuple(torch.empty((batch, *spec.shape), dtype=spec.dtype) for spec in specs),
        tokens_per_sample=tokens,
        call=call,
    )


def _flat(inputs: Any, module: torch.nn.Module) -> tuple[list[Any], Callable[..., Any]]:
    """The tensors in nested ``inputs``, and how ``module`` is called with them.

    A dict by the names of arguments of ``forward`` is passed by name. Any other dict is one argument.
    """
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, form = tree_flatten(inputs)
    by_name = isinstance(inputs, dict) and _takes(module, inputs)

    def call(module: torch.nn.Module, *tensors: torch.Tensor) -> Any:
        whole = tree_unflatten(list(tensors), form)
        if isinstance(whole, dict):
            return module(**whole) if by_name else module(whole)
        return module(*whole)

    return leaves, call


def _takes(module: torch.nn.Module, names: Mapping[str, Any]) -> bool:
    """Whether ``forward`` of ``module`` can be called with ``names``."""
    try:
        inspect.signature(module.forward).bind(**dict(names))
    except TypeError:
        return False
    return True


def _lengthened(specs: Sequence[_Input], *, old: int, new: int) -> list[_Input]:
    """``specs`` with a sequence of ``new`` elements instead of ``old``.

    Of the first input the second dim changes. Of the others every dim of the old length does: labels, masks, positions.
    """
    first, *others = specs
    rest = [spec._replace(shape=tuple(new if size == old else size for size in spec.shape)) for spec in others]
    return [first._replace(shape=(new, *first.shape[1:])), *rest]
