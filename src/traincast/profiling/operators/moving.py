"""Builders of operators that move data: reductions, look-ups and copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from traincast.graph import Operator
from traincast.profiling.operators.tensors import Builder, Call, CannotRunError, Make, bound, named

aten: Final = torch.ops.aten


# Reductions


def reduced_dims(shape: Sequence[int], result: Sequence[int]) -> tuple[list[int], bool] | None:
    """The dims of ``shape`` that a reduction to ``result`` sums over, and whether it keeps them with size 1.

    >>> reduced_dims((8, 128, 768), (768,))
    ([0, 1], False)
    >>> reduced_dims((8, 64, 7, 7), (8, 64, 1, 1))
    ([2, 3], True)
    """
    if len(shape) == len(result):
        changed = [d for d, (a, b) in enumerate(zip(shape, result, strict=True)) if a != b]
        if any(result[d] != 1 for d in changed):
            return None
        return changed or [d for d, a in enumerate(shape) if a == 1][:1], True
    kept: list[int] = []
    position = len(shape) - 1
    for size in reversed(result):
        while position >= 0 and shape[position] != size:
            position -= 1
        if position < 0:
            return None
        kept.append(position)
        position -= 1
    return [d for d in range(len(shape)) if d not in kept], False


def _reduction(operator: Operator, make: Make) -> Call:
    x, out = operator.inputs[0], operator.outputs[0]
    function = getattr(aten, operator.name)
    if out.shape == () and x.shape != ():
        return bound(function.default, (make(x),))
    if operator.name == "mean" and not x.shape:
        return bound(function.default, (make(x),))
    found = reduced_dims(x.shape, out.shape)
    if found is None:
        raise CannotRunError(f"no dims reduce {x.shape} to {out.shape}")
    dims, keep = found
    overload = function.dim_IntList if operator.name == "sum" else function.dim if operator.name == "mean" else None
    if overload is not None:
        return bound(overload, (make(x), dims, keep))
    if operator.name == "linalg_vector_norm":
        return bound(function.default, (make(x), 2, dims, keep))
    return bound(function.default, (make(x), dims if operator.name in ("amax", "amin") else dims[0], keep))


def _cumulative(operator: Operator, make: Make) -> Call:
    return bound(getattr(aten, operator.name).default, (make(operator.inputs[0]), -1))


# Look-ups


def _embedding(operator: Operator, make: Make) -> Call:
    if operator.is_gradient:
        grad, ids = operator.inputs[:2]
        rows = operator.outputs[0].shape[0]
        return bound(aten.embedding_dense_backward.default, (make(grad), make.index(ids, rows), rows, -1, False))
    table, ids = operator.inputs[:2]
    return bound(aten.embedding.default, (make(table), make.index(ids, table.shape[0]), -1, False, False))


def _looked_up_dim(data: Sequence[int], index: Sequence[int]) -> int:
    """The dim that an index selects along: the one whose size differs, or the last."""
    differing = [d for d, (a, b) in enumerate(zip(data, index, strict=False)) if a != b]
    return differing[0] if differing else max(0, len(data) - 1)


def _gather(operator: Operator, make: Make) -> Call:
    data, index = operator.inputs[:2]
    dim = _looked_up_dim(data.shape, index.shape)
    ids = make.index(index, data.shape[dim] if data.shape else 1)
    if operator.name == "gather":
        return bound(aten.gather.default, (make(data), dim, ids))
    if len(operator.inputs) == 2:
        return bound(getattr(aten, operator.name).value, (make(data), dim, ids, 1))
    source = make(operator.inputs[2])
    function = getattr(aten, operator.name)
    overload = function.src if operator.name.startswith("scatter") and "add" not in operator.name else function.default
    return bound(overload, (make(data), dim, ids, source))


def _rows(operator: Operator, make: Make) -> Call:
    """Operators that select or add whole rows."""
    data, index = operator.inputs[:2]
    ids = make.index(index, data.shape[0])
    if operator.name == "index_select":
        return bound(aten.index_select.default, (make(data), 0, ids))
    return bound(aten.index_add.default, (make(data), 0, ids, make(operator.inputs[2])))


def _index(operator: Operator, make: Make) -> Call:
    data, *indices = operator.inputs
    if operator.name.startswith("index_put") or operator.name.startswith("_unsafe_index_put"):
        raise CannotRunError("which dims it indexes is not known")
    ids = [make.index(spec, data.shape[d]) for d, spec in enumerate(indices)]
    return bound(getattr(aten, operator.name).Tensor, (make(data), ids))


def _sort(operator: Operator, make: Make) -> Call:
    spec = operator.inputs[0]
    x = make(spec) if spec.dtype.is_floating else make.index(spec, 1 << 20)
    if operator.name == "topk":
        return bound(aten.topk.default, (x, operator.outputs[0].shape[-1], -1))
    return bound(getattr(aten, operator.name).default, (x, -1))


def _search(operator: Operator, make: Make) -> Call:
    table, values = operator.inputs
    size = table.shape[-1]
    ordered = torch.arange(size, dtype=make.dtype(table.dtype), device=make.device).expand(table.shape).contiguous()
    wanted = make.index(values, size) if not values.dtype.is_floating else make(values)
    return bound(aten.searchsorted.Tensor, (ordered, wanted))


# Copies


def _cat(operator: Operator, make: Make) -> Call:
    shapes, out = [t.shape for t in operator.inputs], operator.outputs[0].shape
    first = shapes[0]
    dim = next((d for d in range(len(out)) if sum(s[d] for s in shapes) == out[d] != first[d]), None)
    if dim is None:
        dim = next(d for d in range(len(out)) if sum(s[d] for s in shapes) == out[d])
    return bound(aten.cat.default, (make.all(operator.inputs), dim))


def _stack(operator: Operator, make: Make) -> Call:
    part, out = operator.inputs[0].shape, operator.outputs[0].shape
    count = len(operator.inputs)
    dim = next(d for d in range(len(out)) if out[d] == count and (*out[:d], *out[d + 1 :]) == part)
    return bound(aten.stack.default, (make.all(operator.inputs), dim))


def _split(operator: Operator, make: Make) -> Call:
    x, parts = operator.inputs[0], [t.shape for t in operator.outputs]
    dim = next(d for d in range(len(x.shape)) if sum(p[d] for p in parts) == x.shape[d])
    return bound(aten.split_with_sizes_copy.default, (make(x), [p[dim] for p in parts], dim))


def _clone(operator: Operator, make: Make) -> Call:
    """A copy to contiguous memory of a tensor with swapped dims, most often the second and third."""
    spec = operator.inputs[0]
    if len(spec.shape) < 2:
        return bound(aten.clone.default, (make(spec),))
    one, other = (1, 2) if len(spec.shape) > 2 else (0, 1)
    x = make.transposed(spec, one, other)
    return lambda: aten.clone.default(x, memory_format=torch.contiguous_format)


def _cast(operator: Operator, make: Make) -> Call:
    x, dtype = make(operator.inputs[0]), make.dtype(operator.outputs[0].dtype)
    return lambda: aten._to_copy.default(x, dtype=dtype)


def _copy_to(operator: Operator, make: Make) -> Call:
    return bound(aten.copy_.default, (make(operator.outputs[0]), make(operator.inputs[0])))


def _pad(operator: Operator, make: Make) -> Call:
    """Padding on both sides: half of the difference before, the rest after; negative if the result is smaller."""
    x, out = operator.inputs[0], operator.outputs[0]
    pads: list[int] = []
    for size, result in zip(reversed(x.shape), reversed(out.shape), strict=True):
        before = (result - size) // 2
        pads += [before, result - size - before]
    return bound(aten.constant_pad_nd.default, (make(x), pads, 0))


def _filled(operator: Operator, make: Make) -> Call:
    out = operator.outputs[0]
    size, dtype = list(out.shape), make.dtype(out.dtype)
    if operator.name.startswith("new_"):
        x = make(operator.inputs[0])
        function = getattr(aten, operator.name).default
        value = (1,) if operator.name == "new_full" else ()
        return lambda: function(x, size, *value, dtype=dtype)
    function = getattr(torch, operator.name)
    if operator.name == "full":
        return lambda: function(size, 1, dtype=dtype, device=make.device)
    return lambda: function(size, dtype=dtype, device=make.device)


def _selected(operator: Operator, make: Make) -> Call:
    grad, out = operator.inputs[0], operator.outputs[0]
    dim = next(d for d in range(len(out.shape)) if (*out.shape[:d], *out.shape[d + 1 :]) == grad.shape)
    return bound(aten.select_backward.default, (make(grad), list(out.shape), dim, 0))


def _sliced(operator: Operator, make: Make) -> Call:
    grad, out = operator.inputs[0], operator.outputs[0]
    dim = _looked_up_dim(out.shape, grad.shape)
    size, part = (out.shape[dim], grad.shape[dim]) if out.shape else (1, 1)
    step = 2 if size == 2 * part and operator.attributes.get("module") == "PaddedShortcut" else 1
    end = size if step == 2 else part
    return bound(aten.slice_backward.default, (make(grad), list(out.shape), dim, 0, end, step))


def _repeat(operator: Operator, make: Make) -> Call:
    x, out = operator.inputs[0].shape, operator.outputs[0].shape
    padded = (1,) * (len(out) - len(x)) + tuple(x)
    return bound(aten.repeat.default, (make(operator.inputs[0]), [o // s for o, s in zip(out, padded, strict=True)]))


MOVING: Final[dict[str, Builder]] = {
    **named(_reduction, "sum mean amax amin argmax argmin linalg_vector_norm"),
    **named(_cumulative, "cumsum cumprod"),
    **named(_embedding, "embedding embedding_dense_backward"),
    **named(_gather, "gather scatter scatter_ scatter_add scatter_add_"),
    **named(_rows, "index_select index_add"),
    **named(_index, "index _unsafe_index index_put index_put_ _unsafe_index_put"),
    **named(_sort, "sort argsort topk"),
    **named(_search, "searchsorted"),
    **named(_cat, "cat"),
    **named(_stack, "stack"),
    **named(_split, "split_with_sizes_copy"),
    **named(_clone, "clone contiguous"),
    **named(_cast, "_to_copy"),
    **named(_copy_to, "copy_"),
    **named(_pad, "constant_pad_nd"),
    **named(_filled, "zeros ones full new_zeros new_ones new_full"),
    **named(_selected, "select_backward"),
    **named(_sliced, "slice_backward"),
    **named(_repeat, "repeat"),
}
