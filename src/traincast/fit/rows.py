"""A row of an operator table as an :class:`Operator`, under one name for each operation.

The name of a measured operator is ``<operation>.<phase>``, and its shapes are those of the forward, also where the row
measured a backward or a whole training step of the layer: the name says what was run, the shapes and attributes on
what. :func:`traincast.fit.parts.parts_of` says what leaf operators that amounts to.

Rows of Traincast's own profiler describe their operator in full (``params`` has ``inputs``) and keep its name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from traincast.fit.parts import parts_of
from traincast.graph import DType, Operator, OpKind, Phase, Scalar, TensorSpec
from traincast.graph.operator import NO_ATTRIBUTES

Params: TypeAlias = Mapping[str, Any]

VOCABULARY: Final = 50_257
"""Words of GPT-2's vocabulary: what rows that do not state one were measured with."""
VOCABULARY_MULTIPLE: Final = 128
"""Megatron pads the vocabulary so that every rank of a tensor group holds a multiple of this."""
_MAX_SIZE: Final = 10**15
_PHASES: Final = {
    "fwd": Phase.FORWARD,
    "bwd": Phase.BACKWARD,
    "bwd_data": Phase.BACKWARD,
    "bwd_weight": Phase.BACKWARD,
    "bwd_grad_act": Phase.BACKWARD,
    "bwd_grad_w": Phase.BACKWARD,
    "update": Phase.OPTIMIZER,
    "fwd+bwd+update": Phase.FORWARD,
}
_NO_COST: Final = frozenset({"module", "unknown"})
"""Attributes that say where an operator stood in its model, not what it costs."""
_PHASE_WORDS: Final = {"forward": "fwd", "backward": "bwd", "optimizer": "update"}
_DTYPE_WORDS: Final = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16",
    "bfloat16": "bf16", "float8": "fp8", "fp4": "nvfp4",
}  # fmt: skip


class RowError(ValueError):
    """A row that describes no operator; the text is the reason."""


class RowConfig(NamedTuple):
    """What a row ran, apart from where and how long: its columns as the table has them."""

    op: str
    phase: str
    dtype: str
    b: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    params: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOperator:
    """What a row measured, and the leaf operators that it amounts to."""

    operator: Operator
    parts: tuple[Operator, ...]


def measured_operator(row: Mapping[str, Any]) -> MeasuredOperator:
    """The operator and parts of one row of a table, given by column name."""
    operator = operator_of(RowConfig(**{name: row[name] for name in RowConfig._fields if name in row}))
    return MeasuredOperator(operator=operator, parts=parts_of(operator))


def operator_of(config: RowConfig) -> Operator:
    """The operator that a row describes, or :class:`RowError`."""
    params = _parsed(config.params)
    phase = _PHASE_WORDS.get(config.phase, config.phase)
    if phase not in _PHASES:
        raise RowError(f"unknown phase {config.phase!r}")
    if "inputs" in params:
        return _described(config.op, phase, params)
    operation = _operation(config.op)
    if operation is None:
        what = "a node of a traced graph that is no known operator" if config.op.startswith(_NODE) else ""
        raise RowError(what or f"unknown operator {config.op!r}")
    if phase not in operation.phases:
        raise RowError(f"{config.op} runs nothing in phase {config.phase!r}")
    row = _Row(config.op, dtype_of(config.dtype), config.b, config.m, config.n, config.k, params)
    kind, inputs, outputs, attributes = operation.build(row)
    return Operator(
        name=f"{operation.name}.{phase}",
        kind=kind,
        phase=_PHASES[phase],
        inputs=inputs,
        outputs=outputs,
        attributes=attributes or NO_ATTRIBUTES,
    )


def canonical_name(op: str) -> str | None:
    """The operation that a table's ``op`` means (``flash_atten`` → ``attention``), or ``None``."""
    operation = _operation(op)
    return operation.name if operation else None


@lru_cache(maxsize=256)
def dtype_of(text: str) -> DType:
    """The dtype that a table's spelling means."""
    plain = str(text).lower().removeprefix("torch.")
    try:
        return DType(_DTYPE_WORDS.get(plain, plain))
    except ValueError:
        raise RowError(f"unknown dtype {text!r}") from None


