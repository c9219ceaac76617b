"""Leaves casts between floating-point formats out, which files in half precision have amid their layers.

A graph is captured in fp32, and the precision is chosen with each forecast. Left in, they would hide products with
their biases and attention from :mod:`traincast.graph.onnx.rewrite`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traincast.graph.onnx.network import OnnxNetwork, OnnxNode

_FLOATS: Final = frozenset({1, 10, 11, 16})
"""The numbers that ONNX gives to fp32, fp16, fp64 and bf16."""
_LOOPS: Final = frozenset({"If", "Loop", "Scan"})
_NOT_FLOATS: Final = frozenset(
    "Shape Size ArgMax ArgMin NonZero Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf "
    "ConstantOfShape Range OneHot EyeLike".split()
)
"""Operators whose results are whole numbers or truths, or may be."""


def without_casts(network: OnnxNetwork) -> OnnxNetwork:
    """``network`` without casts of what certainly is floating-point to another such format.

    A network with loops stays as it is, since their bodies may name the results of casts.
    """
    if any(node.op in _LOOPS for node in network.nodes):
        return network
    floats = set(network.weights)
    floats |= {name for name, value in network.constants.items() if value.dtype.kind not in "iub"}
    floats |= {given.name for given in network.inputs if given.dtype.startswith("float")}
    same: dict[str, str] = {}
    nodes: list[OnnxNode] = []
    for node in network.nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        between = node.op == "Cast" and inputs[0] in floats and node.attributes.get("to") in _FLOATS
        if between and node.outputs[0] not in network.outputs:
            same[node.outputs[0]] = inputs[0]
            continue
        nodes.append(replace(node, inputs=inputs))
        floats.update(_floats_of(nodes[-1], floats))
    return replace(network, nodes=tuple(nodes))


def _floats_of(node: OnnxNode, floats: set[str]) -> tuple[str, ...]:
    """The results of ``node`` that certainly are floating-point."""
    if node.op == "Cast":
        return node.outputs[:1] if node.attributes.get("to") in _FLOATS else ()
    source = node.inputs[1] if node.op == "Where" else node.inputs[0] if node.inputs else ""
    if node.op in _NOT_FLOATS or source not in floats:
        return ()
    return node.outputs if node.op == "Split" else node.outputs[:1]
