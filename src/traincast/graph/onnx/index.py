"""Who makes and who uses each value of a network, and replacing nodes by joined ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from traincast.graph.onnx.network import OnnxNetwork, OnnxNode

_SHAPES: Final = frozenset({"Shape", "Size"})


class OnnxIndex:
    """Nodes with who makes and who uses each value."""

    def __init__(self, network: OnnxNetwork) -> None:
        self.source = network
        self.nodes: list[OnnxNode] = list(network.nodes)
        self.index()

    def network(self) -> OnnxNetwork:
        """The network, without nodes that no output needs."""
        return replace(self.source, nodes=tuple(self.nodes))

    def apply(self, match: object) -> None:
        """Replace every node for which ``match`` returns another one, then drop what is no longer used."""
        assert callable(match)
        for number, node in enumerate(self.nodes):
            joined = match(node)
            if joined is not None:
                self.nodes[number] = joined
                for name in joined.outputs:
                    self.makers[name] = joined
        needed = set(self.source.outputs)
        kept = []
        for node in reversed(self.nodes):
            if any(name in needed for name in node.outputs):
                kept.append(node)
                needed.update(node.inputs)
        self.nodes = kept[::-1]
        self.index()

    def index(self) -> None:
        """Find makers and users of all values anew."""
        self.makers = {name: node for node in self.nodes for name in node.outputs if name}
        self.users: dict[str, list[OnnxNode]] = {}
        self._hosted: dict[str, bool] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                self.users.setdefault(name, []).append(node)

    def maker(self, name: str, *ops: str) -> OnnxNode | None:
        """The node that makes ``name``, if it is one of ``ops``."""
        node = self.makers.get(name)
        return node if node is not None and node.op in ops else None

    def only_user(self, name: str, *ops: str) -> OnnxNode | None:
        """The node that uses ``name``, if it is the only one and one of ``ops``."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and users[0].op in ops and name not in self.source.outputs else None

    def is_weight(self, name: str, dims: int) -> bool:
        """Whether ``name`` is a trained tensor of ``dims`` dims."""
        weight = self.source.weights.get(name)
        return weight is not None and weight.trainable and len(weight.shape) == dims

    def is_host(self, name: str) -> bool:
        """Whether a value follows from constants and shapes alone."""
        if name not in self._hosted:
            node = self.makers.get(name)
            self._hosted[name] = name in self.source.constants or (
                node is not None and (node.op in _SHAPES or all(self.is_host(i) for i in _sources(node)))
            )
        return self._hosted[name]

    def split_by(self, node: OnnxNode, test: object) -> tuple[str, str] | None:
        """The inputs of a node of two inputs, as (other, the one that passes ``test``)."""
        assert callable(test)
        if len(node.inputs) == 2:
            a, b = node.inputs
            if test(b):
                return a, b
            if test(a):
                return b, a
        return None


def _sources(node: OnnxNode) -> tuple[str, ...]:
    """The inputs that the value of a node follows from."""
    return node.inputs[:1] if node.op == "CastLike" else tuple(name for name in node.inputs if name)
