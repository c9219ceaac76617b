"""Every model of the zoo, captured: parameters and FLOPs against what is published and what can be derived.

The whole zoo is traced once and kept beside pytest's cache (about three minutes the first time, seconds after).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import graph_of
from tests.graph.test_zoo_cnn import CNNS, multiply_adds
from tests.graph.test_zoo_transformers import matmul_parameters
from tests.graph.training_step import built
from traincast import OperatorGraph
from traincast.graph import OpKind, Phase, zoo
from traincast.graph.vocabulary import MATRIX_KINDS
from traincast.graph.work_amount import attention_fraction
from traincast.graph.zoo import Traceable
from traincast.graph.zoo.parts.stack import TransformerConfig  # brings our own operators with it

NAMES = zoo.names()
SHARED = {"bit", "detr", "moflow", "se3-transformer", "tacotron2"}
"""Families with products of constants, or of weights that all samples share: these have fewer gradients."""
ONCE = {"conformer"}
"""Families with large products that are computed once for all samples: those of relative positions."""


def products(graph: OperatorGraph, phase: Phase, *, without: str | None = None) -> float:
    """FLOPs of one phase's matrix products for one sample; scans have tests of their own."""
    return sum(
        op.flops * count
        for op, count in graph
        if op.phase is phase
        and op.kind in MATRIX_KINDS
        and op.kind is not OpKind.SCAN
        and not (without and op.scope.startswith(without))
    )


def attention_flops(config: TransformerConfig) -> float:
    """2·heads·(qk + v dims) for every pair of query and key that the mask lets through."""
    total = 0.0
    for c in config.layer_configs():
        index = None if c.latent is None else c.latent.index
        chosen = 0 if index is None else index.top_k
        s, window = c.seq, min(c.window or chosen or c.seq, c.seq)
        pairs = window * s - window * (window - 1) / 2 if c.causal else float(s * s)
        values = c.head_dim if c.latent is None else c.latent.v_dim
        total += 2 * c.heads * (c.head_dim + values) * pairs
        if c.latent is not None and index is not None:
            made = c.latent.q_rank * index.heads * index.dim + c.hidden * (index.dim + index.heads)
            total += 2 * s * made + 2 * s * s * index.heads * index.dim
    return total


def decoder(name: str) -> float:
    """Two FLOPs per token and weight it meets (active experts only), and causal attention."""
    config = built(name).module.config
    return float(2 * config.layer.seq * matmul_parameters(config) + attention_flops(config))


def bert(name: str) -> float:
    """Layers, the masked-token head on the predicted positions, pooler and sentence head on one token."""
    p = zoo.card(name).parameters
    config = built(name).module.config
    h, s, vocab = p["hidden"], p["seq"], config.vocab
    layers = matmul_parameters(config) - h * vocab
    predicted = config.predictions or s
    heads = predicted * (h * h + h * vocab) + h * h + 2 * h
    return float(2 * (s * layers + heads) + attention_flops(config))


def vit(name: str) -> float:
    """Patches as one product each, layers on patches and class token, classes from one token."""
    p = zoo.card(name).parameters
    config = built(name).module.config
    h, s = p["hidden"], config.layer.seq
    layers = matmul_parameters(config) - h * config.vocab
    return float(2 * ((s - 1) * 3 * config.patch**2 * h + s * layers + h * config.vocab) + attention_flops(config))


