"""Describes an operator that PyTorch dispatches: its kind, its inputs in canonical order, its attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traincast.graph.vocabulary import OpKind, Scalar, is_backward, kind_of

if TYPE_CHECKING:
    import torch


def describe(
    name: str, args: tuple[Any, ...], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> tuple[OpKind, list[torch.Tensor], dict[str, Scalar]]:
    """Returns the kind of an operator, its inputs in canonical order, and the attributes that its cost depends on.

    An operator that the vocabulary does not have counts as element-wise and has the attribute ``unknown``.
    """
    attributes: dict[str, Scalar] = {}
    kind = kind_of(name)
    if kind is None:
        kind = OpKind.ELEMENTWISE
        attributes["unknown"] = True
    match kind:
        case OpKind.GEMM if name in ("addmm", "addmv"):
            inputs = [inputs[1], inputs[2], inputs[0]]
        case OpKind.BATCHED_GEMM if name == "baddbmm":
            inputs = [inputs[1], inputs[2], inputs[0]]
        case OpKind.ATTENTION:
            flags = [a for a in args if isinstance(a, bool)]
            attributes["causal"] = bool(flags[0]) if flags else False
            inputs = [inputs[0], inputs[4], *inputs[1:4]] if is_backward(name) else inputs[:3]
        case OpKind.CONV:
            backward = is_backward(name)
            offset = 1 if backward else 0
            weight = inputs[1 + offset]
            stride, transposed, groups = args[3 + offset], args[6 + offset], args[8 + offset]
            attributes |= {
                "stride": int(stride[0]),
                "kernel": int(weight.shape[-1]),
                "groups": int(groups),
                "transposed": bool(transposed),
            }
            if backward:
                attributes["products"] = int(args[10][0]) + int(args[10][1])
            if groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1:
                kind = OpKind.DEPTHWISE_CONV
        case OpKind.SCAN:
            attributes |= dict.fromkeys(("chunk",) if isinstance(args[-1], int) else (), args[-1])
        case OpKind.LAYER_NORM | OpKind.BATCH_NORM if is_backward(name):
            inputs = inputs[:3]
        case OpKind.GATHER | OpKind.COPY if name in ("copy_", "index_put_", "scatter_add_", "index_add_"):
            inputs = inputs[1:] or inputs
        case _:
            pass
    return kind, inputs, attributes
