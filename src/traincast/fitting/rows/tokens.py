"""Operators from rows that measured point-wise and row-wise operators, look-ups, losses and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from traincast.fitting.rows.values import (
    BOTH,
    Built,
    Operation,
    Params,
    ParsedRow,
    head_sizes,
    share_of,
    stated,
    tensor,
)
from traincast.graph import DType, Scalar
from traincast.tables import RowError

VOCABULARY: Final = 50_257
"""Size of GPT-2's vocabulary, with which rows that state no vocabulary were measured."""
VOCABULARY_MULTIPLE: Final = 128
"""Megatron pads the vocabulary so that every rank of a tensor group holds a multiple of this."""


def _tokens(p: Params) -> tuple[int, ...]:
    return stated(p, "b"), stated(p, "l"), stated(p, "dim")


def _mlp_tokens(p: Params) -> tuple[int, ...]:
    return stated(p, "b"), stated(p, "l"), share_of(4 * stated(p, "dim"), stated(p, "mp"), "4 · dim")


def _scores(p: Params) -> tuple[int, ...]:
    heads, ranks = stated(p, "h"), stated(p, "mp")
    if ranks > heads:
        raise RowError("mp is larger than h: some ranks would have no head")
    seq = stated(p, "l")
    return stated(p, "b"), share_of(heads, ranks, "h"), seq, seq


def _each(
    extent: Callable[[Params], tuple[int, ...]], inputs: int = 1, **attributes: Scalar
) -> Callable[[ParsedRow], Built]:
    """Return a builder of operators on ``inputs`` tensors of one shape.

    The shape is ``rows`` × ``cols`` if the row states them, otherwise the result of ``extent``.
    """

    def build(row: ParsedRow) -> Built:
        p = row.params
        shape = (stated(p, "rows"), stated(p, "cols")) if "rows" in p else extent(p)
        x = tensor(row.dtype, *shape)
        return (x,) * inputs, (x,), dict(attributes)

    return build


def _embedding(row: ParsedRow) -> Built:
    """A look-up in the part of the vocabulary that one rank of the tensor group holds."""
    b, seq, dim = _tokens(row.params)
    ranks = stated(row.params, "mp")
    indices = tensor(DType.INT64, b, seq)
    table = tensor(row.dtype, _vocabulary_share(ranks), dim)
    return (table, indices), (tensor(row.dtype, b, seq, dim),), {"tp": ranks}


def _cross_entropy(row: ParsedRow) -> Built:
    """The loss on a rank's share of the logits."""
    p = row.params
    b, seq, ranks = stated(p, "b"), stated(p, "l"), stated(p, "mp")
    logits = tensor(row.dtype, b, seq, _vocabulary_share(ranks))
    return (logits, tensor(DType.INT64, b, seq)), (tensor(row.dtype, b, seq),), {"tp": ranks}


def _vocabulary_share(ranks: int) -> int:
    return VOCABULARY_MULTIPLE * -(-VOCABULARY // (VOCABULARY_MULTIPLE * ranks))


def _optimizer(row: ParsedRow) -> Built:
    """An optimizer step on all weights of a rank.

    The attribute ``stage`` is "first", "middle" or "last" in a pipeline, and "whole" for a model without one.
    """
    p = row.params
    attributes: dict[str, Scalar]
    if "params" in p:
        count = stated(p, "params")
        attributes = {"stage": "whole", "tensors": stated(p, "param_tensors"), "layers": stated(p, "num_layers")}
        attributes["tp"] = 1
    else:
        ranks, dim, layers = stated(p, "mp"), stated(p, "dim"), stated(p, "encoders")
        stage = row.op.removesuffix("Stage_optimizer")
        count = layers * share_of(12 * dim * dim, ranks, "12 · dim²")
        if stage != "middle":
            count += _vocabulary_share(ranks) * dim
        attributes = {"stage": stage, "layers": layers, "dim": dim, "tp": ranks}
    weight = tensor(row.dtype, count)
    return (weight, weight, weight), (weight, weight), attributes


_UPDATE: Final = frozenset({"update"})

TOKEN_OPERATIONS: Final[dict[str, Operation]] = {
    **{name: Operation(name, _each(_tokens, inputs=2), BOTH) for name in ("add", "mul", "div", "pow")},
    **{f"{name}u": Operation(name, _each(_tokens), BOTH) for name in ("add", "mul", "div", "pow")},
    "res_add": Operation("add", _each(_tokens, inputs=2), BOTH),
    "fillmask": Operation("masked_fill", _each(_scores), BOTH),
    "RoPE": Operation("rope", _each(head_sizes), BOTH),
    "relu": Operation("relu", _each(_tokens), BOTH),
    "tanh": Operation("tanh", _each(_tokens), BOTH),
    "gelu": Operation("gelu", _each(_mlp_tokens), BOTH),
    **dict.fromkeys(("ln", "layernorm"), Operation("layernorm", _each(_tokens), BOTH)),
    "RMSlayernorm": Operation("rmsnorm", _each(_tokens), BOTH),
    "softmax": Operation("softmax", _each(_scores), BOTH),
    "ScaledUpperTriangMaskedSoftmax": Operation("masked_softmax", _each(_scores, causal=True), BOTH),
    "embedding": Operation("embedding", _embedding, BOTH),
    **dict.fromkeys(
        ("parallel_cross_entropy", "parallel_cross_entropy_128"), Operation("cross_entropy", _cross_entropy, BOTH)
    ),
    **dict.fromkeys(
        ("optimizer", "firstStage_optimizer", "middleStage_optimizer", "lastStage_optimizer"),
        Operation("optimizer", _optimizer, _UPDATE),
    ),
}
"""How to make an operator from a row, by its ``op``."""
