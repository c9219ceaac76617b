"""Traces a recurrent layer as one operator, as a GPU runs it.

On the CPU, where tracing happens, PyTorch has one operator for a layer of an LSTM in one direction, but runs a GRU or
a plain RNN as several operators per token. While a model is traced, such a layer is one operator as well, with the
inputs of the LSTM's. FLOPs, costs and memory follow from these in the same way. The operator only has shapes and
computes nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

_TENSORS: Final = ("data", "input_weights", "recurrent_weights", "input_bias", "recurrent_bias", "state")
_LAYER: Final = ", ".join(f"Tensor {name}" for name in _TENSORS)
_PLAIN_ARGUMENTS: Final = 9


def fused_recurrence() -> Any:
    """A mode in which GRUs and RNNs are one operator per layer and direction."""
    import torch
    from torch.overrides import TorchFunctionMode

    cells = {torch.gru: "gru_layer", torch.rnn_tanh: "rnn_layer", torch.rnn_relu: "rnn_layer"}

    class Fused(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Sequences packed by their lengths come with other arguments, and are left as they are.
            if func in cells and len(args) == _PLAIN_ARGUMENTS and isinstance(args[3], bool):
                return _layers(_operators()[cells[func]], *args)
            return func(*args, **(kwargs or {}))

    return Fused()


def _layers(  # noqa: PLR0917  (the arguments of PyTorch's own functions)
    layer: Any,
    data: torch.Tensor,
    state: torch.Tensor,
    weights: list[torch.Tensor],
    biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of the last layer, and the last state of each layer and direction."""
    import torch

    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    data = data.transpose(0, 1) if batch_first else data
    last = []
    for depth in range(num_layers):
        outputs = []
        for direction in range(directions):
            number = depth * directions + direction
            own = list(weights[number * each : (number + 1) * each])
            if not biases:
                own += [own[0].new_zeros(own[0].shape[0])] * 2
            out, end = layer.apply(data, *own, state[number])
            outputs.append(out)
            last.append(end)
        data = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and depth + 1 < num_layers:
            data = torch.native_dropout(data, dropout, True)[0]
    return data.transpose(0, 1) if batch_first else data, torch.stack(last)


@cache
def _operators() -> dict[str, Any]:
    """Differentiable functions of a layer by the name of their operator, which are defined when first asked for."""
    import torch

    library = torch.library.Library("traincast", "FRAGMENT")
    made: dict[str, Any] = {"library": library}  # the operators live as long as it does

    def forward(data: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = rest[-1]
        return data.new_empty((*data.shape[:-1], state.shape[-1])), torch.empty_like(state)

    def backward(*tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(tensor) for tensor in tensors[:6] if tensor is not None)

    for name in ("gru_layer", "rnn_layer"):
        library.define(f"{name}({_LAYER}) -> (Tensor, Tensor)")
        outputs = "Tensor outputs, Tensor? grad_outputs, Tensor? grad_state"
        library.define(f"{name}_backward({_LAYER}, {outputs}) -> ({', '.join(['Tensor'] * 6)})")
        library.impl(name, forward, "Meta")
        library.impl(f"{name}_backward", backward, "Meta")
        made[name] = _differentiable(name)
    return made


def _differentiable(name: str) -> Any:
    import torch

    run, differentiate = (getattr(torch.ops.traincast, n) for n in (name, f"{name}_backward"))

    class Layer(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
            ctx.set_materialize_grads(False)
            outputs, end = run(*tensors)
            ctx.save_for_backward(*tensors, outputs)
            return outputs, end

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
            return differentiate(*ctx.saved_tensors, *gradients)

    return Layer
