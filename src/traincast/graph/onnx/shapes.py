"""Operators that view, move, pick or make elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traincast.graph.onnx.values import Call, UnsupportedError, as_tensor

if TYPE_CHECKING:
    import torch


def _shape(call: Call) -> np.ndarray:
    shape = np.array(tuple(int(s) for s in call.tensor(0).shape), dtype=np.int64)
    return shape[int(call.get("start", 0)) : call.get("end", None)]


def _size(call: Call) -> np.ndarray:
    return np.array(call.tensor(0).numel(), dtype=np.int64)


def reshaped(call: Call) -> torch.Tensor:
    """The first input in the shape that the second gives."""
    data = call.tensor(0)
    wanted = call.numbers(1) if call.has(1) else [int(s) for s in call.get("shape", [])]
    if not call.get("allowzero", 0):
        wanted = [int(data.shape[n]) if size == 0 else size for n, size in enumerate(wanted)]
    return data.reshape(_rebatched(call, data, wanted))


def _rebatched(call: Call, data: torch.Tensor, wanted: list[int]) -> list[int]:
    """``wanted`` for the traced batch: a file with a fixed batch has that batch in its shapes."""
    shape = [int(size) for size in data.shape]
    grown = next((n for n, size in enumerate(shape) if size and size % call.batch == 0), None)
    if call.fixed is None or grown is None or any(size and size % call.batch == 0 for size in wanted):
        return wanted
    shape[grown] = shape[grown] // call.batch * call.fixed
    if -1 in wanted:
        rest = abs(int(np.prod(wanted)))
        wanted = [int(np.prod(shape)) // rest if size == -1 else size for size in wanted]
    before, prefix = int(np.prod(shape[:grown])), 1
    for n, size in enumerate(wanted):
        if prefix == before and size % call.fixed == 0 and (size > 1 or call.fixed == 1):
            return [*wanted[:n], size // call.fixed * call.batch, *wanted[n + 1 :]]
        prefix *= size
    raise UnsupportedError(f"its shape {wanted} holds the batch of {call.fixed}: export with an open batch dim")


def _flatten(call: Call) -> torch.Tensor:
    data = call.tensor(0)
    axis = int(call.get("axis", 1)) % (data.ndim + 1)
    return data.reshape(int(np.prod(data.shape[:axis], dtype=int)), -1)


def _transpose(call: Call) -> torch.Tensor:
    data = call.tensor(0)
    return data.permute(tuple(call.get("perm", tuple(reversed(range(data.ndim))))))


def _squeeze(call: Call) -> torch.Tensor:
    data, axes = call.tensor(0), call.axes()
    return data.squeeze(tuple(axes)) if axes is not None else data.squeeze()


def _unsqueeze(call: Call) -> torch.Tensor:
    data = call.tensor(0)
    axes = call.axes() or []
    for axis in sorted(a % (data.ndim + len(axes)) for a in axes):
        data = data.unsqueeze(axis)
    return data


def _expand(call: Call) -> torch.Tensor:
    data, wanted = call.tensor(0), call.numbers(1)
    offset = len(wanted) - data.ndim
    for n, size in enumerate(data.shape):
        if n + offset >= 0 and size != 1:
            wanted[n + offset] = -1
    if offset < 0:
        wanted = [-1] * -offset + wanted
    return data.expand(wanted)


def _concat(call: Call) -> torch.Tensor:
    import torch

    parts = [call.tensor(i) for i in range(len(call))]
    whole = max(parts, key=lambda t: t.numel())
    if call.fixed is not None:  # a constant of the fixed batch beside tensors of the traced one
        axis = int(call.get("axis", 0)) % whole.ndim
        shapes = [[*whole.shape[:axis], p.shape[axis], *whole.shape[axis + 1 :]] for p in parts]
        parts = [p.expand(s) for p, s in zip(parts, shapes, strict=True)]
    return torch.cat(parts, dim=int(call.get("axis", 0)))


def _stack(call: Call) -> torch.Tensor:
    """The turns of a loop, along a new dim or one that they have."""
    import torch

    parts = [call.tensor(i) for i in range(len(call))]
    axis = int(call.get("axis", 0))
    return torch.stack(parts, dim=axis) if call.get("new_axis", 0) else torch.cat(parts, dim=axis)


def _reverse(call: Call) -> torch.Tensor:
    return call.tensor(0).flip(int(call.get("time_axis", 0)))


def _split(call: Call) -> Any:
    data, axis = call.tensor(0), int(call.get("axis", 0))
    sizes = call.numbers(1) if call.has(1) else call.get("split", None)
    if sizes is None:
        count = len(call.node.outputs)
        sizes = -(-int(data.shape[axis]) // count)
    return data.split(sizes if isinstance(sizes, int) else [int(s) for s in sizes], dim=axis)


def _slices(call: Call) -> Any:
    """Several slices of one tensor: a split if they follow each other and are all of it."""
    data = call.tensor(0)
    parts = [_cuts(call, 4 * n, own) for n, own in enumerate(call.get("each", []))]
    if all(len(cuts) == 1 and cuts[0][0] == parts[0][0][0] and cuts[0][3] == 1 for cuts in parts):
        axis = parts[0][0][0]
        order = sorted(range(len(parts)), key=lambda n: parts[n][0][1])
        bounds = [parts[n][0][1:3] for n in order]
        behind = [*(start for start, _ in bounds[1:]), int(data.shape[axis])]
        if bounds[0][0] == 0 and [end for _, end in bounds] == behind:
            made = dict(zip(order, data.split([end - start for start, end in bounds], dim=axis), strict=True))
            return tuple(made[n] for n in range(len(parts)))
    return tuple(_cut(data, cuts) for cuts in parts)


def _slice(call: Call) -> torch.Tensor:
    return _cut(call.tensor(0), _cuts(call, 0, call.node.attributes))


def _cuts(call: Call, offset: int, own: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """``(axis, start, end, step)`` of each cut that takes less than the whole dim."""
    data = call.tensor(0)
    starts = call.numbers(offset + 1) if call.has(offset + 1) else [int(v) for v in own.get("starts", [])]
    ends = call.numbers(offset + 2) if call.has(offset + 2) else [int(v) for v in own.get("ends", [])]
    axes = call.numbers(offset + 3) if call.has(offset + 3) else list(own.get("axes", range(len(starts))))
    steps = call.numbers(offset + 4) if call.has(offset + 4) else [1] * len(starts)
    cuts = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = int(data.shape[axis])
        begin, stop, _ = slice(start, end).indices(size) if step > 0 else (0, size, 1)
        if (begin, stop, step) != (0, size, 1):
            cuts.append((axis % data.ndim, begin, stop, step))
    return cuts


def _cut(data: torch.Tensor, cuts: list[tuple[int, int, int, int]]) -> torch.Tensor:
    for axis, start, end, step in cuts:
        data = data.flip(axis) if step < 0 else data[(slice(None),) * axis + (slice(start, end, step),)]
    return data


def _gather(call: Call) -> torch.Tensor:
    """One known index is a view; rows of a matrix are an embedding; the rest is an index."""
    import torch

    data, axis = call.tensor(0), int(call.get("axis", 0))
    index = call.values[1]
    if isinstance(index, np.ndarray) and index.size == 1:
        found = data.select(axis, int(index.ravel()[0]))
        return found if index.ndim == 0 else found.unsqueeze(axis)
    index = as_tensor(index)
    if axis == 0 and data.ndim == 2 and isinstance(data, torch.nn.Parameter) and index.dtype is torch.int32:
        return torch.nn.functional.embedding(index, data)
    index = index.long()
    if axis == 0 and data.ndim == 2 and isinstance(data, torch.nn.Parameter):
        return torch.nn.functional.embedding(index, data)
    flat = data.index_select(axis, index.reshape(-1))
    return flat.reshape(*data.shape[:axis], *index.shape, *data.shape[axis + 1 :] if axis != -1 else ())


def _gather_elements(call: Call) -> torch.Tensor:
    return call.tensor(0).gather(int(call.get("axis", 0)), call.tensor(1).long())


def _gather_nd(call: Call) -> torch.Tensor:
    if int(call.get("batch_dims", 0)):
        raise UnsupportedError("it gathers by batch_dims")
    data, index = call.tensor(0), call.tensor(1).long()
    return data[tuple(index.unbind(-1))]


def _scatter_elements(call: Call) -> torch.Tensor:
    return call.tensor(0).scatter(int(call.get("axis", 0)), call.tensor(1).long(), call.tensor(2))


def _scatter_nd(call: Call) -> torch.Tensor:
    import torch

    return torch.index_put(call.tensor(0), tuple(call.tensor(1).long().unbind(-1)), call.tensor(2))


def _pad(call: Call) -> torch.Tensor:
    import torch

    data = call.tensor(0)
    pads = call.numbers(1) if call.has(1) else [int(p) for p in call.get("pads", [])]
    axes = [a % data.ndim for a in call.numbers(3)] if call.has(3) else list(range(data.ndim))
    both = {a: (pads[n], pads[len(axes) + n]) for n, a in enumerate(axes)}
    pairs = [p for axis in reversed(range(data.ndim)) for p in both.get(axis, (0, 0))]
    mode = {"edge": "replicate", "wrap": "circular"}.get(call.get("mode", "constant"), call.get("mode", "constant"))
    while mode != "constant" and pairs[-2:] == [0, 0]:
        del pairs[-2:]
    return torch.nn.functional.pad(data, pairs, mode=mode) if any(pairs) else data


def _constant_of_shape(call: Call) -> torch.Tensor:
    import torch

    return torch.zeros(call.numbers(0))


def _range(call: Call) -> torch.Tensor:
    import torch

    return torch.arange(*(call.number(i) for i in range(3)))


def _trilu(call: Call) -> torch.Tensor:
    diagonal = call.numbers(1)[0] if call.has(1) else 0
    return call.tensor(0).triu(diagonal) if call.get("upper", 1) else call.tensor(0).tril(diagonal)


def _one_hot(call: Call) -> torch.Tensor:
    import torch

    return torch.nn.functional.one_hot(call.tensor(0).long(), call.numbers(1)[0]).float()


def _space(call: Call) -> torch.Tensor:
    import torch

    run = torch.pixel_shuffle if call.node.op == "DepthToSpace" else torch.pixel_unshuffle
    out: torch.Tensor = run(call.tensor(0), int(call.get("blocksize", 1)))
    return out


def _tile(call: Call) -> torch.Tensor:
    return call.tensor(0).repeat(call.numbers(1))


def _random(call: Call) -> torch.Tensor:
    import torch

    return torch.rand_like(call.tensor(0)) if call.has(0) else torch.rand([int(s) for s in call.get("shape", [])])


def _random_of_shape(call: Call) -> torch.Tensor:
    """TensorFlow's generator, which its exporter leaves as it is: the first input is the shape."""
    import torch

    return torch.rand(call.numbers(0))


def _bernoulli(call: Call) -> torch.Tensor:
    return call.tensor(0).bernoulli()


def _identity(call: Call) -> Any:
    return call.values[0]


SHAPES: Final[dict[str, Callable[[Call], Any]]] = {
    "Shape": _shape,
    "Size": _size,
    "Reshape": reshaped,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Concat": _concat,
    "ConcatFromSequence": _stack,
    "ReverseSequence": _reverse,
    "Split": _split,
    "Slices": _slices,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Pad": _pad,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Trilu": _trilu,
    "OneHot": _one_hot,
    "DepthToSpace": _space,
    "SpaceToDepth": _space,
    "Tile": _tile,
    "RandomUniform": _random,
    "StatelessRandomUniformV2": _random_of_shape,
    "RandomUniformLike": _random,
    "RandomNormal": _random,
    "RandomNormalLike": _random,
    "Bernoulli": _bernoulli,
    "Identity": _identity,
}
"""How each operator of ONNX runs in PyTorch (``Slices`` are those of one tensor)."""
