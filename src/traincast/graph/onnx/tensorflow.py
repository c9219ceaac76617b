"""Recognises what TensorFlow's exporter (tf2onnx) takes apart: norms, dropouts, GELU, biases and look-ups of Keras.

Keras computes norms from their moments, adds biases behind a change of shape, and draws dropouts by a generator of its
own. Its images have their channels last, and the exporter turns them for each convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from traincast.graph.onnx.index import OnnxIndex
from traincast.graph.onnx.network import OnnxNode

_RANDOM: Final = ("StatelessRandomUniformV2", "RandomUniform", "RandomUniformLike")
_MEANS: Final = ("ReduceMean", "GlobalAveragePool")
_VIEWS: Final = ("Squeeze", "Reshape", "Transpose", "Unsqueeze", "Neg", "Identity")


def index_of_row(graph: OnnxIndex, node: OnnxNode) -> OnnxNode | None:
    """``x`` or, below zero, ``x`` plus the number of rows: the row that an embedding looks up."""
    if node.op not in ("Add", "Where") or not _feeds_only(graph, node.outputs[0], "Gather"):
        return None
    if node.op == "Where":
        moved, data = (graph.maker(node.inputs[1], "Add"), node.inputs[2])
        if moved is not None and data in moved.inputs and graph.maker(node.inputs[0], "Less"):
            return replace(node, op="Identity", inputs=(data,), attributes={})
        return None
    for one, other in (node.inputs, node.inputs[::-1]):
        kept, changed = graph.maker(one, "Mul"), graph.maker(other, "Mul")
        if kept is None or changed is None:
            continue
        data = next((n for n in kept.inputs if graph.maker(n, "Cast") is None), "")
        moved = next((m for n in changed.inputs if (m := graph.maker(n, "Add"))), None)
        if data and moved is not None and data in moved.inputs:
            return replace(node, op="Identity", inputs=(data,), attributes={})
    return None


def dropout(graph: OnnxIndex, node: OnnxNode) -> OnnxNode | None:
    """``x`` scaled where a random number is large enough, else zero."""
    scaled, drawn = "", None
    if node.op == "Where":
        scaled, drawn = node.inputs[1], graph.maker(node.inputs[0], "GreaterOrEqual", "Greater")
    elif node.op == "Add":
        for name in node.inputs:
            product = graph.maker(name, "Mul")
            for mask, data in (product.inputs, product.inputs[::-1]) if product else ():
                cast = graph.maker(mask, "Cast")
                found = graph.maker(cast.inputs[0], "GreaterOrEqual", "Greater") if cast else None
                if found is not None:
                    scaled, drawn = data, found
    if drawn is None or graph.maker(drawn.inputs[0], *_RANDOM) is None:
        return None
    ratio = graph.source.constants.get(drawn.inputs[1])
    product = graph.maker(scaled, "Mul")
    parts = graph.split_by(product, graph.is_host) if product else None
    if ratio is None or parts is None:
        return None
    return replace(node, op="Dropout", inputs=(parts[0],), attributes={"ratio": float(ratio.ravel()[0])})


def gelu_of_erfc(graph: OnnxIndex, node: OnnxNode) -> OnnxNode | None:
    """``x / 2 · erfc(-x / √2)``."""
    if node.op != "Mul":
        return None
    for half, erfc in (node.inputs, node.inputs[::-1]):
        inner, halved = graph.maker(erfc, "Erfc"), graph.maker(half, "Mul", "Div")
        scaled = graph.maker(inner.inputs[0], "Mul", "Div") if inner else None
        parts = graph.split_by(scaled, graph.is_host) if scaled else None
        negative = graph.maker(parts[0], "Neg") if parts else None
        if negative is not None and halved is not None and negative.inputs[0] in halved.inputs:
            return replace(node, op="Gelu", inputs=negative.inputs, attributes={})
    return None


def bias_behind_reshape(graph: OnnxIndex, node: OnnxNode) -> OnnxNode | None:
    """A product with weights, another shape, and a bias with one element per column of the weights."""
    for data, bias in (node.inputs, node.inputs[::-1]) if node.op == "Add" else ():
        shaped = graph.maker(data, "Reshape")
        product = graph.maker(shaped.inputs[0], "MatMul") if shaped else None
        matrix = graph.source.weights.get(product.inputs[1]) if product else None
        added = graph.source.weights.get(bias)
        if shaped is None or product is None or matrix is None or added is None or len(shaped.inputs) < 2:
            continue
        if (
            len(matrix.shape) == 2
            and int(np.prod(added.shape)) == matrix.shape[1]
            and graph.only_user(data, "Add") is not None
            and graph.only_user(shaped.inputs[0], "Reshape") is not None
        ):
            inputs = (*product.inputs, bias, shaped.inputs[1])
            return replace(product, op="Linear", inputs=inputs, outputs=node.outputs)
    return None


class _Norm(NamedTuple):
    """``data · factor + shift``, with mean and variance taken of ``source``.

    ``source`` is ``data`` itself, or the tensor that the transpose ``turn`` turns into ``data``.
    """

    source: str
    mean: OnnxNode
    turn: OnnxNode | None
    weight: str
    bias: str


def norm_of_moments(graph: OnnxIndex, node: OnnxNode) -> OnnxNode | None:
    """A batch norm or layer norm, written as ``x · (w / deviation) + (b - mean · (w / deviation))``."""
    found = _norm(graph, node)
    if found is None:
        return None
    axes = _axes(graph, found.mean)
    if axes is None or (axes and 0 not in axes):  # the mean of all but the first dims, or of the last
        if found.turn is not None or (axes is not None and len(axes) != 1):
            return None
        inputs = (found.source, found.weight, found.bias)
        return replace(node, op="LayerNormalization", inputs=inputs, attributes={"axis": -1})
    channel = next((n for n in range(len(axes) + 1) if n not in axes), 1)
    attributes: dict[str, object] = {"channel": channel}
    if found.turn is not None:
        attributes["turn"] = list(found.turn.attributes.get("perm", []))
    return replace(
        node, op="BatchNormalization", inputs=(found.source, found.weight, found.bias), attributes=attributes
    )


def _norm(graph: OnnxIndex, node: OnnxNode) -> _Norm | None:
    for one, other in (node.inputs, node.inputs[::-1]) if node.op == "Add" else ():
        product = graph.maker(one, "Mul")
        for data, factor in (product.inputs, product.inputs[::-1]) if product else ():
            weight = _factor(graph, factor)
            shift = _shift(graph, other, factor) if weight else None
            if weight is None or shift is None:
                continue
            bias, mean = shift
            turn = graph.maker(data, "Transpose")
            source = mean.inputs[0]
            if data == source:
                return _Norm(source, mean, None, weight, bias)
            if turn is not None and turn.inputs[0] == source:
                return _Norm(source, mean, turn, weight, bias)
    return None


def _factor(graph: OnnxIndex, name: str) -> str | None:
    """The weight in ``weight / √(variance + ε)``."""
    product = graph.maker(name, "Mul")
    for inverse, weight in (product.inputs, product.inputs[::-1]) if product else ():
        reciprocal = graph.maker(inverse, "Reciprocal")
        if weight in graph.source.weights and reciprocal and graph.maker(reciprocal.inputs[0], "Sqrt"):
            return weight
    return None


def _shift(graph: OnnxIndex, name: str, factor: str) -> tuple[str, OnnxNode] | None:
    """Bias and mean in ``bias - mean · factor`` or ``bias + (-mean) · factor``."""
    added = graph.maker(name, "Sub", "Add")
    for bias, moved in (added.inputs, added.inputs[::-1]) if added else ():
        product = graph.maker(moved, "Mul")
        if bias not in graph.source.weights or product is None or factor not in product.inputs:
            continue
        mean = next((n for n in product.inputs if n != factor), "")
        while (view := graph.maker(mean, *_VIEWS)) is not None:
            mean = view.inputs[0]
        made = graph.maker(mean, *_MEANS)
        if made is not None:
            return bias, made
    return None


def _axes(graph: OnnxIndex, mean: OnnxNode) -> Sequence[int] | None:
    """The dims that a mean is taken over; ``None`` for the last ones (a pool over all places of a channel)."""
    if mean.op == "GlobalAveragePool":
        return None
    given = graph.source.constants.get(mean.inputs[1]) if len(mean.inputs) > 1 else None
    axes = mean.attributes.get("axes", ()) if given is None else given.ravel()
    return [int(axis) for axis in axes]


def _feeds_only(graph: OnnxIndex, name: str, op: str) -> bool:
    """Whether all users of ``name`` are ``op``, reached through casts at most."""
    users = graph.users.get(name, [])
    return bool(users) and all(
        user.op == op or (user.op == "Cast" and _feeds_only(graph, user.outputs[0], op)) for user in users
    )


TENSORFLOW_PATTERNS: Final[tuple[Callable[[OnnxIndex, OnnxNode], OnnxNode | None], ...]] = (
    index_of_row,
    dropout,
    gelu_of_erfc,
    bias_behind_reshape,
    norm_of_moments,
)
"""Each returns the node that stands for a group whose last node it is given."""
