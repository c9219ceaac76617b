"""Point-wise operators and reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traincast.graph.onnx.values import Call, as_tensor

if TYPE_CHECKING:
    import torch


def _unary(name: str) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        import torch

        return getattr(torch, name)(call.tensor(0))

    return run


def _functional(name: str, **defaults: float) -> Callable[[Call], Any]:
    """A function of ``torch.nn.functional``; ``defaults`` are attributes that it takes by position."""

    def run(call: Call) -> Any:
        from torch.nn import functional

        return getattr(functional, name)(call.tensor(0), *(float(call.get(k, v)) for k, v in defaults.items()))

    return run


def _binary(name: str) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        import torch

        operands = [_for_any_batch(call, i) for i in range(len(call))]
        if not any(isinstance(o, torch.Tensor) for o in operands):
            operands[0] = call.tensor(0)
        function = getattr(torch, name)
        if not isinstance(operands[0], torch.Tensor):
            if name in ("add", "mul"):
                operands.reverse()
            elif name == "sub":
                return torch.rsub(operands[1], operands[0])
            elif name == "pow":
                return torch.pow(operands[0], operands[1])
            else:
                operands[0] = _scalar_like(operands[0], operands[1])
        if name in ("maximum", "minimum", "logical_and", "logical_or", "logical_xor"):
            operands = [o if isinstance(o, torch.Tensor) else _scalar_like(o, operands[0]) for o in operands]
        return reduce(function, operands)

    return run


def _for_any_batch(call: Call, position: int) -> Any:
    """Return an operand. A constant with one row per sample of the file's batch becomes one row if all are equal."""
    value = call.values[position]
    rows = isinstance(value, np.ndarray) and value.ndim > 1 and call.fixed is not None and value.shape[0] == call.fixed
    if rows and value.shape[0] > 1 and (value == value[:1]).all():
        return as_tensor(value[:1])
    return call.operand(position)


def _scalar_like(value: float, other: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty((), dtype=other.dtype)


def _gelu(call: Call) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(call.tensor(0), approximate=call.get("approximate", "none"))


def _swish(call: Call) -> torch.Tensor:
    import torch

    return torch.nn.functional.silu(call.tensor(0), inplace=call.get("in_place", False))


def _hard_swish(call: Call) -> torch.Tensor:
    import torch

    return torch.nn.functional.hardswish(call.tensor(0), inplace=call.get("in_place", False))


def _elu(call: Call) -> torch.Tensor:
    import torch

    return torch.nn.functional.elu(call.tensor(0), float(call.get("alpha", 1.0)), call.get("in_place", False))


def _prelu(call: Call) -> torch.Tensor:
    import torch

    return torch.nn.functional.prelu(call.tensor(0), call.tensor(1).reshape(-1))


def _clip(call: Call) -> torch.Tensor:
    import torch

    low = call.number(1) if call.has(1) else call.get("min", None)
    high = call.number(2) if call.has(2) else call.get("max", None)
    if low is not None and high is not None and abs(low) < 1e30 and abs(high) < 1e30:
        return torch.nn.functional.hardtanh(call.tensor(0), low, high, call.get("in_place", False))
    return torch.clamp(call.tensor(0), low, high)


def _softmax(call: Call) -> torch.Tensor:
    return call.tensor(0).softmax(dim=int(call.get("axis", -1)))


def _log_softmax(call: Call) -> torch.Tensor:
    return call.tensor(0).log_softmax(dim=int(call.get("axis", -1)))


def _where(call: Call) -> torch.Tensor:
    import torch

    return torch.where(call.tensor(0), call.operand(1), call.operand(2))


def _cast(call: Call) -> torch.Tensor:
    """Casts between floating-point formats are left out: a graph is captured in fp32."""
    import torch
    from onnx import helper

    data = call.tensor(0)
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(int(call.get("to", 1)))).kind
    return data.to({"i": torch.int64, "u": torch.int64, "b": torch.bool}.get(kind, torch.float32))


def _cast_like(call: Call) -> torch.Tensor:
    return call.tensor(0).to(call.tensor(1).dtype)


def _reduced(name: str) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        import torch

        data, axes = call.tensor(0), call.axes()
        if axes is None and call.get("noop_with_empty_axes", 0):
            return data
        dims = list(range(data.ndim)) if axes is None else axes
        keep = bool(call.get("keepdims", 1))
        if name == "square":
            return data.square().sum(dim=dims, keepdim=keep)
        if name == "linalg_vector_norm":
            return torch.linalg.vector_norm(data, int(call.node.op[-1]), dims, keep)
        return getattr(torch, name)(data, dim=dims, keepdim=keep)

    return run


def _arg(name: str) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        import torch

        return getattr(torch, name)(call.tensor(0), int(call.get("axis", 0)), bool(call.get("keepdims", 1)))

    return run


def _top_k(call: Call) -> Any:
    import torch

    return tuple(torch.topk(call.tensor(0), call.numbers(1)[0], int(call.get("axis", -1))))


def _cumsum(call: Call) -> torch.Tensor:
    return call.tensor(0).cumsum(dim=call.numbers(1)[0])


def _mean(call: Call) -> Any:
    return _binary("add")(call) / len(call)


_UNARY: Final = {
    **{
        name: name.lower()
        for name in "Relu Sigmoid Tanh Sqrt Exp Log Neg Abs Erf Erfc Sin Cos Floor Ceil Round Sign".split()
    },
    "Reciprocal": "reciprocal",
    "Not": "logical_not",
    "IsNaN": "isnan",
    "IsInf": "isinf",
}
_BINARY: Final = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Pow": "pow",
    "Mod": "remainder",
    "Max": "maximum",
    "Min": "minimum",
    "Sum": "add",
    "Equal": "eq",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Less": "lt",
    "LessOrEqual": "le",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
_REDUCED: Final = {
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceMax": "amax",
    "ReduceMin": "amin",
    "ReduceLogSumExp": "logsumexp",
    "ReduceL1": "linalg_vector_norm",
    "ReduceL2": "linalg_vector_norm",
    "ReduceSumSquare": "square",
}

ELEMENTS: Final[dict[str, Callable[[Call], Any]]] = {
    **{op: _unary(name) for op, name in _UNARY.items()},
    **{op: _binary(name) for op, name in _BINARY.items()},
    **{op: _reduced(name) for op, name in _REDUCED.items()},
    "HardSwish": _hard_swish,
    "HardSigmoid": _functional("hardsigmoid"),
    "LeakyRelu": _functional("leaky_relu", alpha=0.01),
    "Elu": _elu,
    "Selu": _functional("selu"),
    "Softplus": _functional("softplus"),
    "Softsign": _functional("softsign"),
    "Mish": _functional("mish"),
    "Gelu": _gelu,
    "Swish": _swish,
    "PRelu": _prelu,
    "Clip": _clip,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Mean": _mean,
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "TopK": _top_k,
    "CumSum": _cumsum,
}
"""How each operator of ONNX runs in PyTorch."""
