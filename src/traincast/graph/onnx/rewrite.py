"""Rewrites the nodes of a file as a training framework runs them.

Recognises what exporters take apart: a linear layer, an activation, a norm or a fused attention in several nodes.

A training framework runs each of these as one kernel. Attention is joined only if it is written the way PyTorch's
exporters write its fused attention (queries and keys are scaled before their product); otherwise it stays as it is.

Takes back what the optimizer of PyTorch's newer exporter did. It merges batch norms into convolutions, also of networks
that are exported for training, but notes at the convolution that it was made from a batch norm. It stores the weights
of both directions of a recurrent layer in one tensor.

Leaves out casts between floating-point formats, which files in half precision have amid their layers: a graph is
captured in fp32, and the precision is chosen with each forecast. Left in, they would hide what is to be recognised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from traincast.graph.onnx.index import OnnxIndex
from traincast.graph.onnx.network import OnnxNetwork, OnnxNode, Weight
from traincast.graph.onnx.tensorflow import TENSORFLOW_PATTERNS

_MERGED: Final = "batch_norm"
"""A convolution is merged with a batch norm if the PyTorch call that it was made from contains this text."""
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


_IN_PLACE: Final = frozenset({"Clip", "Elu", "HardSwish", "Swish"})
_GATES: Final = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}


def rewritten(network: OnnxNetwork) -> OnnxNetwork:
    """``network`` with its kernels whole again, equal tensors of different layers told apart, unused nodes left out."""
    patterns = _Patterns(_apart(without_casts(network)))
    for pattern in TENSORFLOW_PATTERNS:
        patterns.apply(partial(pattern, patterns))
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


class _Patterns(OnnxIndex):
    """What PyTorch's exporters take apart; a pattern turns its last node into the joined one."""

    def linear(self, node: OnnxNode) -> OnnxNode | None:
        """A product with a matrix of weights, and the bias that is added to it."""
        parts = self.split_by(node, lambda n: self.is_weight(n, 1)) if node.op == "Add" else None
        product = self.maker(parts[0], "MatMul") if parts else None
        if parts is None or product is None or self.only_user(parts[0], "Add") is None:
            return None
        matrix = product.inputs[1]
        turned = self.maker(matrix, "Transpose")
        if not self.is_weight(matrix, 2) and not (turned and self.is_weight(turned.inputs[0], 2)):
            return None
        return replace(product, op="Linear", inputs=(*product.inputs, parts[1]), outputs=node.outputs)

    def gelu(self, node: OnnxNode) -> OnnxNode | None:
        """``x · (1 + erf(x / √2)) / 2``, with the half before or after."""
        if node.op != "Mul":
            return None
        for one, other in (node.inputs, node.inputs[::-1]):
            inner = self.maker(one, "Mul") if self.is_host(other) else None
            for plus, half in (
                (one, other),
                (other, one),
                *(((self._unhalved(one), other),) if self._unhalved(one) else ()),
                *((tuple(inner.inputs), inner.inputs[::-1]) if inner else ()),
            ):
                data = self._of_erf(plus)
                if data is None:
                    continue
                halved = self.maker(half, "Mul", "Div")
                whole = (plus, half) in ((one, other), (other, one))  # then the half comes before, or in the next node
                if (half == data and not whole) or (halved is not None and data in halved.inputs):
                    return replace(node, op="Gelu", inputs=(data,), attributes={})
        return None

    def _unhalved(self, name: str) -> str:
        """Returns the other factor if ``name`` is a product with a constant, else ""."""
        product = self.maker(name, "Mul")
        parts = self.split_by(product, self.is_host) if product else None
        return parts[0] if parts else ""

    def _of_erf(self, name: str) -> str | None:
        """``x`` if ``name`` is ``1 + erf(x / √2)``."""
        plus = self.maker(name, "Add")
        parts = self.split_by(plus, self.is_host) if plus else None
        erf = self.maker(parts[0], "Erf") if parts else None
        scaled = self.maker(erf.inputs[0], "Div", "Mul") if erf else None
        inner = self.split_by(scaled, self.is_host) if scaled else None
        return inner[0] if inner else None

    def gate(self, node: OnnxNode) -> OnnxNode | None:
        """``x · sigmoid(x)``, also of the hard sigmoid."""
        if node.op != "Mul" or len(node.inputs) != 2:
            return None
        for data, gated in (node.inputs, node.inputs[::-1]):
            gate = self.maker(gated, *_GATES)
            if gate is not None and gate.inputs[0] == data and self.only_user(gated, "Mul"):
                return replace(node, op=_GATES[gate.op], inputs=(data,), attributes={})
        return None

    def in_place(self, node: OnnxNode) -> OnnxNode | None:
        """An activation behind a convolution or batch norm, which PyTorch's image networks apply in place.

        This matters if the gradient needs the input: PyTorch then keeps a copy of it. A file does not say whether an
        activation module works in place, so it is assumed. An activation that the parent of the layer calls as a
        function, as the scopes show, is not in place.
        """
        if not self.source.by_pytorch or node.op not in _IN_PLACE:
            return None
        source = self.maker(node.inputs[0], "BatchNormalization", "Conv")
        if source is None or self.only_user(node.inputs[0], node.op) is None:
            return None
        if source.scope and (not node.scope or source.scope.startswith(f"{node.scope}.")):
            return None
        return replace(node, attributes={**node.attributes, "in_place": True})

    def layer_norm(self, node: OnnxNode) -> OnnxNode | None:
        """The mean subtracted, divided by the deviation, times a weight, plus a bias, as files before opset 17."""
        parts = self.split_by(node, lambda n: self.is_weight(n, 1)) if node.op == "Add" else None
        scaled = self.maker(parts[0], "Mul") if parts else None
        weighted = self.split_by(scaled, lambda n: self.is_weight(n, 1)) if scaled else None
        quotient = self.maker(weighted[0], "Div") if weighted else None
        centred = self.maker(quotient.inputs[0], "Sub") if quotient else None
        root = self.maker(quotient.inputs[1], "Sqrt") if quotient else None
        mean = self.maker(centred.inputs[1], "ReduceMean") if centred else None
        if None in (parts, weighted, centred, root, mean):
            return None
        assert parts and weighted and centred and mean
        if mean.inputs[0] != centred.inputs[0]:
            return None
        inputs = (centred.inputs[0], weighted[1], parts[1])
        return replace(node, op="LayerNormalization", inputs=inputs, attributes={"axis": -1})

    def group_norm(self, node: OnnxNode) -> OnnxNode | None:
        """An instance norm between two reshapes, times a weight, plus a bias, as files before opset 21."""
        parts = self.split_by(node, lambda n: self._per_channel(n) is not None) if node.op == "Add" else None
        scaled = self.maker(parts[0], "Mul") if parts else None
        weighted = self.split_by(scaled, lambda n: self._per_channel(n) is not None) if scaled else None
        back = self.maker(weighted[0], "Reshape") if weighted else None
        norm = self.maker(back.inputs[0], "InstanceNormalization") if back else None
        there = self.maker(norm.inputs[0], "Reshape") if norm else None
        if parts is None or weighted is None or norm is None or there is None:
            return None
        weight, bias = self._per_channel(weighted[1]), self._per_channel(parts[1])
        assert weight and bias
        inputs: tuple[str, ...] = (there.inputs[0], weight, bias)
        stored = self.source.weights.get(norm.inputs[1])
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
        while (view := self.maker(source, "Unsqueeze", "Reshape", "CastLike")) is not None:
            source = view.inputs[0]
        weight = self.source.weights.get(source)
        one = weight is not None and weight.trainable and sum(size > 1 for size in weight.shape) <= 1
        return source if one else None

    def attention(self, node: OnnxNode) -> OnnxNode | None:
        """Scaled queries times scaled keys, a mask, softmax, times values: PyTorch's fused attention."""
        if node.op != "MatMul":
            return None
        dropped = self.maker(node.inputs[0], "Dropout")
        shares = dropped.inputs[0] if dropped else node.inputs[0]
        safe = self.maker(shares, "Where")
        shares = next((n for n in safe.inputs if self.maker(n, "Softmax")), shares) if safe else shares
        softmax = self.maker(shares, "Softmax")
        if softmax is None:
            return None
        added = self.maker(softmax.inputs[0], "Add")
        product, mask = self.maker(softmax.inputs[0], "MatMul"), ""
        if added is not None:
            for one, other in (added.inputs, added.inputs[::-1]):
                product = product or self.maker(one, "MatMul")
                mask = mask or (other if self.maker(one, "MatMul") else "")
        scaled = [self.maker(n, "Mul") for n in product.inputs] if product else []
        pairs = [self.split_by(s, self.is_host) if s else None for s in scaled]
        if len(pairs) != 2 or pairs[0] is None or pairs[1] is None:
            return None
        causal = bool(mask) and self.is_host(mask) and self._comes_from(mask, "Trilu")
        keys = self._untransposed(pairs[1][0])
        inputs = (pairs[0][0], keys or pairs[1][0], node.inputs[1])
        attributes: dict[str, object] = {"is_causal": int(causal), "transposed": keys is None}
        if dropped is not None:
            ratio = self.source.constants.get(dropped.inputs[1]) if len(dropped.inputs) > 1 else None
            attributes["dropout"] = dropped.attributes.get("ratio", 0.5) if ratio is None else float(ratio)
        return replace(
            node,
            op="FusedAttention",
            inputs=inputs if causal or not mask else (*inputs, mask),
            attributes=attributes,
        )

    def _comes_from(self, name: str, op: str) -> bool:
        node = self.makers.get(name)
        return node is not None and (node.op == op or any(self._comes_from(i, op) for i in node.inputs if i))

    def _untransposed(self, name: str) -> str | None:
        """The keys before their last two dims were exchanged."""
        last = self.maker(name, "Transpose", "Reshape")
        if last is not None and last.op == "Transpose":
            return last.inputs[0] if _swaps_last(last) else None
        middle = self.maker(last.inputs[0], "Transpose") if last else None
        first = self.maker(middle.inputs[0], "Reshape") if middle and _swaps_last(middle) else None
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
        if name in self.source.weights:
            return [name] if len(self.source.weights[name].shape) < 3 else []
        node = self.maker(name, "Slice", "Slices", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Split")
        if node is None:
            return []
        sources = node.inputs if node.op == "Concat" else node.inputs[:1]
        return list(dict.fromkeys(leaf for source in sources for leaf in self._leaves(source)))

    def join_slices(self) -> None:
        """Slices of one tensor become one node, which is a split if they are all of it: one gradient, not many."""
        numbers = {id(node): n for n, node in enumerate(self.nodes)}
        joined: dict[int, OnnxNode | None] = {}
        for source, users in self.users.items():
            slices = [n for n in users if n.op == "Slice" and n.inputs[0] == source]
            others = [n for n in users if n.op not in ("Slice", "Shape")]
            if (
                len(slices) < 2
                or others
                or self.is_host(source)
                or not all(self.is_host(i) for n in slices for i in n.inputs[1:] if i)
            ):
                continue
            last = max(numbers[id(n)] for n in slices)
            after = [numbers[id(u)] for n in slices for u in self.users.get(n.outputs[0], [])]
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
        self.nodes = [new for n, node in enumerate(self.nodes) if (new := joined.get(n, node)) is not None]
        self.index()


def _swaps_last(node: OnnxNode) -> bool:
    """Whether a transpose exchanges the last two dims and nothing else."""
    order = list(node.attributes.get("perm", []))
    count = len(order)
    return count > 1 and order == [*range(count - 2), count - 1, count - 2]