def key_of(op: Operator) -> str:
    """The configuration of ``op``: name, dtypes, sizes and attributes; not where it ran, nor how fast.

    Sizes are as a kernel sees them: point-wise operators by their number of elements, row-wise ones by rows and
    columns, so that the same work written in two ways is one configuration.
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
    **dict.fromkeys((OpKind.ACTIVATION, OpKind.ELEMENTWISE, OpKind.DROPOUT), _elements),
    **dict.fromkeys((OpKind.LAYER_NORM, OpKind.SOFTMAX, OpKind.LOSS, OpKind.EMBEDDING), _rows_and_columns),
}


class _Row(NamedTuple):
    """A row with its dtype and parameters understood."""

    op: str
    dtype: DType
    b: int | None
    m: int | None
    n: int | None
    k: int | None
    params: Params


_Built: TypeAlias = tuple[OpKind, tuple[TensorSpec, ...], tuple[TensorSpec, ...], dict[str, Scalar] | None]


class _Operation(NamedTuple):
    """How the rows of one ``op`` become operators."""

    name: str
    build: Callable[[_Row], _Built]
    phases: frozenset[str]


def _parsed(params: str | None) -> Params:
    if not params:
        return {}
    try:
        found = json.loads(params)
    except (ValueError, TypeError, RecursionError):
        raise RowError("params is not valid JSON") from None
    if not isinstance(found, dict):
        raise RowError("params is not a JSON object")
    return found


@lru_cache(maxsize=1 << 17)
def _tensor(dtype: DType, *shape: int) -> TensorSpec:
    return TensorSpec(shape, dtype)


def _size(value: Any, name: str) -> int:
    """A positive whole number, or an error that names it."""
    if type(value) is int and 0 < value <= _MAX_SIZE:
        return value
    if value is None:
        raise RowError(f"{name} is not stated")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RowError(f"{name} is not a number") from None
    if not 0 < number <= _MAX_SIZE or number != int(number):
        raise RowError(f"{name} is not a positive whole number")
    return int(number)


def _stated(params: Params, *names: str) -> int:
    """The size that goes by one of ``names``."""
    for name in names:
        if name in params:
            return _size(params[name], name)
    raise RowError(f"{names[0]} is not stated")


def _share(whole: int, ranks: int, what: str) -> int:
    """What each of ``ranks`` ranks has of ``whole``."""
    if whole % ranks:
        raise RowError(f"{what} does not divide among the ranks of its tensor group")
    return whole // ranks


# Products


def _gemm(row: _Row) -> _Built:
    b = 1 if row.b is None else _size(row.b, "b")
    m, n, k = _size(row.m, "m"), _size(row.n, "n"), _size(row.k, "k")
    dtype, p = row.dtype, row.params
    out = dtype if dtype in _FULL_WIDTH else DType.BF16
    if "out_dtype" in p:
        out = dtype_of(p["out_dtype"])
    attributes: dict[str, Scalar] = {}
    if "layout" in p:
        attributes["layout"] = str(p["layout"])
    elif "tA" in p and "tB" in p:
        attributes["layout"] = f"{p['tA']}{p['tB']}"
    if "accumulate" in p:
        attributes["accumulate"] = str(p["accumulate"]).lower() == "true"
    if row.op.startswith("gemm_bias"):
        attributes["bias"] = True
        if row.op == "gemm_bias_act":
            attributes["act"] = str(p.get("act") or "none").lower()
            attributes["optimizer"] = str(p.get("optimizer") or "none").lower()
    if b > 1 or row.op == "bmm":
        lead = _tensor(dtype, b, m, k), _tensor(dtype, b, k, n)
        return OpKind.BATCHED_GEMM, lead, (_tensor(out, b, m, n),), attributes
    return OpKind.GEMM, (_tensor(dtype, m, k), _tensor(dtype, k, n)), (_tensor(out, m, n),), attributes


_FULL_WIDTH: Final = frozenset({DType.FP64, DType.FP32, DType.TF32, DType.FP16})


def _bmm(row: _Row) -> _Built:
    """A batched product; with heads stated, the weighted values of an unfused attention."""
    return _head_product(row) if "h" in row.params else _gemm(row)


def _head_product(row: _Row) -> _Built:
    """Scores (``baddbmm``) or weighted values (``bmm``) of an unfused attention."""
    b, heads, seq, dim = _heads(row.params)
    lead = b * heads
    m, n, k = (seq, seq, dim) if row.op == "baddbmm" else (seq, dim, seq)
    t = row.dtype
    return OpKind.BATCHED_GEMM, (_tensor(t, lead, m, k), _tensor(t, lead, k, n)), (_tensor(t, lead, m, n),), None


def _grouped_gemm(row: _Row) -> _Built:
    """One product per expert; ``m`` rows for each of ``b``."""
    groups, m, n, k = _size(row.b, "b"), _size(row.m, "m"), _size(row.n, "n"), _size(row.k, "k")
    p, t = row.params, row.dtype
    attributes: dict[str, Scalar] = {
        name: str(p[name]).lower() == "true"
        for name in ("accumulate", "use_split_accumulator", "single_output")
        if name in p
    }
    if "main_grad_dtype" in p:
        attributes["main_grad_dtype"] = dtype_of(p["main_grad_dtype"]).value
    out = dtype_of(p["out_dtype"]) if "out_dtype" in p else t
    inputs = _tensor(t, groups * m, k), _tensor(t, groups, k, n)
    return OpKind.GROUPED_GEMM, inputs, (_tensor(out, groups * m, n),), attributes


_POWER_LAW: Final = re.compile(r"power_law_(\d+(?:\.\d+)?)")


def _moe_mlp(row: _Row) -> _Built:
    """What one rank computes of a gated mixture of experts; ``skew`` is the exponent of the experts' popularity."""
    p, t = row.params, row.dtype
    tokens, topk, experts = _stated(p, "num_tokens"), _stated(p, "topk"), _stated(p, "num_experts")
    hidden, inter = _stated(p, "hidden_size"), _stated(p, "inter_size")
    tp, ep = _stated(p, "moe_tp_size"), _stated(p, "moe_ep_size")
    if ep > experts:
        raise RowError("moe_ep_size is larger than num_experts")
    if topk > experts:
        raise RowError("topk is larger than num_experts")
    distribution = p.get("distribution", "balanced")
    skew = _POWER_LAW.fullmatch(distribution) if isinstance(distribution, str) else None
    if skew is None and distribution not in ("balanced", "uniform"):
        raise RowError(f"unknown distribution {distribution!r}")
    x = _tensor(t, max(1, tokens * topk // ep), hidden)
    weight = _tensor(t, experts // ep, hidden, 2 * max(1, inter // tp))
    attributes: dict[str, Scalar] = {
        "num_tokens": tokens,
        "topk": topk,
        "num_experts": experts,
        "ep": ep,
        "tp": tp,
        "skew": float(skew.group(1)) if skew else 0.0,
    }
    return OpKind.GROUPED_GEMM, (x, weight), (x,), attributes


def _heads(p: Params) -> tuple[int, int, int, int]:
    """``(batch, heads of this rank, sequence, head dim)`` of Megatron's parameters."""
    heads, ranks = _stated(p, "h"), _stated(p, "mp")
    if ranks > heads:
        raise RowError("mp is larger than h: a rank without a head")
    return _stated(p, "b"), _share(heads, ranks, "h"), _stated(p, "l"), _share(_stated(p, "dim"), heads, "dim")


def _attention(row: _Row) -> _Built:
    p, t = row.params, row.dtype
    if "mp" in p:
        batch, heads, seq, dim = _heads(p)
        kv_heads = heads
    else:
        batch, heads, seq, dim = (_stated(p, name) for name in ("batch", "heads", "seq", "head_dim"))
        kv_heads = _stated(p, "kv_heads") if "kv_heads" in p else heads
        if kv_heads > heads:
            raise RowError("kv_heads is larger than heads")
    q, kv = _tensor(t, batch, heads, seq, dim), _tensor(t, batch, kv_heads, seq, dim)
    return OpKind.ATTENTION, (q, kv, kv), (q,), {"causal": row.op != "flash_attn_full"}


def _conv2d(row: _Row) -> _Built:
    """Convolutions: TensorFlow's parameters (``batchsize`` …; NHWC, padding "same" or "valid") or explicit ones."""
    p, t = row.params, row.dtype
    attributes: dict[str, Scalar]
    if "batchsize" in p:
        batch, c_in, c_out = (_stated(p, name) for name in ("batchsize", "channels_in", "channels_out"))
        h = w = _stated(p, "matsize")
        kh = kw = _stated(p, "kernelsize")
        stride = stride_w = _stated(p, "strides")
        same = bool(p.get("padding"))
        ho = wo = -(-h // stride) if same else -(-(h - kh + 1) // stride)
        padding = padding_w = (max(0, (ho - 1) * stride + kh - h) + 1) // 2 if same else 0
        attributes = {"data_format": "nhwc"}
    else:
        batch, c_in, c_out = _stated(p, "batch"), _stated(p, "c_in"), _stated(p, "c_out")
        h, w = _stated(p, "h", "hw"), _stated(p, "w", "hw")
        kh, kw = _stated(p, "kh", "kernel"), _stated(p, "kw", "kernel")
        stride, stride_w = _stated(p, "stride_h", "stride"), _stated(p, "stride_w", "stride")
        padding, padding_w = (_padding(p, name) for name in ("pad_h", "pad_w"))
        ho, wo = (h + 2 * padding - kh) // stride + 1, (w + 2 * padding_w - kw) // stride_w + 1
        attributes = {}
    if ho < 1 or wo < 1:
        raise RowError("the kernel is larger than the padded image")
    attributes["stride"], attributes["padding"] = stride, padding
    if stride_w != stride:
        attributes["stride_w"] = stride_w
    if padding_w != padding:
        attributes["padding_w"] = padding_w
    attributes["bias"] = bool(p.get("use_bias", False))
    attributes["act"] = str(p.get("act") or "none").lower()
    attributes["optimizer"] = str(p.get("optimizer") or "none").lower()
    inputs = _tensor(t, batch, c_in, h, w), _tensor(t, c_out, c_in, kh, kw)
    return OpKind.CONV, inputs, (_tensor(t, batch, c_out, ho, wo),), attributes


def _padding(p: Params, name: str) -> int:
    value = p.get(name, p.get("padding", 0))
    return 0 if value == 0 else _size(value, name)


_GATES: Final = {"rnn:LSTM": ("lstm", 4), "rnn:GRU": ("gru", 3), "rnn:Vanilla": ("vanilla", 1)}


def _rnn(row: _Row) -> _Built:
    """A recurrent layer, its input as wide as its state."""
    p, t = row.params, row.dtype
    cell, gates = _GATES[row.op]
    hidden = _stated(p, "Hidden_units", "Hidden_Units")
    x = TensorSpec((_stated(p, "Timesteps"), _stated(p, "N"), hidden), t, batch_dim=1)
    weight = _tensor(t, gates * hidden, hidden)
    return OpKind.RNN, (x, weight, weight), (x,), {"cell": cell}


# Row-wise and point-wise operators


def _tokens(p: Params) -> tuple[int, ...]:
    return _stated(p, "b"), _stated(p, "l"), _stated(p, "dim")


def _mlp_tokens(p: Params) -> tuple[int, ...]:
    return _stated(p, "b"), _stated(p, "l"), _share(4 * _stated(p, "dim"), _stated(p, "mp"), "4 · dim")


def _scores(p: Params) -> tuple[int, ...]:
    heads, ranks = _stated(p, "h"), _stated(p, "mp")
    if ranks > heads:
        raise RowError("mp is larger than h: a rank without a head")
    seq = _stated(p, "l")
    return _stated(p, "b"), _share(heads, ranks, "h"), seq, seq


def _each(
    kind: OpKind, extent: Callable[[Params], tuple[int, ...]], inputs: int = 1, **attributes: Scalar
) -> Callable[[_Row], _Built]:
    """Builds an operator on ``inputs`` tensors of one shape: ``rows`` × ``cols``, or what ``extent`` says."""

    def build(row: _Row) -> _Built:
        p = row.params
        shape = (_stated(p, "rows"), _stated(p, "cols")) if "rows" in p else extent(p)
        x = _tensor(row.dtype, *shape)
        return kind, (x,) * inputs, (x,), dict(attributes)

    return build


def _embedding(row: _Row) -> _Built:
    """A look-up in the rows of the vocabulary that a rank of the tensor group holds."""
    b, seq, dim = _tokens(row.params)
    ranks = _stated(row.params, "mp")
    indices = _tensor(DType.INT64, b, seq)
    table = _tensor(row.dtype, _vocabulary_share(ranks), dim)
    return OpKind.EMBEDDING, (table, indices), (_tensor(row.dtype, b, seq, dim),), {"tp": ranks}


def _cross_entropy(row: _Row) -> _Built:
    """The loss on a rank's share of the logits."""
    p = row.params
    b, seq, ranks = _stated(p, "b"), _stated(p, "l"), _stated(p, "mp")
    logits = _tensor(row.dtype, b, seq, _vocabulary_share(ranks))
    return OpKind.LOSS, (logits, _tensor(DType.INT64, b, seq)), (_tensor(row.dtype, b, seq),), {"tp": ranks}


def _vocabulary_share(ranks: int) -> int:
    return VOCABULARY_MULTIPLE * -(-VOCABULARY // (VOCABULARY_MULTIPLE * ranks))


def _optimizer(row: _Row) -> _Built:
    """An optimizer step on all weights of a rank; ``stage`` of a pipeline, or ``whole`` for a model in one piece."""
    p = row.params
    attributes: dict[str, Scalar]
    if "params" in p:
        count = _stated(p, "params")
        attributes = {"stage": "whole", "tensors": _stated(p, "param_tensors"), "layers": _stated(p, "num_layers")}
        attributes["tp"] = 1
    else:
        ranks, dim, layers = _stated(p, "mp"), _stated(p, "dim"), _stated(p, "encoders")
        stage = row.op.removesuffix("Stage_optimizer")
        count = layers * _share(12 * dim * dim, ranks, "12 · dim²")
        if stage != "middle":
            count += _vocabulary_share(ranks) * dim
        attributes = {"stage": stage, "layers": layers, "dim": dim, "tp": ranks}
    weight = _tensor(row.dtype, count)
    return OpKind.OPTIMIZER, (weight, weight, weight), (weight, weight), attributes


# Nodes of a traced graph: ``graph:<function or module>`` with the shapes that went in and came out


def _shapes(value: Any) -> Any:
    """Nested lists from ``[[8, 512], [1]]`` or ``(8, 512)``."""
    text = str(value).replace("(", "[").replace(")", "]").replace(",]", "]")
    try:
        return json.loads(text)
    except ValueError:
        raise RowError("a shape cannot be read") from None


def _node_tensors(row: _Row) -> tuple[list[TensorSpec], TensorSpec]:
    shapes, out = _shapes(row.params.get("in", "[]")), _shapes(row.params.get("out", "[]"))
    if not isinstance(out, list) or not out or out == [1]:
        raise RowError("a node of a traced graph that works on a number, not on a tensor")
    tensors = [s for s in shapes if s != [1]]
    if not tensors:
        raise RowError("a node of a traced graph without an input tensor")
    specs = [_tensor(row.dtype, *(_size(x, "a dim") for x in s)) for s in tensors]
    return specs, _tensor(row.dtype, *(_size(x, "a dim") for x in out))


def _node(kind: OpKind) -> Callable[[_Row], _Built]:
    def build(row: _Row) -> _Built:
        inputs, out = _node_tensors(row)
        return kind, tuple(inputs), (out,), None

    return build


def _node_dropout(row: _Row) -> _Built:
    if "-inf-" in str(row.params.get("model", "")):
        raise RowError("dropout does nothing outside training")
    return _node(OpKind.DROPOUT)(row)


def _node_product(row: _Row) -> _Built:
    """``bmm`` and ``matmul`` of two stacks of matrices."""
    inputs, out = _node_tensors(row)
    if len(inputs) != 2 or len(inputs[0].shape) < 3 or len(inputs[1].shape) != len(inputs[0].shape):
        raise RowError("a product that is not of two stacks of matrices")
    a, b = (_tensor(t.dtype, math.prod(t.shape[:-2]), *t.shape[-2:]) for t in inputs)
    return OpKind.BATCHED_GEMM, (a, b), (_tensor(out.dtype, a.shape[0], a.shape[1], b.shape[2]),), None


def _node_linear(row: _Row) -> _Built:
    """``addmm`` (bias, input, weight), or a linear layer that states its input alone."""
    inputs, out = _node_tensors(row)
    x = inputs[1] if len(inputs) == 3 else inputs[0]
    m, k, n = math.prod(x.shape[:-1]), x.shape[-1], out.shape[-1]
    t = row.dtype
    return OpKind.GEMM, (_tensor(t, m, k), _tensor(t, k, n)), (_tensor(t, m, n),), {"bias": True}


def _node_embedding(row: _Row) -> _Built:
    """A look-up; the table's height is not stated by a layer, nor does it matter."""
    inputs, out = _node_tensors(row)
    indices = _tensor(DType.INT64, *inputs[0].shape)
    return OpKind.EMBEDDING, (indices,), (out,), None


_FORWARD: Final = frozenset({"fwd"})
_BOTH: Final = frozenset({"fwd", "bwd"})
_PRODUCTS: Final = frozenset({"fwd", "bwd", "bwd_data", "bwd_weight", "fwd+bwd+update"})
_EACH_GRADIENT: Final = frozenset({"fwd", "bwd", "bwd_data", "bwd_weight"})
_UPDATE: Final = frozenset({"update"})

_OPERATIONS: Final[dict[str, _Operation]] = {
    "gemm": _Operation("gemm", _gemm, _PRODUCTS),
    "gemm_bias": _Operation("gemm_bias", _gemm, _PRODUCTS),
    "gemm_bias_act": _Operation("gemm_bias_act", _gemm, _PRODUCTS),
    "bmm": _Operation("bmm", _bmm, _PRODUCTS),
    "baddbmm": _Operation("baddbmm", _head_product, _BOTH),
    "grouped_gemm": _Operation("grouped_gemm", _grouped_gemm, frozenset({"fwd", "bwd_grad_act", "bwd_grad_w"})),
    "moe_mlp": _Operation("moe_mlp", _moe_mlp, _FORWARD),
    **dict.fromkeys(
        ("flash_attn_causal", "flash_attn_full", "flash_atten"), _Operation("attention", _attention, _BOTH)
    ),
    "conv2d": _Operation("conv2d", _conv2d, _PRODUCTS),
    **dict.fromkeys(_GATES, _Operation("rnn", _rnn, _EACH_GRADIENT)),
    **{
        name: _Operation(name, _each(OpKind.ELEMENTWISE, _tokens, inputs=2), _BOTH)
        for name in ("add", "mul", "div", "pow")
    },
    **{
        f"{name}u": _Operation(name, _each(OpKind.ELEMENTWISE, _tokens), _BOTH) for name in ("add", "mul", "div", "pow")
    },
    "res_add": _Operation("add", _each(OpKind.ELEMENTWISE, _tokens, inputs=2), _BOTH),
    "fillmask": _Operation("masked_fill", _each(OpKind.ELEMENTWISE, _scores), _BOTH),
    "RoPE": _Operation("rope", _each(OpKind.ELEMENTWISE, _heads), _BOTH),
    "relu": _Operation("relu", _each(OpKind.ACTIVATION, _tokens), _BOTH),
    "tanh": _Operation("tanh", _each(OpKind.ACTIVATION, _tokens), _BOTH),
    "gelu": _Operation("gelu", _each(OpKind.ACTIVATION, _mlp_tokens), _BOTH),
    **dict.fromkeys(("ln", "layernorm"), _Operation("layernorm", _each(OpKind.LAYER_NORM, _tokens), _BOTH)),
    "RMSlayernorm": _Operation("rmsnorm", _each(OpKind.LAYER_NORM, _tokens), _BOTH),
    "softmax": _Operation("softmax", _each(OpKind.SOFTMAX, _scores), _BOTH),
    "ScaledUpperTriangMaskedSoftmax": _Operation("masked_softmax", _each(OpKind.SOFTMAX, _scores, causal=True), _BOTH),
    "embedding": _Operation("embedding", _embedding, _BOTH),
    **dict.fromkeys(
        ("parallel_cross_entropy", "parallel_cross_entropy_128"), _Operation("cross_entropy", _cross_entropy, _BOTH)
    ),
    **dict.fromkeys(
        ("optimizer", "firstStage_optimizer", "middleStage_optimizer", "lastStage_optimizer"),
        _Operation("optimizer", _optimizer, _UPDATE),
    ),
}
"""How to make an operator of a row, by its ``op``."""

_LINEAR: Final = _Operation("gemm_bias", _node_linear, _BOTH)
_NORM: Final = _Operation("layernorm", _node(OpKind.LAYER_NORM), _BOTH)
_DROPOUT: Final = _Operation("dropout", _node_dropout, _BOTH)
_LOOK_UP: Final = _Operation("embedding", _node_embedding, _BOTH)
_NODES: Final[dict[str, _Operation]] = {
    "addmm": _LINEAR,
    **dict.fromkeys(("bmm", "matmul"), _Operation("bmm", _node_product, _BOTH)),
    **{name: _Operation(name, _node(OpKind.ELEMENTWISE), _BOTH) for name in ("mul", "pow", "where")},
    # Their backward hands the gradient on, and runs nothing.
    **{name: _Operation(name, _node(OpKind.ELEMENTWISE), _FORWARD) for name in ("add", "sub")},
    "truediv": _Operation("div", _node(OpKind.ELEMENTWISE), _BOTH),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _Operation("masked_fill", _node(OpKind.ELEMENTWISE), _BOTH)),
    **{name: _Operation(name, _node(OpKind.ACTIVATION), _BOTH) for name in ("relu", "gelu", "tanh")},
    "softmax": _Operation("softmax", _node(OpKind.SOFTMAX), _BOTH),
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
"""The same for nodes of a traced graph, by function or by the last word of a module's path."""
_NODE: Final = "graph:"
_NODE_TEXT: Final = 40
"""Characters at which tables cut the path of a module: its last word may be incomplete."""


@lru_cache(maxsize=8192)
def _operation(op: str) -> _Operation | None:
    if not op.startswith(_NODE):
        return _OPERATIONS.get(op)
    path = op.removeprefix(_NODE)
    word = path.rpartition(".")[2]
    if word in _NODES:
        return _NODES[word]
    if len(path) == _NODE_TEXT and len(word) > 1:
        return next((operation for name, operation in _NODES.items() if name.startswith(word)), None)
    return None


# Rows that describe their operator in full


def _described(op: str, phase: str, p: Params) -> Operator:
    try:
        kind = OpKind(p.get("kind", op))
    except ValueError:
        raise RowError(f"unknown operator kind {p.get('kind', op)!r}") from None
    attributes = p.get("attributes") or {}
    if not isinstance(attributes, dict) or not all(isinstance(v, int | float | str) for v in attributes.values()):
        raise RowError("attributes is not an object of plain values")
    inputs, outputs = _described_tensors(p["inputs"], "inputs"), _described_tensors(p.get("outputs", ()), "outputs")
    operator = Operator(
        name=str(p.get("name") or kind.value),
        kind=kind,
        phase=_PHASES[phase],
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
        raise RowError(f"the tensors are not those of a {kind.value} operator")
    return operator


def _described_tensors(found: Any, name: str) -> tuple[TensorSpec, ...]:
    """Tensors written as ``{"shape": [...], "dtype": "bf16"}`` or ``[[...], "bf16"]``."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise RowError(f"{name} is not a list of tensors")
    tensors = []
    for item in found:
        shape, dtype = (item.get("shape"), item.get("dtype")) if isinstance(item, dict) else _pair(item, name)
        if not isinstance(shape, Sequence) or isinstance(shape, str):
            raise RowError(f"{name} has a tensor without a shape")
        tensors.append(_tensor(dtype_of(str(dtype)), *(_size(x, f"a dim of {name}") for x in shape)))
    return tuple(tensors)


def _pair(item: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise RowError(f"{name} has an entry that is not a shape and a dtype")
    return item[0], item[1]
