"""Takes back what the optimizer of PyTorch's newer exporter did: batch norms in convolutions, stacked weights.

It merges batch norms into convolutions, also of networks that are exported for training, but notes at the convolution
that it was made from a batch norm. It stores the weights of both directions of a recurrent layer in one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traincast.graph.onnx.network import OnnxNetwork, OnnxNode, Weight

_MERGED: Final = "batch_norm"
"""What the PyTorch call contains that a convolution with a merged batch norm was made from."""
_RECURRENT: Final = ("LSTM", "GRU", "RNN")


def without_optimizations(network: OnnxNetwork) -> tuple[OnnxNetwork, int]:
    """Return ``network`` as it was before the exporter's optimizer, and the number of batch norms that came back."""
    if not network.by_pytorch:
        return network, 0
    weights = dict(network.weights)
    nodes: list[OnnxNode] = []
    norms = 0
    for node in network.nodes:
        if node.op == "Conv" and _MERGED in node.origin and node.inputs[1] in weights:
            nodes += _with_norm(node, weights)
            norms += 1
        else:
            nodes.append(_by_direction(node, weights))
    used = {name for node in nodes for name in node.inputs}
    weights = {name: weight for name, weight in weights.items() if name in used}
    return replace(network, nodes=tuple(nodes), weights=weights), norms


def _with_norm(node: OnnxNode, weights: dict[str, Weight]) -> Iterator[OnnxNode]:
    """Yield a convolution and the batch norm behind it; a bias is taken for that of the batch norm."""
    made = f"{node.outputs[0]}~convolved"
    names = [f"{node.outputs[0]}~{part}" for part in ("scale", "bias", "mean", "variance")]
    channels = weights[node.inputs[1]].shape[:1]
    for name, trainable in zip(names, (True, True, False, False), strict=True):
        weights[name] = Weight(shape=channels, trainable=trainable)
    yield replace(node, inputs=node.inputs[:2], outputs=(made,), origin="")
    yield replace(
        node,
        op="BatchNormalization",
        name=f"{node.name}~norm",
        inputs=(made, *names),
        outputs=node.outputs,
        attributes={},
        origin="",
    )


def _by_direction(node: OnnxNode, weights: dict[str, Weight]) -> OnnxNode:
    """Return a recurrent layer with weights of its own for each direction, and two vectors instead of one bias."""
    stored = [weights.get(name) for name in node.inputs[1:4] if name]
    if node.op not in _RECURRENT or node.attributes.get("layout", 0) or len(stored) < 2 or None in stored:
        return node
    names = [name for name in node.inputs[1:4] if name]
    directions = weights[names[0]].shape[0]
    inputs: list[str] = []
    for direction in range(directions):
        for name in names:
            weight = weights[name]
            halves = 2 if len(weight.shape) == 2 else 1
            shape = (weight.shape[1] // halves, *weight.shape[2:])
            for half in range(halves):
                inputs.append(f"{name}~{direction}{half}")
                weights[inputs[-1]] = Weight(shape=shape, trainable=weight.trainable)
    return replace(
        node,
        op="RecurrentLayer",
        inputs=(node.inputs[0], *inputs),
        attributes={"cell": node.op, "directions": directions, "biases": len(names) > 2},
    )
