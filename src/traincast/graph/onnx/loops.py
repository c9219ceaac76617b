"""Loops of an ONNX file: a recurrent cell becomes its layer, and a loop of known length is written out turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from traincast.errors import FileFormatError

if TYPE_CHECKING:
    import onnx

_MOST_TURNS: Final = 4096
_CELLS: Final = {(2, 1, 1): "GRU", (3, 2, 2): "LSTM", (0, 1, 1): "RNN"}
"""Cells by the number of sigmoids, hyperbolic tangents and states."""
_MARK: Final = "~turn"


def without_loops(path: Path, graph: onnx.GraphProto, tensors: dict[str, onnx.TensorProto]) -> list[onnx.NodeProto]:
    """The nodes of ``graph`` with its loops resolved; tensors of their bodies are added to ``tensors``.

    Raises ``FileFormatError`` for a loop whose length depends on data, and for branches.
    """
    lengths = {v.name: _dims(v) for v in (*graph.input, *graph.value_info)}
    nodes: list[onnx.NodeProto] = []
    for number, node in enumerate(graph.node):
        label = f"{path}: node {node.name or number!r} ({node.op_type})"
        if node.op_type == "Loop":
            nodes += _loop(label, node, tensors)
        elif node.op_type == "Scan":
            nodes += _scan(label, node, tensors, lengths)
        elif node.op_type == "If":
            raise FileFormatError(f"{label} chooses a branch by data: export the branch that training runs")
        else:
            nodes.append(node)
    return nodes


def _dims(value: onnx.ValueInfoProto) -> list[int]:
    return [int(d.dim_value) for d in value.type.tensor_type.shape.dim]


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(a.g for a in node.attribute if a.name == "body")


def _loop(label: str, node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto]) -> list[onnx.NodeProto]:
    from onnx import numpy_helper

    body = _body(node)
    layer = _recurrent(node, body)
    if layer is not None:
        return [layer]
    given = tensors.get(node.input[0])
    turns = int(numpy_helper.to_array(given).ravel()[0]) if given is not None else -1
    _check(label, turns)
    states = list(node.input[2:])
    unroll = _Unrolled(node.name or node.output[0], body, tensors)
    for turn in range(turns):
        counter = unroll.known(f"counter{turn}", np.array(turn, dtype=np.int64))
        made = unroll.turn(turn, [counter, node.input[1], *states])
        states = made[1 : 1 + len(states)]
        unroll.keep(made[1 + len(states) :])
    return [*unroll.nodes, *unroll.results(node.output, states, [0] * len(unroll.kept))]


def _scan(
    label: str, node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto], shapes: Mapping[str, Sequence[int]]
) -> list[onnx.NodeProto]:
    from onnx import helper

    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name != "body"}
    count = int(attributes["num_scan_inputs"])
    states, scanned = list(node.input[:-count]), list(node.input[-count:])
    axes = list(attributes.get("scan_input_axes", [0] * count))
    sizes = [s[a] for name, a in zip(scanned, axes, strict=True) if len(s := shapes.get(name, [])) > abs(a)]
    turns = max(sizes, default=-1)
    _check(label, turns)
    unroll = _Unrolled(node.name or node.output[0], _body(node), tensors)
    backwards = list(attributes.get("scan_input_directions", [0] * count))
    for turn in range(turns):
        parts = []
        for n, (name, axis) in enumerate(zip(scanned, axes, strict=True)):
            place = turns - 1 - turn if backwards[n] else turn
            index = unroll.known(f"place{place}", np.array(place, dtype=np.int64))
            parts.append(unroll.add("Gather", [name, index], f"part{n}{_MARK}{turn}", axis=int(axis)))
        made = unroll.turn(turn, [*states, *parts])
        states = made[: len(states)]
        unroll.keep(made[len(states) :])
    axes = list(attributes.get("scan_output_axes", [0] * len(unroll.kept)))
    return [*unroll.nodes, *unroll.results(node.output, states, axes)]


def _check(label: str, turns: int) -> None:
    if turns < 0:
        raise FileFormatError(f"{label} has a length that depends on data: export it with a sequence of fixed length")
    if turns > _MOST_TURNS:
        raise FileFormatError(f"{label} has {turns:,} turns; up to {_MOST_TURNS:,} can be traced")


class _Unrolled:
    """Turns of a loop, one after the other, each with names of its own."""

    def __init__(self, name: str, body: onnx.GraphProto, tensors: dict[str, onnx.TensorProto]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.kept: list[list[str]] = []
        self._name, self._body, self._tensors = name, body, tensors
        self._own = {t.name: f"{name}/{t.name}" for t in body.initializer}
        for tensor in body.initializer:
            self._tensors[self._own[tensor.name]] = tensor

    def known(self, name: str, value: np.ndarray) -> str:
        """A constant of the loop."""
        from onnx import numpy_helper

        whole = f"{self._name}/{name}"
        self._tensors[whole] = numpy_helper.from_array(value)
        return whole

    def add(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        """Add a node and return its output."""
        from onnx import helper

        whole = f"{self._name}/{output}"
        self.nodes.append(helper.make_node(op, inputs, [whole], name=whole, **attributes))
        return whole

    def turn(self, number: int, given: Sequence[str]) -> list[str]:
        """Add one turn of the body, whose inputs are ``given``, and return its outputs."""
        import onnx

        names = {**self._own, **dict(zip((i.name for i in self._body.input), given, strict=True))}
        for node in self._body.node:
            names |= {o: f"{o}{_MARK}{number}" for o in node.output if o}
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = f"{node.name}{_MARK}{number}"
            copy.input[:] = [names.get(i, i) for i in node.input]
            copy.output[:] = [names.get(o, o) for o in node.output]
            self.nodes.append(copy)
        return [names.get(o.name, o.name) for o in self._body.output]

    def keep(self, outputs: Sequence[str]) -> None:
        """Remember the outputs of a turn that the loop stacks."""
        self.kept = self.kept or [[] for _ in outputs]
        for stack, name in zip(self.kept, outputs, strict=True):
            stack.append(name)

    def results(self, outputs: Sequence[str], states: Sequence[str], axes: Sequence[int]) -> Iterator[onnx.NodeProto]:
        """Nodes that give the loop's outputs their names: the last states, then what was stacked along ``axes``."""
        from onnx import helper

        for name, state in zip(outputs, states, strict=False):
            if name:
                yield helper.make_node("Identity", [state], [name], name=f"{self._name}/{name}")
        for name, stack, axis in zip(outputs[len(states) :], self.kept, axes, strict=False):
            if name:
                yield helper.make_node("ConcatFromSequence", stack, [name], name=name, axis=int(axis), new_axis=1)