def t5(name: str) -> float:
    """Encoder on s tokens, decoder on t, attention with a bias (every pair computed), logits of the targets."""
    p: Any = zoo.card(name).parameters
    h, f, s, inner = p["hidden"], p["ffn"], p["seq"], p["heads"] * p["head_dim"]
    t = p.get("target_seq", s * 114 // 512)
    mlp = (3 if p.get("activation", "relu") in ("geglu", "swiglu") else 2) * h * f
    encoder = 2 * s * (4 * h * inner + mlp) + 4 * s * s * inner
    own = 2 * t * 4 * h * inner + 4 * t * t * inner
    cross = 2 * h * inner * (2 * t + 2 * s) + 4 * t * s * inner
    decoded = own + cross + 2 * t * mlp
    sparse, experts = p["layers"] // 2 if p.get("experts") else 0, p.get("experts", 0)
    # Every other layer has a router and experts, each of which takes as many tokens as it has room for.
    routed = 2 * (2 * experts * p.get("capacity", 0) * mlp) + 2 * (s + t) * h * experts
    instead = 2 * (s + t) * mlp
    return float(p["layers"] * (encoder + decoded) + sparse * (routed - instead) + 2 * t * h * p.get("vocab", 32128))


def transformer_xl(name: str) -> float:
    """Keys over memory and segment, positions once per step, content and distance scores, adaptive softmax."""
    p: Any = zoo.card(name).parameters
    h, s, inner = p["hidden"], p["seq"], p["heads"] * p["head_dim"]
    keys = s + p["memory"]
    layer = 2 * keys * h * 3 * inner + 2 * keys * h * inner + 2 * s * inner * h
    layer += 3 * 2 * s * keys * inner + 2 * s * 2 * h * p["ffn"]
    bounds = [0, *p["cutoffs"], p["vocab"]]
    sizes = [high - low for low, high in pairwise(bounds)]
    widths = [h // p["divisor"] ** i for i in range(len(sizes))]
    counts = built(name).module.vocabulary.shares(s)
    words = 2 * s * h * (sizes[0] + len(p["cutoffs"]))
    words += sum(2 * n * w * v for n, w, v in zip(counts[1:], widths[1:], sizes[1:], strict=True))
    if p["divisor"] > 1:
        words += sum(2 * n * h * w for n, w in zip(counts, widths, strict=True))  # embedding
        words += 2 * s * h * h + sum(2 * n * h * w for n, w in zip(counts[1:], widths[1:], strict=True))
    return float(p["layers"] * layer + words)


def nmt(name: str) -> float:
    """Four gates of an LSTM: 8·h·(inputs + h) per token; additive attention; logits."""
    p: Any = zoo.card(name).parameters
    h, s, more = p["hidden"], p["seq"], p["layers"] - 1

    def lstm(inputs: int) -> int:
        return int(s * 8 * h * (inputs + h))

    encoder = 2 * lstm(h) + lstm(2 * h) + (more - 1) * lstm(h)
    decoder = lstm(h) + more * lstm(2 * h)
    attention = 2 * 2 * s * h * h + 2 * 2 * s * s * h
    return float(encoder + decoder + attention + 2 * s * h * p["vocab"])


def _attention(q: Any, k: Any, v: Any, causal: bool, **_: Any) -> int:
    return int(2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3]))


def _grouped(rows: Any, weights: Any, ends: Any, **_: Any) -> int:
    return int(2 * rows[0] * weights[1] * weights[2])


def _index(queries: Any, keys: Any, weights: Any, **_: Any) -> int:
    return int(2 * queries[0] * queries[1] * queries[2] * keys[2])


OUR_OPERATORS = {
    torch.ops.traincast.attention: _attention,
    torch.ops.traincast.grouped_mm: _grouped,
    torch.ops.traincast.index_scores: _index,
}
"""FLOPs of operators that PyTorch's counter does not know, by the shapes of their inputs."""


def counted(name: str) -> float:
    """What PyTorch's own counter sees in a forward pass; used where no closed form is written here."""
    model = built(name)
    if name in CNNS:
        return float(2 * multiply_adds(model))
    if zoo.card(name).family in ONCE:
        return 2 * flops_of(model, batch=2) - flops_of(model, batch=3)
    return flops_of(model, batch=2) / 2


def flops_of(model: Traceable, *, batch: int) -> float:
    """FLOPs of a forward pass by PyTorch's counter."""
    trained = [p for p in model.module.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)  # the counter's hooks want a graph of autograd otherwise
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=OUR_OPERATORS) as counter:
        model.module(*model.inputs(batch))
    for parameter in trained:
        parameter.requires_grad_(True)
    return float(counter.get_total_flops())


CLOSED_FORMS: dict[str, Callable[[str], float]] = {
    **dict.fromkeys(("gpt", "mpt", "llama", "moe", "deepseek", "gpt-oss"), decoder),
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "transformer-xl": transformer_xl,
    "nmt": nmt,
}


def _spread(names: Sequence[str]) -> list[str]:
    """At most five of ``names``, spread over all of them, the first and the last included."""
    few = min(len(names), 5)
    return [names[round(i * (len(names) - 1) / max(few - 1, 1))] for i in range(few)]


def _size(name: str) -> float:
    return float(zoo.card(name).published.get("parameters", 1e15))


DERIVED = [
    name
    for family in sorted({zoo.card(name).family for name in NAMES} - {"tacotron2"})
    for members in [[name for name in NAMES if zoo.card(name).family == family]]
    for name in (_spread(members) if family in CLOSED_FORMS else [min(members, key=_size)])
]
"""Five models of each family with a closed form, the smallest of each other. Tacotron 2 has a test of its own."""


@pytest.mark.long(but=6)
@pytest.mark.parametrize("name", DERIVED)
def test_forward_products_follow_the_closed_form(name: str) -> None:
    graph, family = graph_of(name), zoo.card(name).family
    found = products(graph, Phase.FORWARD)
    if family not in CLOSED_FORMS:  # PyTorch's counter does not know that attention is causal
        masked = [(op, count) for op, count in graph if op.kind is OpKind.ATTENTION and op.phase is Phase.FORWARD]
        found += sum(op.flops * count * (1.0 / attention_fraction(op) - 1.0) for op, count in masked)
    assert found == pytest.approx(CLOSED_FORMS.get(family, counted)(name), rel=1e-3 if family in SHARED else 1e-9)


