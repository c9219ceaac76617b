"""Loads the operator graph of a JAX training step."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from traincast.errors import CaptureError, MissingDependencyError, RequestError, TraincastError
from traincast.graph.capture.recorder import BATCH
from traincast.graph.jax.build import Builder, updates_of
from traincast.graph.jax.flat import Flattened, JaxArray
from traincast.graph.jax.kernels import find_kernels
from traincast.graph.operator import OperatorGraph
from traincast.graph.vocabulary import Phase
from traincast.imports import described, place_of


def is_jax_step(function: Callable[..., Any]) -> bool:
    """Whether a callable is a JAX step: it takes arguments, and it or its module declares ``example_inputs``."""
    if "jax" not in sys.modules or inspect.isclass(function):
        return False
    try:
        needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):
        return False
    return bool(needed) and _examples(function) is not None


def _examples(function: Callable[..., Any]) -> Any:
    module = sys.modules.get(getattr(function, "__module__", ""))
    return getattr(function, "example_inputs", None) or getattr(module, "example_inputs", None)


def load_jax(function: Callable[..., Any], spec: str) -> OperatorGraph:
    """Returns the operators of one training step ``function(state, …, batch)``.

    Arguments that the step returns in a new version (weights, states of the optimizer) are its state. The first dim of
    every array in the other arguments is the batch. Raises ``CaptureError`` if JAX cannot trace the step.
    """
    try:
        import jax
    except ImportError as error:
        raise MissingDependencyError("JAX", f"tracing {spec}", extra="jax") from error
    examples = _examples(function)
    try:
        examples = examples() if callable(examples) else examples
        examples = tuple(examples) if isinstance(examples, tuple | list) else (examples,)
        made = jax.eval_shape(function, *examples)
    except (Exception, SystemExit) as error:  # the user's code may do anything
        raise CaptureError(f"model {spec!r}: tracing failed{place_of(error)}: {described(error)}") from error
    keeps = _state(examples, made)
    if not any(keeps):
        raise RequestError(f"model {spec!r} returns none of its arguments in a new version: a step returns its weights")
    given = [_sized(value, kept) for value, kept in zip(examples, keeps, strict=True)]
    try:
        closed = jax.make_jaxpr(function)(*given)
        return _graph(closed, given, keeps, spec)
    except TraincastError:
        raise
    except (Exception, SystemExit) as error:
        raise CaptureError(
            f"model {spec!r}: tracing failed{place_of(error)}: {described(error)}; the step must run on any batch size"
        ) from error


def _state(examples: Sequence[Any], made: Any) -> list[bool]:
    """Which arguments the step returns with the same arrays."""
    import jax

    results = [made, *(made if isinstance(made, tuple | list) else ())]

    def looks(value: Any) -> Any:
        leaves, tree = jax.tree.flatten(value)
        return tree, [(getattr(x, "shape", ()), str(getattr(x, "dtype", type(x)))) for x in leaves]

    known = [looks(r) for r in results]
    return [bool(jax.tree.leaves(e)) and looks(e) in known for e in examples]


def _sized(value: Any, kept: bool) -> Any:
    """The arrays of an argument by shape, with the traced number of samples if they are data."""
    import jax

    def shaped(x: Any) -> Any:
        shape, dtype = tuple(getattr(x, "shape", ())), getattr(x, "dtype", None)
        if dtype is None or (not kept and (not shape or "key" in str(dtype))):
            return x
        return jax.ShapeDtypeStruct(shape if kept else (BATCH, *shape[1:]), dtype)

    return jax.tree.map(shaped, value)


def _graph(closed: Any, given: Sequence[Any], keeps: Sequence[bool], spec: str) -> OperatorGraph:
    import jax

    cells: list[JaxArray] = []
    state: list[JaxArray] = []
    data: list[JaxArray] = []
    variables = iter(closed.jaxpr.invars)
    for value, kept in zip(given, keeps, strict=True):
        for _ in jax.tree.leaves(value):
            aval = next(variables).aval
            cell = JaxArray(tuple(int(s) for s in aval.shape), str(aval.dtype))
            cells.append(cell)
            (state if kept else data).append(cell)
    flat = Flattened(closed, cells, state)
    phases = _phases(flat)
    used = _reached(flat, phases)
    trained = [c for c in state if id(c) in used and c.dtype.startswith(("float", "bfloat")) and c.shape]
    if Phase.BACKWARD not in phases or not trained:
        raise CaptureError(f"model {spec!r} computes no gradient: a step calls jax.grad or jax.value_and_grad")
    kernels = find_kernels(flat, phases, trained)
    first = next((c for c in data if c.shape), None)
    tokens = first.shape[1] if first and len(first.shape) == 2 and "int" in first.dtype else 0
    builder = Builder(flat, kernels, trained)
    return builder.graph(spec, tokens, updates_of({id(c): c for c in trained}, state))


def _phases(flat: Flattened) -> list[Phase]:
    """Returns the phase of each equation: backward if JAX transposed it, the optimizer if it is after those."""
    backward = ["transpose(" in e.stack for e in flat.equations]
    end = max((n for n, b in enumerate(backward) if b), default=len(backward))
    loops = [n for n, e in enumerate(flat.equations) if e.loop >= 0]
    end = max(end, max(loops, default=0))
    return [Phase.BACKWARD if b else Phase.FORWARD if n <= end else Phase.OPTIMIZER for n, b in enumerate(backward)]


def _reached(flat: Flattened, phases: Sequence[Phase]) -> set[int]:
    """The inputs of the step that its forward or backward pass reads."""
    return {
        id(cell.root())
        for equation, phase in zip(flat.equations, phases, strict=True)
        if phase is not Phase.OPTIMIZER
        for cell in equation.inputs
    }
