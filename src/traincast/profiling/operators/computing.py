"""Builders of norms, softmax, dropout, losses, pools and resizing."""

from __future__ import annotations

import math
from typing import Final

import torch

import traincast.graph.zoo.parts.kernels  # noqa: F401  (registers the operators of the zoo)
from traincast.graph import Operator
from traincast.profiling.operators.tensors import Builder, Call, CannotRunError, Make, bound, named
from traincast.profiling.operators.windows import Window, pool_window

aten: Final = torch.ops.aten
own: Final = torch.ops.traincast
_EPS: Final = 1e-5
_MEAN: Final = 1  # a loss reduced by its mean, as aten counts reductions


# Norms


def _batch_norm(operator: Operator, make: Make) -> Call:
    if operator.is_gradient:
        grad, x, weight = make.all(operator.inputs[:3])
        _, mean, inverse = aten.native_batch_norm.default(x, weight, weight, None, None, True, 0.1, _EPS)
        arguments = (grad, x, weight, None, None, mean, inverse, True, _EPS, [True, True, True])
        return bound(aten.native_batch_norm_backward.default, arguments)
    x, *rest = make.all(operator.inputs)
    rest = [*rest, None, None, None, None][:4]
    if rest[3] is not None:
        rest[3] = rest[3].abs() + 1
    return bound(aten.native_batch_norm.default, (x, *rest, True, 0.1, _EPS))


def _layer_norm(operator: Operator, make: Make) -> Call:
    if operator.is_gradient:
        grad, x = make.all(operator.inputs[:2])
        shape = list(operator.outputs[1].shape) if len(operator.outputs) > 1 else [x.shape[-1]]
        _, mean, rstd = aten.native_layer_norm.default(x, shape, None, None, _EPS)
        weight, bias = (torch.ones(shape, dtype=x.dtype, device=x.device) for _ in range(2))
        biased = len(operator.outputs) > 2
        arguments = (grad, x, shape, mean, rstd, weight, bias if biased else None, [True, True, biased])
        return bound(aten.native_layer_norm_backward.default, arguments)
    x, *rest = make.all(operator.inputs)
    shape = list(rest[0].shape) if rest else [x.shape[-1]]
    weight, bias = [*rest, None, None][:2]
    return bound(aten.native_layer_norm.default, (x, shape, weight, bias, _EPS))


def _group_norm(operator: Operator, make: Make) -> Call:
    backward = operator.is_gradient
    x = make(operator.inputs[1 if backward else 0])
    samples, channels, pixels = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    weight = torch.ones(channels, dtype=x.dtype, device=x.device)
    groups = operator.inputs[2].shape[-1] if backward else operator.outputs[1].shape[-1]
    forward = bound(aten.native_group_norm.default, (x, weight, weight, samples, channels, pixels, groups, _EPS))
    if not backward:
        return forward
    _, mean, rstd = forward()
    grad = make(operator.inputs[0])
    arguments = (grad, x, mean, rstd, weight, samples, channels, pixels, groups, [True, True, True])
    return bound(aten.native_group_norm_backward.default, arguments)


def _rms_norm(operator: Operator, make: Make) -> Call:
    """PyTorch's fused operator if there is one, else the zoo's own."""
    backward = operator.is_gradient
    x, weight = make.all(operator.inputs[1:3] if backward else operator.inputs[:2])
    fused = make.device != "cpu" and hasattr(aten, "_fused_rms_norm")
    if fused:
        shape = list(weight.shape)
        forward = bound(aten._fused_rms_norm.default, (x, shape, weight, _EPS))
    else:
        forward = bound(own.rms_norm.default, (x, weight, _EPS))
    if not backward:
        return forward
    rstd = forward()[1]
    grad = make(operator.inputs[0])
    if fused:
        arguments = (grad, x, shape, rstd, weight, [True, True])
        return bound(aten._fused_rms_norm_backward.default, arguments)
    return bound(own.rms_norm_backward.default, (grad, x, weight, rstd))


# Point-wise, dropout, softmax and losses


def _softmax(operator: Operator, make: Make) -> Call:
    """A softmax over the last dim; a log-softmax of images or label sequences over their classes, dim 1."""
    ndim = len(operator.inputs[0].shape)
    dim = 1 if "log" in operator.name and ndim > 2 else ndim - 1
    if operator.name.endswith("backward_data"):
        grad, out = make(operator.inputs[0]), make.share(operator.inputs[1])
        return bound(getattr(aten, operator.name).default, (grad, out, dim, out.dtype))
    x = make(operator.inputs[0])
    return bound(getattr(aten, operator.name).default, (x, dim, False))


def _dropout(operator: Operator, make: Make) -> Call:
    if operator.is_gradient:
        return bound(aten.native_dropout_backward.default, (*make.all(operator.inputs[:2]), 1.0 / 0.9))
    return bound(aten.native_dropout.default, (make(operator.inputs[0]), 0.1, True))


def _bernoulli(operator: Operator, make: Make) -> Call:
    return bound(aten.bernoulli_.float, (make(operator.inputs[0]), 0.5))


