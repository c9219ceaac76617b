"""Operators from rows that measured a node of a traced graph.

Their ``op`` is ``graph:<function or module path>``; their ``params`` have the shapes of inputs (``in``) and output
(``out``).
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from traincast.fitting.rows.values import BOTH, FORWARD, Built, Operation, ParsedRow, size_of, tensor
from traincast.graph import DType, TensorSpec
from traincast.tables import RowError

NODE: Final = "graph:"
"""Prefix of the ``op`` of a node."""
_NODE_TEXT: Final = 40
"""Tables cut the path of a module at this many characters, so its last word may be incomplete."""


def _shapes(value: Any) -> Any:
    """Parse shapes such as ``[[8, 512], [1]]`` or ``(8, 512)`` into nested lists."""
    text = str(value).replace("(", "[").replace(")", "]").replace(",]", "]")
    try:
        return json.loads(text)
    except ValueError:
        raise RowError("the shapes of the node cannot be read") from None


def _node_tensors(row: ParsedRow) -> tuple[list[TensorSpec], TensorSpec]:
    shapes, out = _shapes(row.params.get("in", "[]")), _shapes(row.params.get("out", "[]"))
    if not isinstance(out, list) or not out or out == [1]:
        raise RowError("the output of the node is a number, not a tensor")
    tensors = [s for s in shapes if s != [1]]
    if not tensors:
        raise RowError("the node has no input tensor")
    specs = [tensor(row.dtype, *(size_of(x, "a dim") for x in s)) for s in tensors]
    return specs, tensor(row.dtype, *(size_of(x, "a dim") for x in out))


def _node(row: ParsedRow) -> Built:
    inputs, out = _node_tensors(row)
    return tuple(inputs), (out,), None


def _node_dropout(row: ParsedRow) -> Built:
    if "-inf-" in str(row.params.get("model", "")):
        raise RowError("dropout does nothing outside training")
    return _node(row)


def _node_product(row: ParsedRow) -> Built:
    """``bmm`` and ``matmul`` of two stacks of matrices."""
    inputs, out = _node_tensors(row)
    if len(inputs) != 2 or len(inputs[0].shape) < 3 or len(inputs[1].shape) != len(inputs[0].shape):
        raise RowError("the inputs of the product are not two stacks of matrices")
    a, b = (tensor(t.dtype, math.prod(t.shape[:-2]), *t.shape[-2:]) for t in inputs)
    return (a, b), (tensor(out.dtype, a.shape[0], a.shape[1], b.shape[2]),), None


def _node_linear(row: ParsedRow) -> Built:
    """``addmm`` (bias, input, weight), or a linear layer, which states only its input."""
    inputs, out = _node_tensors(row)
    x = inputs[1] if len(inputs) == 3 else inputs[0]
    m, k, n = math.prod(x.shape[:-1]), x.shape[-1], out.shape[-1]
    t = row.dtype
    return (tensor(t, m, k), tensor(t, k, n)), (tensor(t, m, n),), {"bias": True}


def _node_embedding(row: ParsedRow) -> Built:
    """A look-up in a table. A layer does not state the height of the table, which has no effect on the time."""
    inputs, out = _node_tensors(row)
    indices = tensor(DType.INT64, *inputs[0].shape)
    return (indices,), (out,), None


_LINEAR: Final = Operation("gemm_bias", _node_linear, BOTH)
_NORM: Final = Operation("layernorm", _node, BOTH)
_DROPOUT: Final = Operation("dropout", _node_dropout, BOTH)
_LOOK_UP: Final = Operation("embedding", _node_embedding, BOTH)
_NODES: Final[dict[str, Operation]] = {
    "addmm": _LINEAR,
    **dict.fromkeys(("bmm", "matmul"), Operation("bmm", _node_product, BOTH)),
    **{name: Operation(name, _node, BOTH) for name in ("mul", "pow", "where")},
    # Their backward passes the gradient on and runs no kernel.
    **{name: Operation(name, _node, FORWARD) for name in ("add", "sub")},
    "truediv": Operation("div", _node, BOTH),
    **dict.fromkeys(("masked_fill", "masked_fill_"), Operation("masked_fill", _node, BOTH)),
    **{name: Operation(name, _node, BOTH) for name in ("relu", "gelu", "tanh")},
    "softmax": Operation("softmax", _node, BOTH),
    "embedding": _LOOK_UP,
    "dropout": _DROPOUT,
    **dict.fromkeys(
        "dense query key value q_proj k_proj v_proj out_proj fc1 fc2 lm_head decoder classifier seq_relationship "
        "q k v o wi wo".split(),
        _LINEAR,
    ),
    **dict.fromkeys("LayerNorm ln_1 ln_2 ln_f final_layer_norm self_attn_layer_norm".split(), _NORM),
    **dict.fromkeys("drop attn_dropout resid_dropout".split(), _DROPOUT),
    **dict.fromkeys("word_embeddings position_embeddings token_type_embeddings embed_tokens wte wpe".split(), _LOOK_UP),
}
"""How to make an operator from a node, by the name of the function or the last word of the module's path."""


def node_operation(op: str) -> Operation | None:
    """Return how to make an operator from the node ``op`` (with the prefix :data:`NODE`); ``None`` if it is unknown."""
    path = op.removeprefix(NODE)
    word = path.rpartition(".")[2]
    if word in _NODES:
        return _NODES[word]
    if len(path) == _NODE_TEXT and len(word) > 1:
        return next((operation for name, operation in _NODES.items() if name.startswith(word)), None)
    return None