def _recurrent(node: onnx.NodeProto, body: onnx.GraphProto) -> onnx.NodeProto | None:
    """The layer that a loop is if its body is a recurrent cell: a product of the turn's input, and one of the state."""
    from onnx import helper

    count = Counter(n.op_type for n in body.node)
    outer = dict(zip((i.name for i in body.input), ("", "", *node.input[2:]), strict=True))
    makers = {o: n for n in body.node for o in n.output}
    products = [n for n in body.node if n.op_type in ("MatMul", "Gemm")]
    changed = [
        n for n in range(2, len(body.input)) if body.output[n - 1].name not in (body.input[n].name, "")
    ]  # states and the counter of the program
    if len(products) != 2 or count["Gather"] != 1 or len(node.output) <= len(body.input) - 2:
        return None
    read = next((p for p in products if _gathers(makers.get(p.input[0]))), None)
    kept = next((p for p in products if p is not read), None)
    if read is None or kept is None or kept.input[0] not in outer:
        return None
    counter = makers[read.input[0]].input[1]
    states = [n for n in changed if body.input[n].name != counter]
    cell = _CELLS.get((count["Sigmoid"], count["Tanh"], len(states)))
    used = [name for n in body.node for name in n.input]
    biases = [
        outer[i.name]
        for i in body.input
        if i.name in used and outer[i.name] and i.name not in (*kept.input[:2], *read.input[:2], counter)
    ]
    biases = [b for b in biases if b not in [node.input[n] for n in states]]
    if cell is None or len(biases) > 1:
        return None
    data = makers[read.input[0]].input[0]
    weights = [outer.get(name, name) for name in (read.input[1], kept.input[1])]
    stacked = node.output[len(body.input) - 2]
    last = [node.output[n - 2] for n in states]
    return helper.make_node(
        "RecurrentLayer",
        [outer.get(data, data), *weights, *biases],
        [stacked, *last],
        name=node.name,
        cell=cell,
        turned=1,
    )


def _gathers(node: onnx.NodeProto | None) -> bool:
    return node is not None and node.op_type == "Gather"