def _nll_loss(operator: Operator, make: Make) -> Call:
    function = getattr(aten, operator.name).default
    if operator.is_gradient:
        grad, x, labels, total = operator.inputs
        ids = make.index(labels, x.shape[1])
        return bound(function, (make(grad), make(x), ids, None, _MEAN, -100, make.share(total)))
    x, labels = operator.inputs
    return bound(function, (make(x), make.index(labels, x.shape[1]), None, _MEAN, -100))


def _cross_entropy_of_shares(operator: Operator, make: Make) -> Call:
    *grad, x, target = operator.inputs
    arguments = (*make.all(grad), make.share(x), make.share(target), None, _MEAN)
    return bound(getattr(aten, operator.name).default, arguments)


def _cross_entropy_with_logits(operator: Operator, make: Make) -> Call:
    x, target = operator.inputs[:2]
    return bound(aten.binary_cross_entropy_with_logits.default, (make(x), make.share(target), None, None, _MEAN))


def _smooth_l1(operator: Operator, make: Make) -> Call:
    return bound(getattr(aten, operator.name).default, (*make.all(operator.inputs), _MEAN, 1.0))


# Pools and resizing


def _pool(operator: Operator, make: Make) -> Call:
    backward = operator.is_gradient
    data = operator.inputs[1] if backward else operator.inputs[0]
    out = operator.inputs[0] if backward else operator.outputs[0]
    dims = 3 if "pool3d" in operator.name else 2
    if "adaptive" in operator.name:
        return _adaptive_pool(operator, make, size=list(out.shape[-dims:]), backward=backward)
    window = pool_window(
        data=data.shape[-dims:],
        out=out.shape[-dims:],
        kernel=int(operator.attributes.get("kernel", 0)),
        stride=int(operator.attributes.get("stride", 0)),
    )
    if window is None:
        raise CannotRunError(f"no pool of usual size gives {out.shape} from {data.shape}")
    x = make(data)
    if "max_pool" in operator.name:
        return _max_pool(operator, make, x, window, dims=dims, backward=backward)
    move = (list(window.kernel), list(window.stride), list(window.padding), window.ceil, True, None)
    if backward:
        return bound(getattr(aten, operator.name).default, (make(out), x, *move))
    return bound(getattr(aten, operator.name).default, (x, *move))


def _max_pool(operator: Operator, make: Make, x: torch.Tensor, window: Window, *, dims: int, backward: bool) -> Call:
    move = (list(window.kernel), list(window.stride), list(window.padding), list(window.dilation), window.ceil)
    forward = getattr(aten, f"max_pool{dims}d_with_indices").default
    if not backward:
        return bound(forward, (x, *move))
    _, indices = forward(x, *move)
    grad = make(operator.inputs[0])
    return bound(getattr(aten, operator.name).default, (grad, x, *move, indices))


def _adaptive_pool(operator: Operator, make: Make, *, size: list[int], backward: bool) -> Call:
    if backward:
        grad, x = make.all(operator.inputs[:2])
        if len(operator.inputs) > 2:
            raise CannotRunError("the indices of an adaptive maximum are not known")
        return bound(getattr(aten, operator.name).default, (grad, x))
    return bound(getattr(aten, operator.name).default, (make(operator.inputs[0]), size))


def _resize(operator: Operator, make: Make) -> Call:
    x, out = operator.inputs[0], operator.outputs[0]
    dims = len(x.shape) - 2
    function = getattr(aten, operator.name).default
    corners = () if "nearest" in operator.name else (False,)
    scales = (None,) * dims
    if operator.is_gradient:
        return bound(function, (make(x), list(x.shape[2:]), list(out.shape), *corners, *scales))
    return bound(function, (make(x), list(out.shape[2:]), *corners, *scales))


COMPUTING: Final[dict[str, Builder]] = {
    **named(_batch_norm, "native_batch_norm native_batch_norm_backward"),
    **named(_layer_norm, "native_layer_norm native_layer_norm_backward"),
    **named(_group_norm, "native_group_norm native_group_norm_backward"),
    **named(_rms_norm, "rms_norm rms_norm_backward"),
    **named(_softmax, "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data"),
    **named(_dropout, "native_dropout native_dropout_backward"),
    **named(_bernoulli, "bernoulli_"),
    **named(_nll_loss, "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"),
    **named(_cross_entropy_of_shares, "binary_cross_entropy binary_cross_entropy_backward"),
    **named(_cross_entropy_with_logits, "binary_cross_entropy_with_logits"),
    **named(_smooth_l1, "smooth_l1_loss smooth_l1_loss_backward"),
    **named(
        _pool,
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
        "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward "
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
        "adaptive_max_pool2d adaptive_max_pool2d_backward",
    ),
    **named(
        _resize,
        "upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward "
        "upsample_bilinear2d upsample_bilinear2d_backward upsample_trilinear3d upsample_trilinear3d_backward",
    ),
}
"""Builders by the name of the operator."""