@pytest.mark.long(but=8)
@pytest.mark.parametrize("name", [n for n in NAMES if "flops" in zoo.card(n).published])
def test_forward_products_are_as_many_as_published(name: str) -> None:
    card = zoo.card(name)
    graph = graph_of(name)
    if "flops_resolution" in card.published:
        changed = {**card.parameters, "resolution": card.published["flops_resolution"]}
        graph = graph_of(f"{card.family}:" + ",".join(f"{key}={value}" for key, value in changed.items()))
    without = card.published.get("flops_without")
    found = products(graph, Phase.FORWARD, without=None if without is None else str(without))
    if card.family == "latent-unet":  # its publishers' counter does not see fused attention
        found -= sum(op.flops * n for op, n in graph if op.kind is OpKind.ATTENTION and op.phase is Phase.FORWARD)
    more = card.family == "efficientdet"  # its authors also count the weighted sums of feature maps
    assert found == pytest.approx(card.published["flops"], rel=0.02 if more else 0.01)


@pytest.mark.long(but=15)
@pytest.mark.parametrize("name", NAMES)
def test_captured_parameters_are_those_published(name: str) -> None:
    graph, card = graph_of(name), zoo.card(name)
    assert graph.num_parameters == sum(p.numel() for p in built(name).module.parameters())
    if "parameters" in card.published:
        expected, digits = int(card.published["parameters"]), int(card.published.get("parameters_digits", 0))
        unit = 10 ** (len(str(expected)) - digits) if digits else 0
        assert abs(graph.num_parameters - expected) <= unit


def without_input_gradient(graph: OperatorGraph, frozen: Set[str]) -> set[int]:
    """Forward operators none of whose inputs comes from a parameter: only their weights have a gradient."""
    learns: set[int] = set()
    first: set[int] = set()
    producers: dict[int, list[int]] = {}
    for source, target in graph.edges:
        producers.setdefault(target, []).append(source)
    for block in graph.blocks:
        for index in block.forward:
            reached = any(p in learns for p in producers.get(index, ()))
            if not reached:
                first.add(index)
            op = graph.operators[index]
            if reached or (op.parameters and op.scope not in frozen):
                learns.add(index)
    return first


@pytest.mark.long(but=lambda name: zoo.card(name).family)
@pytest.mark.parametrize("name", NAMES)
def test_backward_products_are_twice_the_forward_but_for_first_layers_and_attention(name: str) -> None:
    """A product has a gradient by its weight and one by its input; attention recomputes its scores (2.5).

    The gradient by the matrix of a matrix times a vector is an outer product, which is no matrix product.
    """
    graph, modules = graph_of(name), dict(built(name).module.named_modules())
    frozen = {
        scope for scope, m in modules.items() if m._parameters and not any(p.requires_grad for p in m.parameters())
    }
    first = without_input_gradient(graph, frozen)
    expected = 0.0
    for block in graph.blocks:
        for index in block.forward:
            op = graph.operators[index]
            if op.kind in MATRIX_KINDS and op.kind is not OpKind.SCAN and ".indexer" not in op.scope:
                once = index in first or op.name == "mv"
                factor = 2.5 if op.kind.value == "attention" else 1.0 if once else 2.0
                factor -= op.scope in frozen
                expected += factor * op.flops * block.count
    shared = zoo.card(name).family in SHARED
    assert products(graph, Phase.BACKWARD) <= expected * (1.0 + 1e-9)
    assert products(graph, Phase.BACKWARD) == pytest.approx(expected, rel=0.07 if shared else 1e-9)


@pytest.mark.long(but=lambda name: zoo.card(name).family)
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_graph_is_sound(name: str) -> None:
    graph = graph_of(name)
    size = len(graph.operators)
    assert sorted(i for b in graph.blocks for i in (*b.forward, *b.backward, *b.optimizer)) == list(range(size))
    assert all(0 <= a < size and 0 <= b < size for a, b in graph.edges)
    assert all(op.flops >= 0 and op.nbytes > 0 for op in graph.operators)
    assert [op.name for op in graph.operators if op.attributes.get("unknown")] == []
    assert all(block.boundary for block in graph.blocks if block.count > 1)
    assert all(block.forward for block in graph.blocks)
    for block in graph.blocks:
        for index in block.backward:
            assert graph.forward_of[index] == -1 or graph.operators[graph.forward_of[index]].phase is Phase.FORWARD
