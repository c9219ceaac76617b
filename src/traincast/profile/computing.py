"""Builders of operators that compute: products, norms, activations, losses, pools and updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

import traincast.graph.zoo.kernels  # noqa: F401  (registers the operators of the zoo)
from traincast.graph import Operator, Phase
from traincast.profile.tensors import Builder, Call, CannotRunError, Make, bound, named
from traincast.profile.windows import Window, conv_window, pool_window

aten: Final = torch.ops.aten
own: Final = torch.ops.traincast
_EPS: Final = 1e-5
_MEAN: Final = 1  # a loss reduced by its mean, as aten counts reductions
_LSTM: Final = 2  # the mode of mkldnn_rnn_layer


# Products


def _gemm(operator: Operator, make: Make) -> Call:
    """Layouts as a linear layer has them: weights transposed forward, the gradient transposed for weights."""
    a_spec, b_spec, *bias = operator.inputs
    forward = operator.phase is Phase.FORWARD
    weight = b_spec in operator.parameters
    a = make.transposed(a_spec) if not forward and not operator.parameters and len(a_spec.shape) > 1 else make(a_spec)
    b = make.transposed(b_spec) if forward and weight and len(b_spec.shape) > 1 else make(b_spec)
    if bias:
        c = make(bias[0])
        function = getattr(aten, operator.name).default
        return lambda: function(c, a, b)
    function = getattr(aten, operator.name).default
    return lambda: function(a, b)


def _grouped_gemm(operator: Operator, make: Make) -> Call:
    """Rows shared out evenly among the experts."""
    first, second = make(operator.inputs[0]), make(operator.inputs[1])
    rows, ends = operator.inputs[0].shape[0], operator.inputs[2]
    experts = ends.shape[0]
    shares = torch.tensor(
        [rows * (i + 1) // experts for i in range(experts)], dtype=make.dtype(ends.dtype), device=make.device
    )
    function = getattr(own, operator.name).default
    return lambda: function(first, second, shares)


def _attention(operator: Operator, make: Make) -> Call:
    causal = bool(operator.attributes.get("causal", False))
    backward = operator.name.endswith("backward")
    q, k, v = make.all(operator.inputs[-3:])
    if operator.name.startswith("attention"):
        forward = bound(own.attention.default, (q, k, v, causal))
    elif make.device == "cpu":
        forward = bound(aten._scaled_dot_product_flash_attention_for_cpu.default, (q, k, v, 0.0, causal))
    else:
        return _differentiated_attention(operator, (q, k, v), make, causal=causal, backward=backward)
    if not backward:
        return forward
    out, lse = forward()
    grad = make(operator.inputs[0])
    if operator.name.startswith("attention"):
        return bound(own.attention_backward.default, (grad, q, k, v, out, lse, causal))
    function = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return bound(function, (grad, q, k, v, out, lse, 0.0, causal))


def _differentiated_attention(
    operator: Operator, qkv: tuple[torch.Tensor, ...], make: Make, *, causal: bool, backward: bool
) -> Call:
    """Whichever fused kernel PyTorch chooses on this device, and its gradient by autograd."""
    grouped = qkv[0].shape[1] != qkv[1].shape[1]

    def attend() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal, enable_gqa=grouped)

    if not backward:
        # The kernel gives the logarithms of its sums beside the result; the public function does not.
        sums = torch.empty(operator.outputs[-1].shape, device=make.device)
        return lambda: (attend(), sums)
    with torch.enable_grad():
        for tensor in qkv:
            tensor.requires_grad_()
        out = attend()
    grad = make(operator.inputs[0])
    return lambda: torch.autograd.grad(out, qkv, grad, retain_graph=True)


def _conv(operator: Operator, make: Make) -> Call:
    backward = operator.name.endswith("backward")
    transposed = bool(operator.attributes.get("transposed", False))
    groups = int(operator.attributes.get("groups", 1))
    data, weight = operator.inputs[1:3] if backward else operator.inputs[:2]
    out = operator.inputs[0] if backward else operator.outputs[0]
    window = conv_window(
        data=data.shape[2:],
        out=out.shape[2:],
        kernel=weight.shape[2:],
        stride=int(operator.attributes.get("stride", 1)),
        transposed=transposed,
    )
    if window is None:
        raise CannotRunError(f"no stride and padding take {data.shape} by {weight.shape} to {out.shape}")
    move = (list(window.stride), list(window.padding), list(window.dilation), transposed)
    x, w = make(data), make(weight)
    if not backward:
        bias = make(operator.inputs[2]) if len(operator.inputs) > 2 else None
        return bound(aten.convolution.default, (x, w, bias, *move, list(window.output_padding), groups))
    grad = make(out)
    to_input = int(operator.attributes.get("products", 2)) > 1
    to_bias = len(operator.outputs) - 1 - to_input > 0
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    mask = [to_input, True, to_bias]
    arguments = (grad, x, w, [channels], *move, list(window.output_padding), groups, mask)
    return bound(aten.convolution_backward.default, arguments)


def _rnn(operator: Operator, make: Make) -> Call:
    """One layer of an LSTM in one direction, with the gradient of its outputs."""
    if make.device != "cpu":
        raise CannotRunError("a captured recurrent layer is the CPU's own kernel")
    tensors = make.all(operator.inputs[:7])
    hidden = operator.inputs[2].shape[1]
    forward = bound(aten.mkldnn_rnn_layer.default, (*tensors, False, [], _LSTM, hidden, 1, True, False, False, True))
    if not operator.name.endswith("backward"):
        return forward
    with torch.enable_grad():  # only then does it keep what its gradient needs
        out, hy, cy, workspace = forward()
    grad = torch.randn_like(out)
    arguments = (*tensors, out, hy, cy, grad, None, None, False, _LSTM, hidden, 1, True, True, False, [], False)
    return bound(aten.mkldnn_rnn_layer_backward.default, (*arguments, workspace))


def _plain_rnn(operator: Operator, make: Make) -> Call:
    """One layer of a GRU or an RNN in one direction, with the gradient of its outputs."""
    data, *weights, state = tensors = make.all(operator.inputs[:6])
    function = torch.gru if operator.name.startswith("gru") else torch.rnn_tanh

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        out, last = function(data, state[None], weights, True, 1, 0.0, False, False, False)
        return out, last[0]

    if not operator.name.endswith("backward"):
        return forward
    with torch.enable_grad():
        for tensor in tensors:
            tensor.requires_grad_()
        out, _ = forward()
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, tensors, grad, retain_graph=True)


# Norms


def _batch_norm(operator: Operator, make: Make) -> Call:
    if operator.name.endswith("backward"):
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
    if operator.name.endswith("backward"):
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
    backward = operator.name.endswith("backward")
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
    """The zoo's own operator, or PyTorch's fused one where there is such a kernel."""
    backward = operator.name.endswith("backward")
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
    """The last dim, but for the logarithm over classes of an image or a sequence of labels."""
    ndim = len(operator.inputs[0].shape)
    dim = 1 if "log" in operator.name and ndim > 2 else ndim - 1
    if operator.name.endswith("backward_data"):
        grad, out = make(operator.inputs[0]), make.share(operator.inputs[1])
        return bound(getattr(aten, operator.name).default, (grad, out, dim, out.dtype))
    x = make(operator.inputs[0])
    return bound(getattr(aten, operator.name).default, (x, dim, False))


def _dropout(operator: Operator, make: Make) -> Call:
    if operator.name.endswith("backward"):
        return bound(aten.native_dropout_backward.default, (*make.all(operator.inputs[:2]), 1.0 / 0.9))
    return bound(aten.native_dropout.default, (make(operator.inputs[0]), 0.1, True))


def _bernoulli(operator: Operator, make: Make) -> Call:
    return bound(aten.bernoulli_.float, (make(operator.inputs[0]), 0.5))


def _nll_loss(operator: Operator, make: Make) -> Call:
    function = getattr(aten, operator.name).default
    if operator.name.endswith("backward"):
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
    backward = operator.name.endswith("backward")
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
        raise CannotRunError(f"no pool of usual size takes {data.shape} to {out.shape}")
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
            raise CannotRunError("the places of an adaptive maximum are not known")
        return bound(getattr(aten, operator.name).default, (grad, x))
    return bound(getattr(aten, operator.name).default, (make(operator.inputs[0]), size))


def _resize(operator: Operator, make: Make) -> Call:
    x, out = operator.inputs[0], operator.outputs[0]
    dims = len(x.shape) - 2
    function = getattr(aten, operator.name).default
    corners = () if "nearest" in operator.name else (False,)
    scales = (None,) * dims
    if operator.name.endswith("backward"):
        return bound(function, (make(x), list(x.shape[2:]), list(out.shape), *corners, *scales))
    return bound(function, (make(x), list(out.shape[2:]), *corners, *scales))


# Updates


def _update(operator: Operator, make: Make) -> Call:
    """One fused update of one parameter; a copy in half precision is written where the weights are kept so."""
    gradient, weight, *states = (make(t) for t in operator.inputs)
    gradient = gradient.to(weight.dtype)
    states = [state.abs() for state in states]
    step = torch.ones((), device=make.device)
    extra = [make(t) for t in operator.outputs[1 + len(states) :]]
    update = _UPDATES[operator.name](weight, gradient, states, step)

    def run() -> Any:
        update()
        for copy in extra:
            copy.copy_(weight)
        return (weight, *states, *extra)

    return run


def _adam(name: str) -> Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor], Call]:
    def build(weight: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], step: torch.Tensor) -> Call:
        function = getattr(torch, name)
        first, second = states
        return lambda: function(
            [weight],
            [gradient],
            [first],
            [second],
            [],
            [step],
            lr=1e-4,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.01,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return build


def _sgd(weight: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], step: torch.Tensor) -> Call:
    momentum = 0.9 if states else 0.0
    return lambda: torch._fused_sgd_(
        [weight],
        [gradient],
        list(states),
        weight_decay=1e-4,
        momentum=momentum,
        lr=1e-3,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _lamb(weight: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], step: torch.Tensor) -> Call:
    """LAMB (You et al. 2019, arXiv:1904.00962), which PyTorch has no kernel for: Adam's step, scaled per tensor."""
    first, second = states

    def update() -> None:
        first.mul_(0.9).add_(gradient, alpha=0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        direction = first / (second.sqrt() + 1e-6)
        direction.add_(weight, alpha=0.01)
        ratio = weight.norm() / (direction.norm() + 1e-6)
        weight.sub_(direction * (1e-4 * ratio))

    return update


_UPDATES: Final[dict[str, Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor], torch.Tensor], Call]]] = {
    "adamw": _adam("_fused_adamw_"),
    "adam": _adam("_fused_adam_"),
    "lamb": _lamb,
    "sgd": _sgd,
    "sgd-plain": _sgd,
}


COMPUTING: Final[dict[str, Builder]] = {
    **named(_gemm, "mm addmm bmm baddbmm mv addmv"),
    **named(_grouped_gemm, "grouped_mm grouped_mm_backward"),
    **named(
        _attention,
        "attention attention_backward _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_cudnn_attention_backward",
    ),
    **named(_conv, "convolution convolution_backward"),
    **named(_rnn, "mkldnn_rnn_layer mkldnn_rnn_layer_backward"),
    **named(_plain_rnn, "gru_layer gru_layer_backward rnn_layer rnn_layer_backward"),
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
    **named(_update, "adamw adam lamb sgd sgd-plain"),
}
