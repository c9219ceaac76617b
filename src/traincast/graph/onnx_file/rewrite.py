"""Recognises what exporters take apart: a linear layer, an activation, a norm or a fused attention in several nodes.

A training framework runs each of these as one kernel. Attention is joined only if it is written the way PyTorch's
exporters write its fused attention (queries and keys are scaled before their product); otherwise it stays as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from traincast.graph.onnx_file.network import OnnxNetwork, OnnxNode, Weight

_SHAPES: Final = frozenset({"Shape", "Size"})
_IN_PLACE: Final = frozenset({"Clip", "Elu", "HardSwish", "Swish"})
_GATES: Final = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}


def rewritten(network: OnnxNetwork) -> OnnxNetwork:
    """``network`` with its kernels whole again, equal tensors of different layers told apart, unused nodes left out."""
    patterns = _Patterns(_apart(network))
    for match in (
        patterns.linear,
        patterns.gelu,
        patterns.gate,
        patterns.layer_norm,
        patterns.group_norm,
        patterns.attention,
        patterns.in_place,
        patterns.recurrent,
    ):
        patterns.apply(match)
    patterns.join_slices()
    return patterns.network()


def _apart(network: OnnxNetwork) -> OnnxNetwork:
    """Gives each node its own vector of weights where an exporter stored equal values of several layers once.

    Layers that are really shared also share their matrices, which exporters do not merge by value after training: if
    a matrix is used as often as the vector, the vector stays shared.
    """
    uses = Counter(name for node in network.nodes for name in node.inputs)
    shared = {uses[name] for name, w in network.weights.items() if len(w.shape) > 1 and uses[name] > 1}
    merged = {
        name
        for name, weight in network.weights.items()
        if len(weight.shape) == 1 and uses[name] > 1 and uses[name] not in shared
    }
    weights: dict[str, Weight] = dict(network.weights)
    seen: Counter[str] = Counter()
    nodes = []
    for node in network.nodes:
        inputs = list(node.inputs)
        for position, name in enumerate(inputs):
            if name in merged:
                seen[name] += 1
                if seen[name] > 1:
                    inputs[position] = f"{name}~{seen[name]}"
                    weights[inputs[position]] = network.weights[name]
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(network, nodes=tuple(nodes), weights=weights)


class _Patterns:
    """Nodes with who makes and who uses each value; a pattern turns its last node into the joined one."""

    def __init__(self, network: OnnxNetwork) -> None:
        self._network = network
        self._nodes: list[OnnxNode] = list(network.nodes)
        self._index()

    def network(self) -> OnnxNetwork:
        """The network, without nodes that no output needs."""
        return replace(self._network, nodes=tuple(self._nodes))

    def apply(self, match: object) -> None:
        """Replace every node for which ``match`` returns another one, then drop what is no longer used."""
        assert callable(match)
        for number, node in enumerate(self._nodes):
            joined = match(node)
            if joined is not None:
                self._nodes[number] = joined
                for name in joined.outputs:
                    self._makers[name] = joined
        needed = set(self._network.outputs)
        kept = []
        for node in reversed(self._nodes):
            if any(name in needed for name in node.outputs):
                kept.append(node)
                needed.update(node.inputs)
        self._nodes = kept[::-1]
        self._index()

    def _index(self) -> None:
        self._makers = {name: node for node in self._nodes for name in node.outputs if name}
        self._users: dict[str, list[OnnxNode]] = {}
        self._hosted: dict[str, bool] = {}
        for node in self._nodes:
            for name in dict.fromkeys(node.inputs):
                self._users.setdefault(name, []).append(node)

    def _maker(self, name: str, *ops: str) -> OnnxNode | None:
        """The node that makes ``name``, if it is one of ``ops``."""
        node = self._makers.get(name)
        return node if node is not None and node.op in ops else None

    def _only_user(self, name: str, *ops: str) -> OnnxNode | None:
        users = self._users.get(name, [])
        return users[0] if len(users) == 1 and users[0].op in ops and name not in self._network.outputs else None

    def _is_weight(self, name: str, dims: int) -> bool:
        weight = self._network.weights.get(name)
        return weight is not None and weight.trainable and len(weight.shape) == dims

    def _is_host(self, name: str) -> bool:
        """Whether a value follows from constants and shapes alone."""
        if name not in self._hosted:
            node = self._makers.get(name)
            self._hosted[name] = name in self._network.constants or (
                node is not None and (node.op in _SHAPES or all(self._is_host(i) for i in _sources(node)))
            )
        return self._hosted[name]

    def _split_by(self, node: OnnxNode, test: object) -> tuple[str, str] | None:
        """The inputs of a node of two inputs, as (other, the one that passes ``test``)."""
        assert callable(test)
        if len(node.inputs) == 2:
            a, b = node.inputs
            if test(b):
                return a, b
            if test(a):
                return b, a
        return None

    def linear(self, node: OnnxNode) -> OnnxNode | None:
        """A product with a matrix of weights, and the bias that is added to it."""
        parts = self._split_by(node, lambda n: self._is_weight(n, 1)) if node.op == "Add" else None
        product = self._maker(parts[0], "MatMul") if parts else None
        if parts is None or product is None or self._only_user(parts[0], "Add") is None:
            return None
        matrix = product.inputs[1]
        turned = self._maker(matrix, "Transpose")
        if not self._is_weight(matrix, 2) and not (turned and self._is_weight(turned.inputs[0], 2)):
            return None
        return replace(product, op="Linear", inputs=(*product.inputs, parts[1]), outputs=node.outputs)

    def gelu(self, node: OnnxNode) -> OnnxNode | None:
        """``x · (1 + erf(x / √2)) / 2``, with the half before or after."""
        if node.op != "Mul":
            return None
        for one, other in (node.inputs, node.inputs[::-1]):
            inner = self._maker(one, "Mul") if self._is_host(other) else None
            for plus, half in (
                (one, other),
                (other, one),
                *((tuple(inner.inputs), inner.inputs[::-1]) if inner else ()),
            ):
                data = self._of_erf(plus)
                if data is None:
                    continue
                halved = self._maker(half, "Mul", "Div")
                if half == data or (halved is not None and data in halved.inputs):
                    return replace(node, op="Gelu", inputs=(data,), attributes={})
        return None

    def _of_erf(self, name: str) -> str | None:
        """``x`` if ``name`` is ``1 + erf(x / √2)``."""
        plus = self._maker(name, "Add")
        parts = self._split_by(plus, self._is_host) if plus else None
        erf = self._maker(parts[0], "Erf") if parts else None
        scaled = self._maker(erf.inputs[0], "Div", "Mul") if erf else None
        inner = self._split_by(scaled, self._is_host) if scaled else None
        return inner[0] if inner else None

    def gate(self, node: OnnxNode) -> OnnxNode | None:
        """``x · sigmoid(x)``, also of the hard sigmoid."""
        if node.op != "Mul" or len(node.inputs) != 2:
            return None
        for data, gated in (node.inputs, node.inputs[::-1]):
            gate = self._maker(gated, *_GATES)
            if gate is not None and gate.inputs[0] == data and self._only_user(gated, "Mul"):
                return replace(node, op=_GATES[gate.op], inputs=(data,), attributes={})
        return None

    def in_place(self, node: OnnxNode) -> OnnxNode | None:
        """An activation behind a convolution or batch norm, which PyTorch's image networks apply in place.

        A file does not say so. It matters where the gradient needs the input, of which PyTorch then keeps a copy.
        """
        if not self._network.by_pytorch or node.op not in _IN_PLACE:
            return None
        source = self._maker(node.inputs[0], "BatchNormalization", "Conv")
        if source is None or self._only_user(node.inputs[0], node.op) is None:
            return None
        return replace(node, attributes={**node.attributes, "in_place": True})

    def layer_norm(self, node: OnnxNode) -> OnnxNode | None:
        """The mean subtracted, divided by the deviation, times a weight, plus a bias, as files before opset 17."""
        parts = self._split_by(node, lambda n: self._is_weight(n, 1)) if node.op == "Add" else None
        scaled = self._maker(parts[0], "Mul") if parts else None
        weighted = self._split_by(scaled, lambda n: self._is_weight(n, 1)) if scaled else None
        quotient = self._maker(weighted[0], "Div") if weighted else None
        centred = self._maker(quotient.inputs[0], "Sub") if quotient else None
        root = self._maker(quotient.inputs[1], "Sqrt") if quotient else None
        mean = self._maker(centred.inputs[1], "ReduceMean") if centred else None
        if None in (parts, weighted, centred, root, mean):
            return None
        assert parts and weighted and centred and mean
        if mean.inputs[0] != centred.inputs[0]:
            return None
        inputs = (centred.inputs[0], weighted[1], parts[1])
        return replace(node, op="LayerNormalization", inputs=inputs, attributes={"axis": -1})

    def group_norm(self, node: OnnxNode) -> OnnxNode | None:
        """An instance norm between two reshapes, times a weight, plus a bias, as files before opset 21."""
        parts = self._split_by(node, lambda n: self._per_channel(n) is not None) if node.op == "Add" else None
        scaled = self._maker(parts[0], "Mul") if parts else None
        weighted = self._split_by(scaled, lambda n: self._per_channel(n) is not None) if scaled else None
        back = self._maker(weighted[0], "Reshape") if weighted else None
        norm = self._maker(back.inputs[0], "InstanceNormalization") if back else None
        there = self._maker(norm.inputs[0], "Reshape") if norm else None
        if parts is None or weighted is None or norm is None or there is None:
            return None
        weight, bias = self._per_channel(weighted[1]), self._per_channel(parts[1])
        assert weight and bias
        inputs: tuple[str, ...] = (there.inputs[0], weight, bias)
        stored = self._network.weights.get(norm.inputs[1])
        groups = {"num_groups": stored.shape[0]} if stored else {}
        return replace(
            node,
            op="GroupNormalization",
            inputs=inputs if stored else (*inputs, norm.inputs[1]),
            attributes=groups,
        )

    def _per_channel(self, name: str) -> str | None:
        """The vector of weights that ``name`` is, or is a view of."""
        source = name
        while (view := self._maker(source, "Unsqueeze", "Reshape", "CastLike")) is not None:
            source = view.inputs[0]
        weight = self._network.weights.get(source)
        one = weight is not None and weight.trainable and sum(size > 1 for size in weight.shape) <= 1
        return source if one else None

    def attention(self, node: OnnxNode) -> OnnxNode | None:
        """Scaled queries times scaled keys, a mask, softmax, times values: PyTorch's fused attention."""
        if node.op != "MatMul":
            return None
        dropped = self._maker(node.inputs[0], "Dropout")
        shares = dropped.inputs[0] if dropped else node.inputs[0]
        safe = self._maker(shares, "Where")
        shares = next((n for n in safe.inputs if self._maker(n, "Softmax")), shares) if safe else shares
        softmax = self._maker(shares, "Softmax")
        if softmax is None:
            return None
        added = self._maker(softmax.inputs[0], "Add")
        product, mask = self._maker(softmax.inputs[0], "MatMul"), ""
        if added is not None:
            for one, other in (added.inputs, added.inputs[::-1]):
                product = product or self._maker(one, "MatMul")
                mask = mask or (other if self._maker(one, "MatMul") else "")
        scaled = [self._maker(n, "Mul") for n in product.inputs] if product else []
        pairs = [self._split_by(s, self._is_host) if s else None for s in scaled]
        if len(pairs) != 2 or pairs[0] is None or pairs[1] is None:
            return None
        causal = bool(mask) and self._is_host(mask) and self._comes_from(mask, "Trilu")
        keys = self._untransposed(pairs[1][0])
        inputs = (pairs[0][0], keys or pairs[1][0], node.inputs[1])
        attributes: dict[str, object] = {"is_causal": int(causal), "transposed": keys is None}
        if dropped is not None:
            ratio = self._network.constants.get(dropped.inputs[1]) if len(dropped.inputs) > 1 else None
            attributes["dropout"] = dropped.attributes.get("ratio", 0.5) if ratio is None else float(ratio)
        return replace(
            node,
            op="FusedAttention",
            inputs=inputs if causal or not mask else (*inputs, mask),
            attributes=attributes,
        )

    def _comes_from(self, name: str, op: str) -> bool:
        node = self._makers.get(name)
        return node is not None and (node.op == op or any(self._comes_from(i, op) for i in node.inputs if i))

    def _untransposed(self, name: str) -> str | None:
        """The keys before their last two dims were exchanged."""
        last = self._maker(name, "Transpose", "Reshape")
        if last is not None and last.op == "Transpose":
            return last.inputs[0] if _swaps_last(last) else None
        middle = self._maker(last.inputs[0], "Transpose") if last else None
        first = self._maker(middle.inputs[0], "Reshape") if middle and _swaps_last(middle) else None
        return first.inputs[0] if first else None

    def recurrent(self, node: OnnxNode) -> OnnxNode | None:
        """A recurrent layer whose gates the exporter put in another order: it takes the weights themselves."""
        if node.op not in ("LSTM", "GRU", "RNN") or node.attributes.get("layout", 0):
            return None
        kinds = [self._leaves(name) for name in node.inputs[1:4]]
        directions = 2 if node.attributes.get("direction", b"forward") == b"bidirectional" else 1
        if len(kinds) < 2 or [len(k) for k in kinds] not in (
            [directions] * 2,
            [directions, directions, 2 * directions],
        ):
            return None
        each = [[w, r] for w, r in zip(*kinds[:2], strict=True)]
        if len(kinds) > 2:
            each = [[*pair, *kinds[2][2 * d : 2 * d + 2]] for d, pair in enumerate(each)]
        return replace(
            node,
            op="RecurrentLayer",
            inputs=(node.inputs[0], *(name for names in each for name in names)),
            attributes={"cell": node.op, "directions": directions, "biases": len(kinds) > 2},
        )

    def _leaves(self, name: str) -> list[str]:
        """The weights that ``name`` is a view, a part or a concatenation of, in order."""
        if name in self._network.weights:
            return [name] if len(self._network.weights[name].shape) < 3 else []
        node = self._maker(name, "Slice", "Slices", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Split")
        if node is None:
            return []
        sources = node.inputs if node.op == "Concat" else node.inputs[:1]
        return list(dict.fromkeys(leaf for source in sources for leaf in self._leaves(source)))

    def join_slices(self) -> None:
        """Slices of one tensor become one node, which is a split if they are all of it: one gradient, not many."""
        numbers = {id(node): n for n, node in enumerate(self._nodes)}
        joined: dict[int, OnnxNode | None] = {}
        for source, users in self._users.items():
            slices = [n for n in users if n.op == "Slice" and n.inputs[0] == source]
            others = [n for n in users if n.op not in ("Slice", "Shape")]
            if (
                len(slices) < 2
                or others
                or self._is_host(source)
                or not all(self._is_host(i) for n in slices for i in n.inputs[1:] if i)
            ):
                continue
            last = max(numbers[id(n)] for n in slices)
            after = [numbers[id(u)] for n in slices for u in self._users.get(n.outputs[0], [])]
            if min(after, default=last + 1) < last:
                continue
            joined |= {numbers[id(n)]: None for n in slices}
            joined[last] = replace(
                slices[-1],
                op="Slices",
                inputs=(source, *(i for n in slices for i in (*n.inputs[1:], "", "", "", "")[:4])),
                outputs=tuple(n.outputs[0] for n in slices),
                attributes={"each": [dict(n.attributes) for n in slices]},
            )
        self._nodes = [new for n, node in enumerate(self._nodes) if (new := joined.get(n, node)) is not None]
        self._index()


def _swaps_last(node: OnnxNode) -> bool:
    """Whether a transpose exchanges the last two dims and nothing else."""
    order = list(node.attributes.get("perm", []))
    count = len(order)
    return count > 1 and order == [*range(count - 2), count - 1, count - 2]


def _sources(node: OnnxNode) -> tuple[str, ...]:
    """The inputs that the value of a node follows from."""
    return node.inputs[:1] if node.op == "CastLike" else tuple(name for name in node.inputs if name)
