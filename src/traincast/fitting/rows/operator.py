"""Turns a row of an operator table into an :class:`Operator`, with one name for each operation.

The name of a measured operator is ``<operation>.<phase>``. Its shapes are those of the forward, even if the row
measured a backward or a whole training step of the layer. :func:`traincast.fitting.rows.parts.parts_of` returns the
leaf operators that such a row consists of.

Rows of Traincast's own profiler describe their operator in full (``params`` has ``inputs``) and keep its name. Rows
that measured a node of a traced graph have ``graph:<function or module path>`` as ``op``, and the shapes of inputs
(``in``) and output (``out``) in ``params``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from traincast.fitting.rows.products import PRODUCT_OPERATIONS
from traincast.fitting.rows.tokens import TOKEN_OPERATIONS
from traincast.fitting.rows.values import (
    BOTH,
    FORWARD,
    PHASES,
    Built,
    Operation,
    Params,
    ParsedRow,
    dtype_of,
    parsed,
    size_of,
    tensor,
)
from traincast.graph import DType, Operator, OpKind, TensorSpec
from traincast.graph.operator import NO_ATTRIBUTES
from traincast.graph.vocabulary import POINTWISE, kind_of
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


def described_operator(op: str, phase: str, p: Params) -> Operator:
    """Return the operator whose kind, tensors and attributes are in the params ``p``, or raise :class:`RowError`."""
    try:
        kind = OpKind(p.get("kind", op))
    except ValueError:
        raise RowError(f"unknown operator kind {p.get('kind', op)!r}") from None
    attributes = p.get("attributes") or {}
    if not isinstance(attributes, dict) or not all(isinstance(v, int | float | str) for v in attributes.values()):
        raise RowError("attributes is not a JSON object of numbers and texts")
    inputs, outputs = _described_tensors(p["inputs"], "inputs"), _described_tensors(p.get("outputs", ()), "outputs")
    if kind is OpKind.RNN and inputs and len(inputs[0].shape) == 3:
        inputs = (replace(inputs[0], batch_dim=1), *inputs[1:])  # [steps, batch, width], as a capture has it
    operator = Operator(
        name=str(p.get("name") or kind.value),
        kind=kind,
        phase=PHASES[phase],
        inputs=inputs,
        outputs=outputs,
        parameters=_described_tensors(p.get("parameters", ()), "parameters"),
        attributes=attributes or NO_ATTRIBUTES,
    )
    try:
        cost = operator.flops + operator.nbytes + operator.dtype.nbytes
    except (IndexError, ValueError, TypeError):
        cost = math.inf
    if not math.isfinite(cost):
        raise RowError(f"an operator of kind {kind.value} cannot have these tensors")
    return operator


def _described_tensors(found: Any, name: str) -> tuple[TensorSpec, ...]:
    """Parse tensors written as ``{"shape": [...], "dtype": "bf16"}`` or ``[[...], "bf16"]``."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise RowError(f"{name} is not a list of tensors")
    tensors = []
    for item in found:
        shape, dtype = (item.get("shape"), item.get("dtype")) if isinstance(item, dict) else _pair(item, name)
        if not isinstance(shape, Sequence) or isinstance(shape, str):
            raise RowError(f"{name} has a tensor without a shape")
        tensors.append(tensor(dtype_of(str(dtype)), *(size_of(x, f"a dim of {name}") for x in shape)))
    return tuple(tensors)


def _pair(item: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise RowError(f"{name} has an entry that is not a shape and a dtype")
    return item[0], item[1]


_NO_COST: Final = frozenset({"module", "unknown"})
"""Attributes that say where in its model an operator was, and have no effect on its cost."""
_PHASE_WORDS: Final = {"forward": "fwd", "backward": "bwd", "optimizer": "update"}


class RowConfig(NamedTuple):
    """The columns of a row that say what ran, unparsed; device and time are left out."""

    op: str
    phase: str
    dtype: str
    b: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    params: str | None = None


def operator_of(config: RowConfig) -> Operator:
    """Return the operator that a row describes, or raise :class:`RowError`."""
    params = parsed(config.params)
    phase = _PHASE_WORDS.get(config.phase, config.phase)
    if phase not in PHASES:
        raise RowError(f"unknown phase {config.phase!r}")
    if "inputs" in params:
        return described_operator(config.op, phase, params)
    operation = _operation(config.op)
    if operation is None:
        what = "the node of the traced graph is not a known operator" if config.op.startswith(NODE) else ""
        raise RowError(what or f"unknown operator {config.op!r}")
    if phase not in operation.phases:
        raise RowError(f"{config.op} runs nothing in phase {config.phase!r}")
    row = ParsedRow(config.op, dtype_of(config.dtype), config.b, config.m, config.n, config.k, params)
    inputs, outputs, attributes = operation.build(row)
    kind = kind_of(operation.name, source="table")
    assert kind is not None, "every operation is in the vocabulary"
    if kind is OpKind.GEMM and len(inputs[0].shape) > 2:
        kind = OpKind.BATCHED_GEMM
    return Operator(
        name=f"{operation.name}.{phase}",
        kind=kind,
        phase=PHASES[phase],
        inputs=inputs,
        outputs=outputs,
        attributes=attributes or NO_ATTRIBUTES,
    )


def canonical_name(op: str) -> str | None:
    """Return the operation that a table's ``op`` means (``flash_atten`` → ``attention``), or ``None`` if unknown."""
    operation = _operation(op)
    return operation.name if operation else None


def key_of(op: Operator) -> str:
    """Return the configuration of ``op``: name, dtypes, sizes and attributes, without device and time.

    Sizes are as a kernel sees them: the number of elements for point-wise operators, rows and columns for row-wise
    ones. So the same work written with different shapes is one configuration.
    """
    sizes = _KEY_SIZES.get(op.kind, _as_they_are)
    inputs = ",".join([f"{t.dtype.value}{sizes(t.shape)}" for t in op.inputs])
    outputs = ",".join([f"{t.dtype.value}{sizes(t.shape)}" for t in op.outputs])
    attributes = ",".join([f"{name}={op.attributes[name]!r}" for name in sorted(op.attributes) if name not in _NO_COST])
    return f"{op.name}|{op.kind.value}|{op.phase.value}|{inputs}|{outputs}|{attributes}"


def _as_they_are(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _elements(shape: tuple[int, ...]) -> str:
    return str(math.prod(shape))


def _rows_and_columns(shape: tuple[int, ...]) -> str:
    return f"{math.prod(shape[:-1])}x{shape[-1]}" if shape else "1"


_KEY_SIZES: Final[dict[OpKind, Callable[[tuple[int, ...]], str]]] = {
    **dict.fromkeys(POINTWISE, _elements),
    **dict.fromkeys((OpKind.LAYER_NORM, OpKind.SOFTMAX, OpKind.LOSS, OpKind.EMBEDDING), _rows_and_columns),
}

_OPERATIONS: Final = PRODUCT_OPERATIONS | TOKEN_OPERATIONS


@lru_cache(maxsize=8192)
def _operation(op: str) -> Operation | None:
    return node_operation(op) if op.startswith(NODE) else _OPERATIONS.get(op)
