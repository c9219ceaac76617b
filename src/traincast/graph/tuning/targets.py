"""The linear layers of a graph by the words of fine-tuning: attention, mlp, q, k, v, o, gate, up, down.

A layer that computes several projections at once (q, k and v; gate and up) is a list of parts, so that ``q`` adapts
only the part of q. Widths of q, k and v come from the attention operator that reads them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from traincast.errors import RequestError
from traincast.graph.operator import Operator
from traincast.graph.tuning.edit import Draft
from traincast.graph.vocabulary import LINEAR, OpKind, Phase

Part: TypeAlias = tuple[str, int]
"""A projection of a layer, and its number of outputs."""

_ATTENTION: Final = re.compile(r"attn|attention|(^|\.)(mha|cross|self)(\.|$)", re.IGNORECASE)
_NAMES: Final[dict[str, str]] = {
    name: word
    for word, names in {
        "q": "q q_proj query query_proj wq to_q q_lin linear_q q_down q_up q_a_proj q_b_proj",
        "k": "k k_proj key key_proj wk to_k k_lin linear_k",
        "v": "v v_proj value value_proj wv to_v v_lin linear_v",
        "kv": "kv kv_proj kv_down kv_up kv_a_proj_with_mqa kv_b_proj linear_kv wkv",
        "qkv": "qkv qkv_proj query_key_value c_attn wqkv linear_qkv in_proj w_pack",
        "o": "o o_proj out out_proj wo to_out out_lin linear_proj dense c_proj proj",
    }.items()
    for name in names.split()
}
_MLP_NAMES: Final[dict[str, str]] = {
    name: word
    for word, names in {
        "gate": "gate gate_proj w1 wi_0",
        "up": "up up_proj gate_up_proj w3 w13 wi wi_1 fc1 fc_1 c_fc lin1 linear1 linear_fc1 dense_h_to_4h",
        "down": "down down_proj w2 wo fc2 fc_2 c_proj lin2 linear2 linear_fc2 dense_4h_to_h",
    }.items()
    for name in names.split()
}
_WHOLE: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys((n for n, w in _NAMES.items() if w == "qkv" and n != "qkv"), frozenset({"q", "k", "v"})),
    **dict.fromkeys(("gate_up_proj", "w13", "linear_fc1"), frozenset({"gate", "up"})),
}
"""Names of layers that compute several projections at once, which get one adapter, and their projections."""
_ONE: Final = "one:"
"""Marks a target that is one adapter for all projections of a layer."""
_GROUPS: Final = {"self_attn": "attention", "self_attention": "attention", "attn": "attention", "feed_forward": "mlp"}
WORDS: Final = ("attention", "mlp", "qkv", "q", "k", "v", "o", "gate", "up", "down", "all")
"""The words that a list of targets may contain, beside patterns of module paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer: its forward operator, its module path, its group (attention, mlp, router, head) and its parts.

    ``layer`` says whether it belongs to a repeated layer, or to a model that has none.
    """

    index: int
    scope: str
    group: str
    layer: bool
    parts: tuple[Part, ...]


def linear_layers(draft: Draft) -> list[Linear]:
    """The linear layers of a graph with weights of their own, in forward order."""
    found = [(n, i) for n, block in enumerate(draft.blocks) for i in block.forward if _is_linear(draft.operators[i])]
    if not found:
        return []
    heads = _heads(draft, [i for _, i in found])
    repeated = any(block.repeated for block in draft.blocks)
    attention = {
        op.scope: op for op in draft.operators.values() if op.kind is OpKind.ATTENTION and op.phase is Phase.FORWARD
    }
    grouped = {op.scope for op in draft.operators.values() if op.kind is OpKind.GROUPED_GEMM}
    inputs: dict[str, set[int]] = {}
    for _, i in found:
        inputs.setdefault(_parent(draft.operators[i]), set()).add(draft.operators[i].inputs[1].shape[-2])
    result = []
    for n, i in found:
        op, block = draft.operators[i], draft.blocks[n]
        group = "head" if i in heads else _group(op, attention, grouped)
        result.append(
            Linear(
                index=i,
                scope=op.scope,
                group=group,
                layer=block.repeated or not repeated,
                parts=_parts(op, group, attention, inputs[_parent(op)]),
            )
        )
    return result


def _is_linear(op: Operator) -> bool:
    return op.kind in LINEAR and bool(op.parameters) and len(op.inputs) > 1 and len(op.inputs[1].shape) > 1


def _heads(draft: Draft, linear: Sequence[int]) -> set[int]:
    """The projection to the vocabulary or, in a model without embeddings, the last linear layer."""
    tables = [op.inputs[0].shape[0] for op in draft.operators.values() if op.kind is OpKind.EMBEDDING and op.parameters]
    if not tables:
        return {linear[-1]}
    return {i for i in linear if draft.operators[i].inputs[1].shape[-1] == max(tables)}


def _parent(op: Operator) -> str:
    return op.scope if op.kind is OpKind.GROUPED_GEMM else op.scope.rpartition(".")[0]


def _group(op: Operator, attention: Mapping[str, Operator], grouped: set[str]) -> str:
    parent, _, name = op.scope.rpartition(".")
    if op.kind is OpKind.GROUPED_GEMM:
        return "mlp"
    if name == "router" or (name == "gate" and any(s == parent or s.startswith(parent + ".") for s in grouped)):
        return "router"
    return "attention" if _ATTENTION.search(op.scope) or parent in attention else "mlp"


def _parts(op: Operator, group: str, attention: Mapping[str, Operator], inputs: set[int]) -> tuple[Part, ...]:
    """The projections of a layer; ``inputs`` are the numbers of inputs of the layers beside it."""
    outputs = op.inputs[1].shape[-1]
    name = op.scope.rpartition(".")[2].lower()
    if group == "attention":
        word = _NAMES.get(name, "")
        if word not in ("qkv", "kv"):
            return ((word or "attention", outputs),)
        widths = _widths(op, attention, outputs)
        if word == "qkv" and sum(widths) == outputs:
            return tuple(zip(("q", "k", "v"), widths, strict=True))
        if word == "kv" and sum(widths[1:]) == outputs:
            return tuple(zip(("k", "v"), widths[1:], strict=True))
        return (("kv", outputs),) if word == "kv" else (("qkv", outputs),)
    if group == "mlp":
        gated = outputs % 2 == 0 and outputs // 2 in inputs and outputs not in inputs
        if gated:
            return (("gate", outputs // 2), ("up", outputs // 2))
        if op.kind is OpKind.GROUPED_GEMM:
            return (("down" if op.inputs[1].shape[-2] > outputs or outputs not in inputs else "up", outputs),)
        return ((_MLP_NAMES.get(name, "mlp"), outputs),)
    return ((group, outputs),)


def _widths(op: Operator, attention: Mapping[str, Operator], outputs: int) -> tuple[int, int, int]:
    """Widths of q, k and v, from the attention of the same module; thirds if it does not run as one operator."""
    parent = op.scope.rpartition(".")[0]
    reader = next((a for scope, a in attention.items() if scope == parent or scope.startswith(parent + ".")), None)
    if reader is None:
        return (outputs // 3, outputs // 3, outputs // 3)
    q, k, v = (t.shape[1] * t.shape[3] for t in reader.inputs[:3])
    return q, k, v


def chosen_parts(linear: Linear, targets: Sequence[str]) -> tuple[Part, ...]:
    """The parts of a layer that ``targets`` name; the whole layer if a pattern matches its path."""
    if any(matches(linear.scope, target) for target in targets if target not in WORDS):
        return (("", sum(width for _, width in linear.parts)),)
    words = frozenset(word for word, _ in linear.parts)
    if linear.layer and any(words == _WHOLE[t.removeprefix(_ONE)] for t in targets if t.startswith(_ONE)):
        return (("", sum(width for _, width in linear.parts)),)
    if "all" in targets and linear.group != "head":
        return linear.parts
    if not linear.layer or linear.group not in ("attention", "mlp"):
        return ()
    if linear.group in targets:
        return linear.parts
    return tuple(part for part in linear.parts if _names(linear.group, part[0], targets))


def resolved(linear: Sequence[Linear], targets: Sequence[str]) -> tuple[str, ...]:
    """``targets`` with the usual names of projections (``q_proj``, ``linear_qkv``) replaced if no path has them.

    A model of the zoo may compute in one layer what another implementation computes in three, or the reverse.
    """
    found: list[str] = []
    for target in targets:
        known = target in WORDS or any(matches(layer.scope, target) for layer in linear)
        words = [names[target] for names in (_NAMES, _MLP_NAMES, _GROUPS) if target in names]
        if known or not words:
            found.append(target)
        else:
            found += [f"{_ONE}{target}"] if target in _WHOLE else words
    return tuple(dict.fromkeys(found))


def _names(group: str, word: str, targets: Sequence[str]) -> bool:
    if word in targets:
        return True
    if group != "attention":
        return False
    return (word in ("q", "k", "v", "kv") and "qkv" in targets) or (word == "kv" and bool({"k", "v"} & set(targets)))


def matches(scope: str, pattern: str) -> bool:
    """Whether ``pattern`` names a module or one that contains it: by its path, its last names, or with wildcards."""
    path = scope
    while path:
        if fnmatch.fnmatchcase(path, pattern) or path.endswith("." + pattern):
            return True
        path = path.rpartition(".")[0]
    return fnmatch.fnmatchcase(scope, pattern)


def no_match(what: str, name: str, layers: Sequence[str]) -> RequestError:
    """The error for a word or a pattern that matches nothing; ``layers`` are the paths that exist."""
    known = list(dict.fromkeys(layers))
    listed = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
    return RequestError(f"{what} {name!r} matches no module; there are {listed or 'none'}")
