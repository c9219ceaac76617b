"""Builders of matrix products (also grouped and batched), attention, convolutions and recurrent layers."""

from __future__ import annotations

from typing import Final

import torch

import traincast.graph.zoo.parts.kernels  # noqa: F401  (registers the operators of the zoo)
from traincast.graph import Operator, Phase
from traincast.graph.vocabulary import OpKind, names_of
from traincast.profiling.operators.tensors import Builder, Call, CannotRunError, Make, bound, named
from traincast.profiling.operators.windows import conv_window

aten: Final = torch.ops.aten
own: Final = torch.ops.traincast
_LSTM: Final = 2  # the mode of mkldnn_rnn_layer


def _gemm(operator: Operator, make: Make) -> Call:
    """A matrix product with the memory layouts of a linear layer, forward or backward."""
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
    """A grouped product with equally many rows for each expert."""
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
    backward = operator.is_gradient
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
    """Attention by the fused kernel that PyTorch chooses on this device, and its gradient by autograd."""
    grouped = qkv[0].shape[1] != qkv[1].shape[1]

    def attend() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal, enable_gqa=grouped)

    if not backward:
        # The kernel also returns the logarithms of its sums; the public function does not.
        sums = torch.empty(operator.outputs[-1].shape, device=make.device)
        return lambda: (attend(), sums)
    with torch.enable_grad():
        for tensor in qkv:
            tensor.requires_grad_()
        out = attend()
    grad = make(operator.inputs[0])
    return lambda: torch.autograd.grad(out, qkv, grad, retain_graph=True)


def _conv(operator: Operator, make: Make) -> Call:
    backward = operator.name.endswith("convolution_backward")
    gradient = operator.name.rpartition(".bwd_")[2] if ".bwd_" in operator.name else ""
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
        raise CannotRunError(f"no stride and padding give {out.shape} from {data.shape} and {weight.shape}")
    move = (list(window.stride), list(window.padding), list(window.dilation), transposed)
    x, w = make(data), make(weight)
    if not backward and not gradient:
        bias = make(operator.inputs[2]) if len(operator.inputs) > 2 else None
        return bound(aten.convolution.default, (x, w, bias, *move, list(window.output_padding), groups))
    grad = make(out)
    to_input = gradient == "data" or (backward and int(operator.attributes.get("products", 2)) > 1)
    to_bias = backward and len(operator.outputs) - 1 - to_input > 0
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    mask = [to_input, gradient != "data", to_bias]
    arguments = (grad, x, w, [channels], *move, list(window.output_padding), groups, mask)
    return bound(aten.convolution_backward.default, arguments)


def _rnn(operator: Operator, make: Make) -> Call:
    """One layer of an LSTM in one direction, with the gradient of its outputs."""
    if make.device != "cpu":
        raise CannotRunError("a captured recurrent layer runs on the CPU only")
    tensors = make.all(operator.inputs[:7])
    hidden = operator.inputs[2].shape[1]
    forward = bound(aten.mkldnn_rnn_layer.default, (*tensors, False, [], _LSTM, hidden, 1, True, False, False, True))
    if not operator.is_gradient:
        return forward
    with torch.enable_grad():  # without this, it keeps nothing for its gradient
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

    if not operator.is_gradient:
        return forward
    with torch.enable_grad():
        for tensor in tensors:
            tensor.requires_grad_()
        out, _ = forward()
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, tensors, grad, retain_graph=True)


PRODUCTS: Final[dict[str, Builder]] = {
    **named(_gemm, "mm addmm bmm baddbmm mv addmv"),
    **named(_grouped_gemm, "grouped_mm grouped_mm_backward"),
    **dict.fromkeys(names_of(OpKind.ATTENTION), _attention),
    **named(_conv, "convolution convolution_backward conv2d.bwd_data conv2d.bwd_weight"),
    **named(_rnn, "mkldnn_rnn_layer mkldnn_rnn_layer_backward"),
    **named(_plain_rnn, "gru_layer gru_layer_backward rnn_layer rnn_layer_backward"),
}
"""Builders by the name of the operator."""
